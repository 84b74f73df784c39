# SPDX-License-Identifier: Apache-2.0
"""A peer is served whatever the target's interpreter does: the engine's thread needs no GIL."""

from __future__ import annotations

import pytest

from rnic import WROpcode
from rnic.testing import Options
from transport.conftest import Start
from transport.joining import join, move
from transport.node import Node
from transport.worker import Remote

NBYTES, CHUNK = 4 << 20, 64 << 10
SEED = 7  # its last byte is not 0
PATIENT = Options(timeout=18)


def assert_served(a: Node, at_b: Remote) -> str:
    """WRITE all of b's memory, READ it back, and do atomics, from a.  The digest of what was written."""
    written = a.call("fill", "main", SEED - 1)
    move(a, WROpcode.RDMA_WRITE, at_b, CHUNK)
    a.call("zero", "main")
    move(a, WROpcode.RDMA_READ, at_b, CHUNK)
    assert a.call("digest", "main") == written
    found = a.call("fetch_add", "main", at_b, 100, 3)
    assert [value - found[0] for value in found] == [3 * i for i in range(100)]
    return str(written)


@pytest.fixture
def ends(start: Start) -> tuple[Node, Node, Remote]:
    a, b = start(), start()
    _, at_b = join(a, b, NBYTES, PATIENT)
    return a, b, at_b


def test_target_asleep_serves_its_peer(ends: tuple[Node, Node, Remote]) -> None:
    a, _, at_b = ends  # b sleeps in read(), for the next call
    assert_served(a, at_b)


def test_target_in_one_long_c_call_that_holds_the_gil_serves_its_peer(
    ends: tuple[Node, Node, Remote],
) -> None:
    a, b, at_b = ends
    b.begin("busy_c")
    assert b.result() == "busy"
    assert_served(a, at_b)
    b.tell("that was all")  # the C call ends with this, and not before
    b.result()


def test_target_in_a_python_loop_serves_its_peer_until_the_peer_ends_the_loop(
    ends: tuple[Node, Node, Remote],
) -> None:
    a, b, at_b = ends
    b.begin("busy_python", "main")  # while the last byte of its memory is 0
    assert b.result() == "busy"
    for opcode in (WROpcode.RDMA_WRITE, WROpcode.RDMA_READ) * 4:
        move(a, opcode, at_b, CHUNK)  # zeros
    assert not b.way.poll(0)
    written = a.call("fill", "main", SEED)
    move(a, WROpcode.RDMA_WRITE, at_b, CHUNK)
    assert b.result() > 0
    assert b.call("digest", "main") == written
