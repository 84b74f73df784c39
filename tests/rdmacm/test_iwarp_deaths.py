# SPDX-License-Identifier: Apache-2.0
"""The peer of a connection of iWARP is killed in every state, on this host and across a wire; or vanishes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from errno import ECONNREFUSED, ECONNRESET, ETIMEDOUT

import pytest

from rdmacm.ends import HASTY, all_quiet, descriptors
from rdmacm.iwarp_peer import DEVICE
from rdmacm.mortal import End, Mortal, Wire, cable, end, mortal, run
from rnic import WROpcode
from rnic.rdmacm import EventType, Option
from waiting import until

E_ = EventType
HERE, THERE = "iwarp_rcd0", "iwarp_rcd1"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def seen(me: End, peer: Mortal) -> None:
    me.ask(peer.do("listen"))
    peer.do("take")


def called(me: End, peer: Mortal) -> None:
    peer.do("ask", me.listen())
    me.take()


def joined_to(me: End, peer: Mortal) -> None:
    seen(me, peer)
    peer.do("accept")
    me.expect(E_.ESTABLISHED)
    peer.do("expect", E_.ESTABLISHED)


def joined_by(me: End, peer: Mortal) -> None:
    called(me, peer)
    me.accept()
    me.expect(E_.ESTABLISHED)
    peer.do("expect", E_.ESTABLISHED)


def with_a_forked_child(me: End, peer: Mortal) -> None:
    joined_to(me, peer)
    peer.do("fork")


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
            me.register()
            there = peer.do("register")
            if opcode is WROpcode.SEND:
                peer.do("receives")
            me.begin(opcode, there)
            peer.kill()
            assert me.expect(E_.DISCONNECTED) in (0, -ECONNRESET)
            return not all(me.rest())

    until(killed, "the transfer was not over yet")


def test_a_stopped_process_is_not_dead() -> None:
    with mortal(device=DEVICE) as peer, end(device=DEVICE) as me:
        joined_to(me, peer)
        me.register()
        there = peer.do("register")
        peer.stop()
        with pytest.raises(TimeoutError):
            me.channel.get_cm_event(0.5)
        peer.go_on()
        me.begin(WROpcode.RDMA_WRITE, there)
        assert all(me.rest())


def test_nothing_is_kept_of_the_dead() -> None:
    before = 0
    for round_ in range(4):
        with mortal(device=DEVICE) as peer, end(device=DEVICE) as me:
            joined_to(me, peer)
            peer.kill()
            me.expect(E_.DISCONNECTED)
        all_quiet()
        if round_ == 0:
            before = descriptors()
    assert descriptors() <= before


# ------------------------------------------------------------------ across a wire


@pytest.fixture(scope="module")
def wire() -> Iterator[Wire]:
    with cable() as found:
        yield found


def far_joined(me: End, peer: Mortal, wire: Wire) -> None:
    me.ask(peer.do("listen", wire.there), wire.there)
    peer.do("take")
    peer.do("accept")
    me.expect(E_.ESTABLISHED)
    peer.do("expect", E_.ESTABLISHED)


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
