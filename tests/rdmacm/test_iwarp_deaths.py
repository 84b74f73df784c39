# SPDX-License-Identifier: Apache-2.0
"""The peer of a connection of iWARP is killed in every state, on this host and across a wire; or vanishes."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from errno import ECONNREFUSED, ECONNRESET, ETIMEDOUT

import pytest

from rdmacm.ends import HASTY
from rdmacm.iwarp_peer import DEVICE
from rdmacm.mortal import End, Mortal, Wire, end, mortal, run
from rdmacm.ways import (
    called,
    check_a_stopped_process,
    check_what_is_kept_of_the_dead,
    far_joined,
    joined_by,
    joined_to,
    needs_root,
    prepare,
    seen,
    with_a_forked_child,
)
from rnic import WROpcode
from rnic.rdmacm import EventType, Option
from waiting import until

E_ = EventType
HERE, THERE = "iwarp_rcd0", "iwarp_rcd1"


def leaving(me: End, peer: Mortal) -> None:
    joined_to(me, peer)
    peer.stop()
    me.disconnect()


CASES = [
    (seen, E_.REJECTED, {-ECONNREFUSED, -ECONNRESET}),  # it is asked once more: it may know revision 1 alone
    (called, E_.UNREACHABLE, {-ECONNRESET}),
    (joined_to, E_.DISCONNECTED, {0}),  # its kernel closes what it has
    (joined_by, E_.DISCONNECTED, {0}),
    (with_a_forked_child, E_.DISCONNECTED, {0}),
    (leaving, E_.DISCONNECTED, {0}),
]


@pytest.mark.parametrize(("begin", "event", "statuses"), CASES, ids=lambda one: getattr(one, "__name__", ""))
def test_the_peer_is_killed(
    begin: Callable[[End, Mortal], None], event: EventType, statuses: set[int]
) -> None:
    with mortal(device=DEVICE) as peer, end(device=DEVICE) as me:
        begin(me, peer)
        peer.kill()
        assert me.expect(event) in statuses
        if event is E_.DISCONNECTED:
            until(me.is_in_error, "its work is flushed")


TRANSFERS = [WROpcode.RDMA_WRITE, WROpcode.RDMA_READ, WROpcode.SEND]


@pytest.mark.parametrize("opcode", TRANSFERS, ids=lambda one: one.name)
def test_the_peer_is_killed_during_a_transfer(opcode: WROpcode) -> None:
    def killed() -> bool:
        """Whether it was during the transfer: who kills may come late on a busy machine."""
        with mortal(device=DEVICE) as peer, end(device=DEVICE) as me:
            joined_to(me, peer)
            prepare(me, peer, opcode, True)()
            peer.kill()
            assert me.expect(E_.DISCONNECTED) in (0, -ECONNRESET)
            return not all(me.rest())

    until(killed, "the transfer was not over yet")


def test_a_stopped_process_is_not_dead() -> None:
    check_a_stopped_process(device=DEVICE)


def test_nothing_is_kept_of_the_dead() -> None:
    check_what_is_kept_of_the_dead(DEVICE)


# ------------------------------------------------------------------ across a wire


@needs_root
def test_across_a_wire_death_is_told_as_here(wire: Wire) -> None:
    with mortal(netns=wire.netns, device=THERE) as peer, end(device=HERE) as me:
        far_joined(me, peer, wire)
        peer.kill()
        assert me.expect(E_.DISCONNECTED) == 0


@needs_root
def test_a_peer_that_vanishes_is_missed_when_it_does_not_acknowledge(wire: Wire) -> None:
    with mortal(netns=wire.netns, device=THERE) as peer, end(device=HERE) as me:
        me.options[Option.ACK_TIMEOUT] = 14  # 67 ms, eight times
        far_joined(me, peer, wire)
        me.register()
        there = peer.do("register")
        slow = (
            "qdisc add dev rcd0 root tbf rate 50mbit burst 20kb limit 1mb"  # not over when the link goes down
        )
        if subprocess.run(["tc", *slow.split()]).returncode:
            pytest.skip("no token bucket on a link here")
        me.begin(WROpcode.RDMA_WRITE, there)
        inside = ["nsenter", f"--net={wire.netns}"]
        run(*inside, "ip", "link", "set", "rcd1", "down")
        assert me.expect(E_.DISCONNECTED) == -ETIMEDOUT
        run(*inside, "ip", "link", "set", "rcd1", "up")
        until(me.is_in_error, "its work is flushed")
        assert not me.rest()[-1]


@needs_root
def test_a_host_that_answers_no_more_is_unreachable(wire: Wire) -> None:
    with mortal(HASTY, wire.netns, device=THERE) as peer, end(HASTY, HERE) as me:
        port = peer.do("listen", wire.there)
        me.resolve(port, wire.there)
        me.id.create_qp()
        run("ip", "neigh", "replace", wire.there, "lladdr", "02:00:00:00:00:09", "dev", "rcd0")
        me.id.connect()
        assert me.expect(E_.UNREACHABLE) == -ETIMEDOUT
        run("ip", "neigh", "del", wire.there, "dev", "rcd0")
