# SPDX-License-Identifier: Apache-2.0
"""Lost, doubled and reordered packets between rnic and the kernel, in each direction: nothing arrives wrong.

What rnic sends goes through its own fault injector, what the kernel sends through netem in the guest.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from ends import Path
from link import Link
from program import LENGTH, MiB, Pair, complete, rdma, run_both

pytestmark = pytest.mark.interop

FAMILIES = ["ipv4", "ipv6"]
SUFFER = ["rnic", "kernel", "both"]  # whose packets


@pytest.fixture
def faulty(link: Link, suffer: str, seed: int) -> Iterator[None]:
    faults = {"loss": 0.02, "duplicate": 0.01, "reorder": 0.02}
    if suffer != "kernel":
        link.rnic_faults(seed=seed, **faults)
    if suffer != "rnic":
        link.kernel_faults(**faults)
    yield
    link.rnic_faults()
    link.kernel_faults()


@pytest.fixture
def ends(link: Link, family: str) -> Iterator[Pair]:
    """rnic's end and the kernel's, connected.

    A repetition is lost again with a probability of 0.04 at most, eight in a row with 7e-12, and only then
    may an end give up.  The kernel never does; its timeout is short (67 ms), since that alone repairs what no
    NAK shows.  rnic's is long (537 ms): a guest on a busy machine may stand still for half a second.
    """
    pair = link.rnic_end(family, length=LENGTH), link.kernel_end(family, length=LENGTH)
    try:
        for end, peer, timeout in zip(pair, reversed(pair), (17, 14), strict=True):
            end.connect(peer.address, Path(link.path_mtus[-1], timeout=timeout))
        yield pair
    finally:
        for end in pair:
            end.close()


@pytest.mark.usefixtures("faulty")
@pytest.mark.combinations(6, family=FAMILIES, suffer=SUFFER, seed=range(1, 7))
def test_all_operations_survive_faults(ends: Pair, seed: int) -> None:
    run_both(*ends, n=80, seed=seed, fenced=False, timeout=60)


@pytest.mark.usefixtures("faulty")
@pytest.mark.combinations(
    6,
    family=FAMILIES,
    suffer=SUFFER,
    asks=["rnic", "kernel"],
    opcode=["RDMA_WRITE", "RDMA_READ"],
    seed=range(1, 4),
)
def test_long_messages_survive_faults(ends: Pair, asks: str, opcode: str) -> None:
    requester, responder = ends if asks == "rnic" else reversed(ends)
    data = random.Random(opcode).randbytes(MiB)
    source, target = (requester, responder) if opcode == "RDMA_WRITE" else (responder, requester)
    here, there = (0, MiB) if opcode == "RDMA_WRITE" else (MiB, 0)
    source.store(0, data)
    quarters = range(0, MiB, MiB // 4)
    requester.post_send(*(rdma(opcode, responder, there + at, [(here + at, MiB // 4)]) for at in quarters))
    complete(requester, len(quarters), timeout=60)
    assert target.load(MiB, MiB) == data
