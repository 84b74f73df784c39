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

import rds  # noqa: E402 - a script beside those that it imports
import show  # noqa: E402
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
        machine.check("rdma link delete siw0")
        machine.check("rdma link | grep -q rxe0 || rdma link add rxe0 type rxe netdev eth0")
    return both


def test_two_guests_connect_over_iwarp(both: list[Machine]) -> None:
    """Without a message: the kernel's siw as a responder may miss one that comes at once."""
    for machine in both:
        machine.check("rdma link delete rxe0")
    assert talk(*both, "ucmatose -C 0", 7471).count("return status 0") == 1


def test_two_guests_ping_each_other_over_roce(pair: list[Machine]) -> None:
    assert talk(*pair, "rping -C 3 -v", 7174).count("ping data: rdma-ping-") == 3


def talk(server: Machine, client: Machine, program: str, port: int) -> str:
    """What the client prints of a program of rdmacm-utils."""
    to = {"rping": ("-s", f"-c -a {server.ip}"), "ucmatose": ("", f"-s {server.ip}")}[program.split()[0]]
    serving = server.spawn(f"{program} {to[0]}")
    try:
        server.check(f"until rdma resource show cm_id | grep -q :{port}; do sleep .1; done")
        return client.check(f"{program} {to[1]}")
    finally:
        serving.kill()
        serving.wait()


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
    if layer == "rds":  # in pieces of at most 4096 bytes: 1 + 1 + 1 + 2 + 25
        assert re.search(rf"{pair[1].ip} port \d+ to {pair[0].ip} port 4000: 30\b", said), said
    assert (tmp_path / f"{layer}.pcap").stat().st_size > 100_000


def test_a_module_that_the_kernel_lacks_is_told(pair: list[Machine]) -> None:
    with pytest.raises(MachineError, match=r"the module rnbd-client of Linux 6.* cannot be loaded"):
        show.load(pair[0], ["rnbd-client"])


def test_contents_that_differ_are_told() -> None:
    assert verify.same(one=f"{'a' * 64}  file\n", two="a" * 64) == "a" * 64
    for other in ("b" * 64, ""):
        with pytest.raises(ValueError, match="the contents differ"):
            verify.same(one="a" * 64, two=other)


def test_a_send_that_is_repeated_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    send = bytes(rds.BTH) + rds.HEADER.pack(1, 0, 100, 5, 6, 0, 0, 0) + bytes(rds.ICRC)
    packets = [["10.0.0.1", "10.0.0.2", psn, send.hex()] for psn in ("7", "8", "7")]
    monkeypatch.setattr(rds, "read", lambda *_, **__: packets)
    assert rds.on_the_wire(Path()) == [
        "SENDs with data, by their RDS headers: from 10.0.0.1 port 5 to 10.0.0.2 port 6: 2"
    ]
