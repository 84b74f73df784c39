# SPDX-License-Identifier: Apache-2.0
"""Two guests that reach each other, and what examples/upper_layers shows between them."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from needs import EXTRA

from rnic.vm import Machine, MachineError

SCRIPTS = Path(__file__).resolve().parents[2] / "examples/upper_layers"
sys.path.append(str(SCRIPTS))

import show  # noqa: E402 - a script beside those that it imports
import verify  # noqa: E402

pytestmark = pytest.mark.interop

# What tshark must call some of the packets, and opcodes that must be among them.
SEEN = {
    "nvme": (("NVMe", "NVMe Fabrics RDMA"), ("RC_READ_REQUEST", "RC_WRITE_ONLY", "RC_SEND_ONLY_WITH_INV")),
    "nfs": (("NFS", "RPCoRDMA"), ("RC_READ_REQUEST", "RC_WRITE_LAST", "RC_SEND_ONLY")),
    "rds": (("RRoCE",), ("RC_SEND_FIRST", "RC_SEND_LAST", "RC_SEND_ONLY")),
}


@pytest.fixture(scope="module")
def both() -> Iterator[list[Machine]]:
    with ExitStack() as stack:
        yield show.start_two(stack, EXTRA, transport="both")


@pytest.fixture(scope="module")
def pair(both: list[Machine]) -> list[Machine]:
    """They have RoCE alone, from now on: with two devices on an address the kernel chooses."""
    for machine in both:
        machine.check("rdma link delete siw0; rdma link show | grep -q rxe0 || rdma link add rxe0 type rxe netdev eth0")
    return both


def test_two_guests_ping_each_other_over_iwarp(both: list[Machine]) -> None:
    for machine in both:
        machine.check("rdma link delete rxe0")
    assert ping(*both).count("ping data: rdma-ping-") == 3


def test_two_guests_ping_each_other_over_roce(pair: list[Machine]) -> None:
    assert ping(*pair).count("ping data: rdma-ping-") == 3


def ping(server: Machine, client: Machine) -> str:
    pings = server.spawn("rping -s -C 3")
    try:
        server.check("until rdma resource show cm_id | grep -q 7174; do sleep .1; done")
        return client.check(f"rping -c -a {server.ip} -C 3 -v")
    finally:
        pings.kill()
        pings.wait()


@pytest.mark.parametrize("layer", SEEN)
def test_a_layer_works_and_tshark_names_it(
    layer: str,
    pair: list[Machine],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(show, "start_two", lambda *_: pair)
    monkeypatch.setattr(sys, "argv", ["show.py", layer, "--capture", str(tmp_path)])
    assert show.main() == 0, capsys.readouterr().out
    said = capsys.readouterr().out
    assert "verified: " in said
    for name in [name for names in SEEN[layer] for name in names]:
        assert re.search(rf"[:,] {name} \d+(,|$)", said, re.M), (name, said)
    assert (tmp_path / f"{layer}.pcap").stat().st_size > 100_000


def test_the_ports_of_rds_are_in_its_headers(pair: list[Machine], tmp_path: Path) -> None:
    assert show.show("rds", *pair, tmp_path / "rds.pcap")
    server, client = pair
    lines = show.rds.on_the_wire(tmp_path / "rds.pcap")
    fragments = 30  # of 4096 bytes: 1 + 1 + 1 + 2 + 25
    assert re.search(rf"{client.ip} port \d+ to {server.ip} port 4000: {fragments}\b", lines[0]), lines


def test_a_module_that_the_kernel_lacks_is_told(pair: list[Machine]) -> None:
    with pytest.raises(MachineError, match=r"Linux 6.*: the module rnbd-client cannot be loaded"):
        show.load(pair[0], ["rnbd-client"])


def test_contents_that_differ_are_told() -> None:
    assert verify.same(one=f"{'a' * 64}  file\n", two="a" * 64) == "a" * 64
    for other in ("b" * 64, ""):
        with pytest.raises(ValueError, match="the contents differ"):
            verify.same(one="a" * 64, two=other)
