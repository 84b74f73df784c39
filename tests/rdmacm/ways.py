# SPDX-License-Identifier: Apache-2.0
"""Ways into the states of a connection with a process that will be killed; what holds for any transport."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from rdmacm.ends import FAST, all_quiet, descriptors
from rdmacm.mortal import End, Mortal, Wire, end, mortal
from rnic import WROpcode
from rnic.rdmacm import EventType, PortSpace, Timing

E_ = EventType
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def seen(me: End, peer: Mortal) -> None:
    me.ask(peer.do("listen"))
    peer.do("take")


def called(me: End, peer: Mortal, bare: bool = False) -> None:
    peer.do("ask", me.listen(), "127.0.0.1", PortSpace.TCP, bare)
    me.take()


def joined_to(me: End, peer: Mortal) -> None:
    seen(me, peer)
    peer.do("accept")
    me.expect(E_.ESTABLISHED)
    peer.do("expect", E_.ESTABLISHED)


def joined_by(me: End, peer: Mortal) -> None:
    called(me, peer)
    me.accept()
    peer.do("expect", E_.ESTABLISHED)
    me.expect(E_.ESTABLISHED)


def with_a_forked_child(me: End, peer: Mortal) -> None:
    joined_to(me, peer)
    peer.do("fork")


def far_joined(me: End, peer: Mortal, wire: Wire) -> None:
    me.ask(peer.do("listen", wire.there), wire.there)
    peer.do("take")
    peer.do("accept")
    me.expect(E_.ESTABLISHED)
    peer.do("expect", E_.ESTABLISHED)


# ------------------------------------------------------------------ transfers


def prepare(me: End, peer: Mortal, opcode: WROpcode | None, first: bool) -> Callable[[], None]:
    """Memory at both ends; what begins the transfer, of the survivor or of the other one."""
    here, there = me.register(), peer.do("register")
    if opcode is None:
        return lambda: None
    if opcode is WROpcode.SEND:
        peer.do("receives") if first else me.receives()
    if first:
        return lambda: me.begin(opcode, there)
    return lambda: peer.do("begin", opcode, here)


# ------------------------------------------------------------------ what holds for any transport


def check_a_stopped_process(timing: Timing = FAST, device: str | None = None) -> None:
    """It is not dead: nothing is told, and it goes on."""
    with mortal(timing, device=device) as peer, end(timing, device) as me:
        joined_to(me, peer)
        peer.stop()
        with pytest.raises(TimeoutError):
            me.channel.get_cm_event(0.5)
        peer.go_on()
        prepare(me, peer, WROpcode.RDMA_WRITE, True)()
        assert all(me.rest())


def check_what_is_kept_of_the_dead(device: str | None = None) -> None:
    """No descriptor."""
    before = 0
    for round_ in range(4):
        with mortal(device=device) as peer, end(device=device) as me:
            joined_to(me, peer)
            peer.kill()
            me.expect(E_.DISCONNECTED)
        all_quiet()
        if round_ == 0:
            before = descriptors()
    assert descriptors() <= before
