# SPDX-License-Identifier: Apache-2.0
"""`rnic perf`: every test and metric measures, what does not fit is refused, and no end waits for nobody."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from cli.commands import Start
from rnic.cli.perf.plan import METRICS, TESTS
from rnic.cli.perf.report import LATENCY_HEAD, STREAM_HEAD
from rnic.cli.perf.samples import BUCKETS, Samples, bucket_of, value_of

FEW = ("-n", 40)
EVERY = [(test, metric) for test in TESTS for metric in METRICS]


def measured(rnic: Start, *words: object) -> dict[str, Any]:
    """The one record of a run."""
    result = rnic("perf", *words, "--json").wait()
    assert (result.status, result.err) == (0, "")
    (line,) = result.out.splitlines()
    record = json.loads(line)
    assert isinstance(record, dict)
    return record


@pytest.mark.parametrize(("test", "metric"), EVERY)
def test_each_test_has_each_metric(rnic: Start, test: str, metric: str) -> None:
    record = measured(rnic, test, metric, "--local", *FEW)
    assert (record["test"], record["metric"], record["iterations"]) == (test, metric, 40)
    assert record["messages_per_s"] > 0
    if metric == "lat":
        us = record["latency_us"]
        order = [us[name] for name in ("min", "p50", "p90", "p99", "p99.9", "p99.99", "max")]
        assert order == sorted(order)
        assert us["min"] <= us["mean"] <= us["max"]
        assert ("half" in record["latency_is"]) == TESTS[test].bounces
    else:
        assert record["bandwidth_bytes_per_s"] == record["messages_per_s"] * record["bytes"]
        assert record["peak_bandwidth_bytes_per_s"] >= record["bandwidth_bytes_per_s"]


@pytest.mark.parametrize(
    "words", ["send bw", "write rate", "read bw", "send lat", "write lat", "atomic-cas lat"]
)
def test_python_loop(rnic: Start, words: str) -> None:
    record = measured(rnic, *words.split(), "--local", "--loop", "python", *FEW)
    assert (record["loop"], record["iterations"]) == ("python", 40)


@pytest.mark.parametrize(
    "words",
    [
        "send bw -e -q 2",
        "send lat -e",
        "read lat -e",
        "send bw --bidirectional -q 2",
        "write bw --bidirectional",
        "send bw -t 1 -s 100000",
        "send lat -s 5000 -I 0",
        "write-imm lat -R",
        "send bw -R -q 2",
        "send bw -e --loop python",
    ],
)
def test_options(rnic: Start, words: str) -> None:
    record = measured(rnic, *words.split(), "--local", *FEW)
    pairs = 2 if "-q 2" in words else 1
    assert record["queue_pairs"] == pairs
    assert record["iterations"] == 40 * pairs
    assert record["events"] == (" -e" in words)
    assert record["connected_by"] == ("RDMA-CM" if "-R" in words else "TCP")


def test_duration_ends_it(rnic: Start) -> None:
    assert measured(rnic, "write", "lat", "--local", "-D", 0.05)["seconds"] >= 0.05


def test_record_says_what_was_measured(rnic: Start) -> None:
    record = measured(rnic, "send", "bw", "--local", "-s", "2K", "-m", 512, *FEW)
    assert (record["bytes"], record["mtu"], record["device"]) == (2048, 512, "roce_lo")
    assert set(record["cpus_busy"]) == {"client", "server"}
    for side in ("client", "server"):
        assert set(record[side]) == {"rnic", "python", "kernel", "cpu"}


@pytest.mark.parametrize(("local", "way"), [("off", "wire"), ("on", "shared memory")])
@pytest.mark.parametrize("words", ["write lat", "send bw"])
def test_way_is_told(rnic: Start, monkeypatch: pytest.MonkeyPatch, words: str, local: str, way: str) -> None:
    monkeypatch.setenv("RNIC_LOCAL", local)
    assert measured(rnic, *words.split(), "--local", *FEW)["way"] == way


def test_all_sizes_are_powers_of_two(rnic: Start) -> None:
    result = rnic("perf", "write", "bw", "--local", "-a", "-n", 3).wait()
    assert (result.status, result.err) == (0, "")
    _, head, *rows = result.out.splitlines()
    assert head == STREAM_HEAD
    assert [int(row.split()[0]) for row in rows] == [1 << power for power in range(1, 24)]


def test_server_and_client_print_the_same(rnic: Start) -> None:
    server = rnic("perf", "send", "lat", "-p", 0, "-s", 8)
    client = rnic("perf", "send", "lat", "127.0.0.1", "-p", server.listening(), "-s", 8, *FEW).wait()
    served = server.wait()
    assert (client.status, client.err, served.status, served.err) == (0, "", 0, "")
    assert client.out == served.out
    assert LATENCY_HEAD in client.out


def test_server_insists_on_its_options(rnic: Start) -> None:
    server = rnic("perf", "send", "lat", "-p", 0, "-s", 8)
    client = rnic("perf", "send", "lat", "127.0.0.1", "-p", server.listening(), "-s", 16).wait()
    assert client.status == 1
    assert client.err == "rnic: server: sizes is 8 at the server, 16 at the client\n"
    assert "sizes is 8 at the server" in server.wait().err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("atomic-fadd lat -s 16 --local", "atomics are of 8 bytes"),
        ("atomic-cas bw -a --local", "atomics are of 8 bytes"),
        ("write lat -e --local", "polls its memory"),
        ("send lat -q 2 --local", "-q is for bw and rate"),
        ("send lat -t 2 --local", "-t is for bw and rate"),
        ("send rate --bidirectional --local", "--bidirectional is for bw"),
        ("send bw -n 5 -D 1 --local", "choose"),
        ("send bw -a -s 8 --local", "choose"),
        ("send bw -s 0 --local", "nothing to measure"),
        ("read bw -I 8 --local", "INLINE"),
        ("send bw -R -m 512 --local", "-m does not go with it"),
        ("send bw -R -x 0 --local", "-x"),
        ("send bw -R -d roce_lo --local", "-d"),
        ("send bw HOST --local", "HOST does not go with it"),
        ("send bw --local -p 5", "-p does not go with it"),
        ("send bw HOST -p 0", "0 is none"),
        ("recv bw --local", "recv"),
    ],
)
def test_what_does_not_fit_is_refused(rnic: Start, words: str, why: str) -> None:
    result = rnic("perf", *words.split()).wait()
    assert result.status == 2
    assert why in " ".join(result.err.split())


@pytest.mark.parametrize("words", ["send bw", "send lat", "write lat", "read bw"])
def test_server_that_dies_ends_the_client(rnic: Start, words: str) -> None:
    server = rnic("perf", *words.split(), "-p", 0)
    client = rnic("perf", *words.split(), "127.0.0.1", "-p", server.listening(), "-D", 60)
    time.sleep(1.5)
    server.process.kill()
    result = client.wait(30)
    assert result.status == 1
    assert result.err.startswith("rnic: ")


@pytest.mark.parametrize("words", ["send bw", "write lat", "read bw"])
def test_client_that_dies_ends_the_server(rnic: Start, words: str) -> None:
    server = rnic("perf", *words.split(), "-p", 0)
    client = rnic("perf", *words.split(), "127.0.0.1", "-p", server.listening(), "-D", 60)
    time.sleep(1.5)
    client.process.kill()
    assert server.wait(30).status == 1


@pytest.mark.parametrize("words", ["write lat", "send bw", "write lat --loop python"])
def test_interrupt_ends_both(rnic: Start, words: str) -> None:
    command = rnic("perf", *words.split(), "--local", "-D", 60)
    children = Path(f"/proc/{command.process.pid}/task/{command.process.pid}/children")
    while not (found := children.read_text().split()):
        time.sleep(0.01)
    time.sleep(1)
    command.process.send_signal(signal.SIGINT)
    result = command.wait(30)
    assert (result.status, result.err) == (130, "rnic: interrupted\n")
    assert not Path(f"/proc/{found[0]}").exists()


def test_buckets_are_narrow_and_in_order() -> None:
    values = [*range(5000), *(1 << power for power in range(13, 36)), (1 << 36) - 1]
    buckets = [bucket_of(value) for value in values]
    assert buckets == sorted(buckets)
    assert buckets[-1] == bucket_of(1 << 50) == BUCKETS - 1
    assert all(abs(value_of(bucket_of(value)) - value) <= value / 64 for value in values)


def test_percentiles_of_samples() -> None:
    samples = Samples()
    for value in range(1, 101):
        samples.add(value)
    assert [samples.percentile(percent) for percent in (50, 99, 99.9)] == [50, 99, 100]
    assert (samples.mean, samples.min, samples.max) == (50.5, 1, 100)
    assert round(samples.stdev, 2) == 28.87
