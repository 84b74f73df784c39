# SPDX-License-Identifier: Apache-2.0
"""Lost, doubled and reordered packets between rnic and the kernel, in each direction: nothing arrives wrong.

What rnic sends goes through its own fault injector, what the kernel sends through netem in the guest.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest
from ends import Path, connect
from link import Link
from program import LENGTH, MiB, Pair, complete, rdma, run_both

# Part of the soak alone for now: with 2 % loss a run against the kernel still ends in RETRY_EXC_ERR at times,
# and whose fault that is has not been found out yet (docs/architecture.md, "What is open").
pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(os.environ.get("RNIC_SOAK", "0") in ("", "0"), reason="not run: RNIC_SOAK=1 runs it"),
]


@pytest.fixture(params=["rnic", "kernel", "both"])
def faulty(request: pytest.FixtureRequest, link: Link) -> Iterator[str]:
    """Whose packets suffer while the test runs."""
    suffer = {"loss": 0.02, "duplicate": 0.01, "reorder": 0.02}
    if request.param != "kernel":
        link.rnic_faults(**suffer)
    if request.param != "rnic":
        link.kernel_faults(**suffer)
    yield request.param
    link.rnic_faults()
    link.kernel_faults()


@pytest.fixture
def ends(link: Link, family: str) -> Iterator[Pair]:
    """rnic's end and the kernel's, connected, with a local ACK timeout of 67 ms."""
    pair = link.rnic_end(family, length=LENGTH), link.kernel_end(family, length=LENGTH)
    connect(*pair, Path(link.path_mtus[-1], timeout=14))
    yield pair
    for end in pair:
        end.close()


@pytest.mark.usefixtures("faulty")
def test_all_operations_survive_faults(ends: Pair) -> None:
    run_both(*ends, n=80, seed=7, fenced=False, timeout=60)


@pytest.mark.usefixtures("faulty")
@pytest.mark.parametrize("opcode", ["RDMA_WRITE", "RDMA_READ"])
@pytest.mark.parametrize("asks", ["rnic_asks", "kernel_asks"])
def test_long_messages_survive_faults(ends: Pair, opcode: str, asks: str) -> None:
    requester, responder = ends if asks == "rnic_asks" else reversed(ends)
    data = random.Random(opcode).randbytes(MiB)
    source, target = (requester, responder) if opcode == "RDMA_WRITE" else (responder, requester)
    here, there = (0, MiB) if opcode == "RDMA_WRITE" else (MiB, 0)
    source.store(0, data)
    quarters = range(0, MiB, MiB // 4)
    requester.post_send(*(rdma(opcode, responder, there + at, [(here + at, MiB // 4)]) for at in quarters))
    complete(requester, len(quarters), timeout=60)
    assert target.load(MiB, MiB) == data
