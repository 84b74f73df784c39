# SPDX-License-Identifier: Apache-2.0
"""What the benchmark reads out of its peers' outputs; the samples are theirs, as printed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import outputs
import pytest
from procs import BrokenError, Values

SAMPLES = Path(__file__).parent / "samples"


def sample(name: str) -> str:
    return (SAMPLES / name).read_text()


def test_ucx_tells_median_and_mean_of_half_round_trips() -> None:
    found = outputs.ucx_perftest(sample("ucx_put_lat.txt"))
    assert (found["iterations"], found["median_us"], found["mean_us"]) == (500, 0.145, 48.115)


def test_megabytes_of_ucx_are_mebibytes() -> None:
    found = outputs.ucx_perftest(sample("ucx_put_bw.txt"))
    assert found["gbytes_per_s"] == pytest.approx(36463.33 * 1048576 / 1e9)
    assert found["gbytes_per_s"] == pytest.approx(65536 / found["mean_us"] / 1e3, rel=1e-3)
    assert found["messages_per_s"] == 583413


@pytest.mark.parametrize(
    ("name", "size", "told"), [("fi_shm_8.txt", 8, 9.15), ("fi_shm_1m.txt", 1 << 20, 70.77)]
)
def test_libfabric_tells_a_mean(name: str, size: int, told: float) -> None:
    """Its MB are decimal; of rate and time the one with more digits counts."""
    assert outputs.fi_pingpong(sample(name), size)["mean_us"] == pytest.approx(told, rel=0.01)


def test_iperf3_counts_what_the_receiver_got() -> None:
    assert outputs.iperf3(sample("iperf3.json"))["gbytes_per_s"] == pytest.approx(4.994, abs=1e-3)


def test_perftest_tells_its_average_bandwidth() -> None:
    found = outputs.perftest(sample("ib_write_bw.txt"))
    assert found == {"gbytes_per_s": pytest.approx(51.16 * 1048576 / 1e9)}


def test_perftest_tells_its_typical_latency() -> None:
    found = outputs.perftest(sample("ib_send_lat.txt"))
    assert found == {"median_us": 18.52, "mean_us": 20.11}


def test_cmtime_adds_its_steps() -> None:
    assert outputs.cmtime(sample("cmtime.txt"), 400) == {"us_each": pytest.approx(8741.4, abs=0.1)}


READERS: list[Callable[[str], Values]] = [
    outputs.ucx_perftest,
    outputs.perftest,
    lambda text: outputs.fi_pingpong(text, 8),
    lambda text: outputs.cmtime(text, 1),
]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("text", ["", "\n", "bytes   #sent\n", "Connection refused\n"])
def test_what_holds_no_figures_is_no_figure(read: Callable[[str], Values], text: str) -> None:
    with pytest.raises(BrokenError):
        read(text)
