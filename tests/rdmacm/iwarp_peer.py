# SPDX-License-Identifier: Apache-2.0
"""Ids on the iWARP device of the loopback interface, and strangers who speak MPA to them by plain sockets."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from rdmacm.ends import FAST, WAIT, expect, resolve
from rnic import QPState
from rnic.capture.mpa import MpaPair, MpaReader, Unit
from rnic.rdmacm import CmId, ConnParam, Event, EventChannel, EventType, IdState, Timing, create_id
from rnic.rdmacm.agent import Agent
from rnic.rdmacm.iwcm.manager import IwService
from rnic.rdmacm.iwcm.sockets import abort
from rnic.wire import Fpdu, MpaControl, MpaFrame, RdmapOpcode, Segment, Tagged, Untagged

HERE = "127.0.0.1"
DEVICE = "iwarp_lo"
EQUALS = MpaControl(ird=4, ord=4, peer_to_peer=True, rtr_send=True, rtr_write=True, rtr_read=True)
REQUEST = MpaFrame(control=EQUALS, private_data=b"from a stranger")
REPLY = MpaFrame(is_reply=True, control=MpaControl(ird=4, ord=4, peer_to_peer=True, rtr_write=True))

RTR = Segment(Tagged(opcode=RdmapOpcode.WRITE, last=True), None, b"")
FIRST = MpaFrame(control=None, private_data=b"an old one", revision=1)


def service_of(one: CmId) -> IwService:
    agent = one.agent or one._agents[0]
    assert isinstance(agent, Agent)
    assert isinstance(agent.service, IwService)
    return agent.service


@contextmanager
def listening(
    channel: EventChannel, address: str = HERE, timing: Timing = FAST, **limits: Any
) -> Iterator[CmId]:
    with create_id(channel, timing=timing, device=DEVICE) as listener:
        listener.bind_addr((address, 0))
        listener.listen(**limits)
        yield listener


@contextmanager
def resolved(
    to: tuple[str, int] | None = None, timing: Timing = FAST, address: str = HERE, **limits: Any
) -> Iterator[tuple[EventChannel, EventChannel, CmId]]:
    """An id with a queue pair that knows its way; its channel, a listener's, and the id."""
    with EventChannel() as ours, EventChannel() as theirs, listening(theirs, address, **limits) as listener:
        with create_id(ours, timing=timing, device=DEVICE) as one:
            resolve(one, to or (address, listener.get_src_port()))
            one.create_qp()
            yield ours, theirs, one


@contextmanager
def asked(asks: ConnParam | None = None, **limits: Any) -> Iterator[tuple[CmId, CmId, Event]]:
    """A request that waits for its answer: the caller, the new id with a queue pair, and the event."""
    with resolved(**limits) as (_, theirs, one):
        one.connect(asks)
        request = expect(theirs, EventType.CONNECT_REQUEST)
        with request.id as child:
            child.create_qp()
            yield one, child, request


@dataclass
class Joined:
    client: CmId
    server: CmId
    told_client: Event
    told_server: Event


@contextmanager
def joined(asks: ConnParam | None = None, agrees: ConnParam | None = None) -> Iterator[Joined]:
    with asked(asks) as (client, server, _):
        server.accept(agrees)
        yield Joined(
            client,
            server,
            expect(client.channel, EventType.ESTABLISHED),
            expect(server.channel, EventType.ESTABLISHED),
        )


def param_of(event: Any) -> ConnParam:
    assert isinstance(event.param, ConnParam)
    return event.param


def parted(*ends: CmId) -> None:
    for end in ends:
        expect(end.channel, EventType.DISCONNECTED)
        assert end.state is IdState.DISCONNECT
        assert end.qp is not None
        assert end.qp.state is QPState.ERR
        assert not end.channel.has_events  # and no TIMEWAIT_EXIT follows, as over siw


class Stranger:
    """One end of a TCP connection that speaks MPA by hand."""

    def __init__(self, sock: socket.socket, *, initiator: bool) -> None:
        self.sock = sock
        sock.settimeout(WAIT)
        self.pair = MpaPair()
        self.ours, self.theirs = self.pair.initiator, self.pair.responder
        if not initiator:
            self.ours, self.theirs = self.theirs, self.ours
        self.found: list[MpaFrame | Unit] = []

    def say(self, *items: bytes | MpaFrame | Segment, crc: bool = True) -> None:
        for item in items:
            data = Fpdu.of(item.emit(), crc=crc).emit() if isinstance(item, Segment) else item
            data = data.emit() if isinstance(data, MpaFrame) else data
            if self.ours.frame is None:
                feed(self.ours, data)
            self.sock.sendall(data)

    def hear(self) -> MpaFrame | Unit | None:
        """The next frame or FPDU; None at the end."""
        while not self.found:
            data = self.sock.recv(1 << 16)
            if not data:
                return None
            self.found += self.theirs.feed(data)
        return self.found.pop(0)

    def hear_frame(self) -> MpaFrame:
        found = self.hear()
        assert isinstance(found, MpaFrame)
        return found

    def hear_segment(self) -> Segment:
        found = self.hear()
        assert isinstance(found, Unit)
        assert found.crc_ok
        assert found.markers_ok
        return found.segment()

    def is_over(self) -> bool:
        """It waits for the end, which has to come without a further byte."""
        try:
            return self.hear() is None
        except ConnectionResetError:
            return True


def feed(reader: MpaReader, data: bytes) -> None:
    with suppress(ValueError):  # it is meant to be no frame
        reader.feed(data)


@contextmanager
def calling(port: int, address: str = HERE) -> Iterator[Stranger]:
    """A stranger who has connected to a listener."""
    with socket.create_connection((address, port), timeout=WAIT) as sock:
        yield Stranger(sock, initiator=True)


@contextmanager
def called() -> Iterator[tuple[socket.socket, int]]:
    """A stranger's socket that listens, and its port."""
    with socket.create_server((HERE, 0)) as sock:
        sock.settimeout(WAIT)
        yield sock, sock.getsockname()[1]


@contextmanager
def taken(listener: socket.socket) -> Iterator[Stranger]:
    """The next connection of a stranger who listens."""
    sock, _ = listener.accept()
    with sock:
        yield Stranger(sock, initiator=False)


def send(payload: bytes, msn: int = 1) -> Segment:
    return Segment(Untagged(opcode=RdmapOpcode.SEND, msn=msn, last=True), None, payload)


def leave(stranger: Stranger, how: str) -> None:
    if how == "reset":
        abort(stranger.sock)
    else:
        stranger.sock.close()


@contextmanager
def met(
    first: MpaFrame = REQUEST, agrees: ConnParam | None = None, timing: Timing = FAST
) -> Iterator[tuple[Stranger, CmId, Event]]:
    """A stranger who has asked and was accepted."""
    with EventChannel() as channel, listening(channel, timing=timing) as listener:
        with calling(listener.get_src_port()) as stranger:
            stranger.say(first)
            request = expect(channel, EventType.CONNECT_REQUEST)
            with request.id as server:
                server.create_qp()
                server.accept(agrees)
                yield stranger, server, request


@contextmanager
def answered(*frames: MpaFrame | bytes) -> Iterator[tuple[CmId, Stranger, MpaFrame]]:
    """An id that calls a stranger, who has answered; and what it has asked."""
    with called() as (sock, port), resolved((HERE, port)) as (_, _, one):
        one.connect(ConnParam(b"hello", responder_resources=4, initiator_depth=4))
        with taken(sock) as stranger:
            asked = stranger.hear_frame()
            stranger.say(*frames)
            yield one, stranger, asked


def received(one: CmId, say: Callable[[], None]) -> bytes:
    """What comes into a receive of an id when somebody says something."""
    data = bytearray(16)
    with one.reg_msgs(data) as mr:
        one.post_recv(mr)
        say()
        done = one.get_recv_comp(WAIT)
        assert done.ok
        return bytes(data[: done.byte_len])


def sent(one: CmId, data: bytes, stranger: Stranger) -> None:
    with one.reg_msgs(bytearray(data)) as mr:
        one.post_send(mr)
        assert stranger.hear_segment().payload == data
        assert one.get_send_comp(WAIT).ok
