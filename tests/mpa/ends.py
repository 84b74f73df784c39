# SPDX-License-Identifier: Apache-2.0
"""Two ends of a start-up with a wire between them, in virtual time, and ends in each state."""

from __future__ import annotations

from collections.abc import Iterator

from rnic.mpa import Agreed, Depths, Event, EventType, Options, Startup, State
from rnic.wire import MpaControl, MpaFrame

DEPTHS = Depths(ird=16, ord=8)
UNTIL = 10**9
CONTROL = MpaControl(ird=4, ord=4, peer_to_peer=True, rtr_send=True, rtr_write=True, rtr_read=True)
REQUEST = MpaFrame(control=CONTROL, private_data=b"let me in", rfc7306=True)
REPLY = MpaFrame(
    is_reply=True, control=MpaControl(ird=8, ord=16, peer_to_peer=True, rtr_write=True), private_data=b"come"
)


class Wire:
    """The bytes of one direction, in pieces of one size."""

    def __init__(self, piece: int = 1 << 20) -> None:
        self.piece, self.data = piece, b""

    def carry(self, source: Startup, target: Startup, now: int = 1) -> None:
        self.data += source.take_out()
        while self.data and (room := min(target.wanted, self.piece)):
            taken, self.data = self.data[:room], self.data[room:]
            target.receive(taken, now)


def initiator(
    options: Options | None = None, depths: Depths = DEPTHS, private_data: bytes = b"let me in"
) -> Startup:
    one = Startup(options or Options())
    one.send_request(depths, private_data, 0, UNTIL)
    return one


def responder(options: Options | None = None) -> Startup:
    one = Startup(options or Options())
    one.await_request(0, UNTIL)
    return one


def feed(one: Startup, data: bytes, now: int = 1) -> bytes:
    """Give it bytes, as many as it wants; returns the rest."""
    while data and (room := one.wanted):
        one.receive(data[:room], now)
        data = data[room:]
    return data


def asked(options: Options | None = None, frame: MpaFrame = REQUEST) -> Startup:
    one = responder(options)
    assert not feed(one, frame.emit())
    (event,) = one.take_events()
    assert event.type is EventType.REQUEST
    return one


def joined(
    ours: Options, theirs: Options, depths: tuple[Depths, Depths] = (DEPTHS, DEPTHS), piece: int = 1 << 20
) -> tuple[Agreed, Agreed]:
    """What two ends agree on: the initiator's view, and the responder's."""
    a, b, wire = initiator(ours, depths[0]), responder(theirs), Wire(piece)
    wire.carry(a, b)
    (request,) = b.take_events()
    assert request.frame is not None
    assert request.frame.private_data == b"let me in"
    accepted = b.send_reply(depths[1], b"come", 2)
    back = Wire(piece)
    back.carry(b, a)
    (event,) = a.take_events()
    assert event.type is EventType.REPLY, event
    assert event.agreed is not None
    assert event.frame is not None
    assert event.frame.private_data == b"come"
    assert (a.state, b.state) == (State.UP, State.UP)
    assert (a.deadline, b.deadline, a.wanted, b.wanted) == (None, None, 0, 0)
    return event.agreed, accepted


def only(one: Startup) -> Event:
    (event,) = one.take_events()
    return event


def in_each_state() -> Iterator[tuple[State, Startup]]:
    over = initiator()
    over.close(1)
    up = asked()
    up.send_reply(DEPTHS, b"", 1)
    for state, one in (
        (State.IDLE, Startup(Options())),
        (State.REQ_SENT, initiator()),
        (State.AWAIT_REQ, responder()),
        (State.REQ_RCVD, asked()),
        (State.UP, up),
        (State.OVER, over),
    ):
        assert one.state is state
        one.take_out()
        one.take_events()
        yield state, one
