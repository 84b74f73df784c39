# SPDX-License-Identifier: Apache-2.0
"""A peer that knows the state of a conversation says anything: the agent lives, and nothing is left of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from functools import partial
from ipaddress import IPv6Address
from itertools import cycle
from random import Random
from typing import Any, TypeVar

import pytest

from rdmacm.ends import FAST, Joined, exchange, ib_of, joined, listening
from rdmacm.stranger import THEM, THIRD, US, Calls, Sockets, Stranger, Wire, agent_of, gid, run_out
from rnic import VerbsError
from rnic.cm.ib_cm import ANSWERS_KEPT
from rnic.rdmacm import CmId, ConnParam, EventChannel, EventType, PortSpace, create_id
from rnic.rdmacm.agent import Agent
from rnic.wire import (
    MAD,
    Apr,
    CmAttr,
    CmMessage,
    Drep,
    IpCmHeader,
    Lap,
    Mra,
    Rej,
    SidrRep,
    WireError,
    parse_cm,
)
from rnic.wire.bits import BitStruct

pytestmark = pytest.mark.roce

CASES = 30_000 if os.environ.get("RNIC_SOAK") else 600
BETWEEN = 60  # cases between two looks at everything
_S = TypeVar("_S", bound=BitStruct)

NUMBERS = [0, 1, 2, 3, 5, 6, 7, 15, 16, 31, 63, 127, 255, 0x8000, 0xFFFF, 0xFFFFFF, 0xFFFFFFFF, 2**64 - 1]
GIDS = [
    *(gid(one) for one in (US, THEM, THIRD, "0.0.0.0", "255.255.255.255", "224.0.0.1", "10.1.2.3")),
    *(IPv6Address(one) for one in ("::", "::1", "fe80::1", "ff02::1", "2001:db8::1")),
]
ANNEX = IpCmHeader(ip_version=4, sport=7, src_field=gid(THEM), dst_field=gid(US))


# ------------------------------------------------------------ wrong messages out of right ones


def another(rng: Random, value: Any) -> Any:
    """A value of the same kind as a field's."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, IPv6Address):
        return rng.choice(GIDS)
    if isinstance(value, bytes):
        return rng.choice([b"", rng.randbytes(len(value)), misfit(rng, ANNEX).emit()])
    if isinstance(value, BitStruct):
        return misfit(rng, value)
    return rng.choice([*NUMBERS, rng.getrandbits(64), value ^ 1])


def misfit(rng: Random, struct: _S) -> _S:
    """The structure with some fields changed to what they can hold."""
    names = [one.name for one in fields(struct)]
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        while True:
            name = rng.choice(names)
            tried = replace(struct, **{name: another(rng, getattr(struct, name))})
            with suppress(WireError):
                tried.emit()
                struct = tried
                break
    return struct


def extremes(struct: BitStruct) -> Iterator[dict[str, Any]]:
    """What to change in a structure, so that one field after the other is at each of its extremes."""
    for one in fields(struct):
        seen = {struct.emit()}
        for value in _extreme_values(getattr(struct, one.name)):
            with suppress(WireError):
                data = replace(struct, **{one.name: value}).emit()
                if data not in seen:
                    yield {one.name: value}
                seen.add(data)


def _extreme_values(value: Any) -> Iterable[Any]:
    if isinstance(value, bool):
        return (True, False)
    if isinstance(value, IPv6Address):
        return GIDS
    if isinstance(value, bytes):
        return (b"", b"\xff" * 16, *(one.emit() for one in _variants(ANNEX)))
    return _variants(value) if isinstance(value, BitStruct) else NUMBERS


def _variants(struct: _S) -> Iterator[_S]:
    return (replace(struct, **change) for change in extremes(struct))


def spoilt(rng: Random, data: bytes) -> bytes:
    """A datagram with something wrong: in its message, its header, its bytes or its length."""
    mad = MAD.parse(data)
    match rng.randrange(10):
        case 0:
            return misfit(rng, mad).emit()
        case 1:
            at = rng.randrange(len(data))
            return data[:at] + rng.randbytes(1) + data[at + 1 :]
        case 2:
            return rng.choice(
                [data[: rng.randrange(len(data))], data + rng.randbytes(rng.choice((4, 40, 3800))), b""]
            )
        case 3:
            return rng.randbytes(len(data))
        case 4:
            return data[:24] + rng.randbytes(len(data) - 24)
    return replace(mad, data=misfit(rng, parse_cm(mad)).emit()).emit()


# ------------------------------------------------------------ both sides


@dataclass
class Application:
    """Does with its ids what programs do, at random; a call may raise VerbsError, no more."""

    rng: Random
    channel: EventChannel
    ids: list[CmId] = field(default_factory=list)
    polite: bool = False  # accepts, and leaves the rest to the peer

    def react(self) -> None:
        while True:
            try:
                event = self.channel.get_cm_event(0)
            except TimeoutError:
                return
            with event:
                kind, one = event.event, event.id
            assert kind is not EventType.DEVICE_REMOVAL
            with suppress(VerbsError):
                self._on(kind, one)

    def _on(self, kind: EventType, one: CmId) -> None:
        if self.polite:
            if kind is EventType.CONNECT_REQUEST:
                self.ids.append(one)
                one.create_qp()
                one.accept()
            return
        choices: list[Callable[[], object]] = [lambda: None, one.destroy]
        if kind is EventType.CONNECT_REQUEST:
            self.ids.append(one)
            choices += [one.reject, *3 * [lambda: self._accept(one)]]
        elif kind is EventType.CONNECT_RESPONSE:
            choices += [one.establish, one.reject]
        elif kind in (EventType.ESTABLISHED, EventType.DISCONNECTED):
            choices += 2 * [one.disconnect]
        self.rng.choice(choices)()

    def _accept(self, one: CmId) -> None:
        if self.rng.random() < 0.9:
            one.create_qp()
        one.accept(ConnParam(qp_num=0x123) if one.qp is None and one.qp_type.name == "RC" else None)

    def call(self, ps: PortSpace) -> None:
        one = create_id(self.channel, ps, timing=FAST)
        self.ids.append(one)
        one.resolve_addr(None, (THEM, 7471))
        one.resolve_route()
        if self.rng.random() < 0.8:
            one.create_qp()
        one.connect(None if one.qp else ConnParam(qp_num=0x321))

    def close(self) -> None:
        self.react()
        for one in self.ids:
            one.destroy()
        self.ids.clear()


@dataclass
class Liar:
    """The stranger, who says what is due, or something else, or spoilt."""

    rng: Random
    stranger: Stranger

    def say(self, message: CmMessage) -> None:
        data = message.to_mad(self.stranger.tid).emit()
        if self.rng.random() < 0.5:
            data = spoilt(self.rng, data)
        for _ in range(self.rng.choice((1, 1, 1, 2))):
            self.stranger.send(data, THIRD if self.rng.random() < 0.1 else THEM)

    def replay(self) -> None:
        self.stranger.send(self.rng.choice(self.stranger.sent[-40:]), self.rng.choice((THEM, THEM, THIRD)))

    def listen(self) -> None:
        while self.stranger.hear() is not None:
            pass

    def answer(self) -> None:
        """Any message that names the conversation."""
        one, rng = self.stranger, self.rng
        pick = rng.randrange(12)
        if pick == 0 and one.sent:
            self.replay()
        elif pick == 1:
            self.say(one.gives_up())
        elif pick == 2:
            status = rng.choice((0, 0, 1, 255))
            self.say(SidrRep(request_id=one.theirs, status=status, qpn=0x55, qkey=0x1234567))
        elif pick < 6:
            self.say(rng.choice([one.rep(), one.rtu()]))
        else:
            kinds: list[type[CmMessage]] = [Mra, Rej, Rej, Drep, Lap, Apr]
            kind = rng.choice(kinds)
            more = {"message": rng.randrange(4)} if kind in (Mra, Rej) else {}
            self.say(rng.choice([one.dreq(), one.reply(kind, **more)]))


@dataclass
class Town:
    """A device with listeners, a good connection beside the bad ones, and both sides of those."""

    agent: Agent
    good: Joined
    listeners: dict[PortSpace, CmId]
    application: Application
    liar: Liar

    def case(self, rng: Random) -> None:
        self.application.rng = self.liar.rng = rng
        stranger = self.liar.stranger
        stranger.fresh()
        ps = rng.choice((PortSpace.TCP, PortSpace.TCP, PortSpace.UDP))
        if rng.random() < 0.6:
            port = self.listeners[ps].get_src_port()
            self.liar.say(stranger.req(port) if ps is PortSpace.TCP else stranger.sidr_req(port))
        else:
            with suppress(VerbsError):
                self.application.call(ps)
        for _ in range(rng.randrange(7)):
            if rng.random() < 0.8:
                self.application.react()
            self.liar.listen()
            self.liar.answer()
        if rng.random() < 0.3:
            run_out(self.agent)
            self.liar.answer()
        self.application.close()
        self.liar.listen()

    def one_message(self, begin: Callable[[], None], mad: Callable[[], MAD]) -> None:
        """A conversation that begins well, and goes on with that."""
        self.liar.stranger.fresh()
        begin()
        self.liar.listen()
        self.liar.stranger.send(mad().emit())
        self.application.react()
        self.liar.listen()
        self.liar.stranger.say(self.liar.stranger.dreq())
        self.application.close()
        self.liar.listen()

    def ask(self) -> None:
        """The stranger asks, and is accepted."""
        stranger = self.liar.stranger
        stranger.say(stranger.req(self.listeners[PortSpace.TCP].get_src_port()))
        self.application.react()

    def look(self) -> None:
        """Nothing is left but the good connection, which nobody has disturbed."""
        self.liar.listen()  # what was sent has been heard, through sockets too
        self.application.close()
        run_out(self.agent)
        assert len(ib_of(self.agent).cm.table) == 2
        assert ib_of(self.agent).cm.deadline() is None
        assert self.agent.ids == {
            *self.listeners.values(),
            self.good.listener,
            self.good.client,
            self.good.server,
        }
        assert len(ib_of(self.agent).cm._answers) <= ANSWERS_KEPT
        exchange(self.good.client, self.good.server)


@contextmanager
def settled(wire_to: Callable[[Agent], Wire]) -> Iterator[Town]:
    with (
        joined() as good,
        EventChannel() as channel,
        listening(channel) as tcp,
        listening(channel, ps=PortSpace.UDP) as udp,
    ):
        agent = agent_of(tcp)
        liar = Liar(Random(0), Stranger(wire_to(agent)))
        town = Town(
            agent, good, {PortSpace.TCP: tcp, PortSpace.UDP: udp}, Application(Random(0), channel), liar
        )
        try:
            yield town
        finally:
            town.application.close()


def attack(town: Town, cases: int) -> None:
    for seed in range(cases):
        town.case(Random(seed))
        assert not town.agent.mistakes, f"seed {seed}"
        assert town.agent.failed is None, f"seed {seed}"
        if seed % BETWEEN == BETWEEN - 1:
            town.look()
    with joined() as pair:
        exchange(pair.client, pair.server)
    statistics = ib_of(town.agent).cm.statistics()
    assert set(statistics.received) == {one.name for one in CmAttr}
    assert len(statistics.dropped) > 15, "many kinds of wrong"


def test_anything_in_any_state_costs_its_own_conversation_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with settled(lambda agent: Calls(agent, monkeypatch)) as town:
        attack(town, CASES)


def due_but(
    make: Callable[[], CmMessage], one: Stranger, message: dict[str, Any], header: dict[str, Any]
) -> MAD:
    """The message that is due, but for some fields of it or of its header."""
    return replace(replace(make(), **message).to_mad(one.tid), **header)


def nothing() -> None:
    """The message comes first."""


def test_every_field_at_its_extremes_in_the_state_where_its_message_is_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with settled(lambda agent: Calls(agent, monkeypatch)) as town:
        town.application.polite = True
        one, ask = town.liar.stranger, town.ask
        calls, resolves = (partial(town.application.call, ps) for ps in (PortSpace.TCP, PortSpace.UDP))
        tcp, udp = (town.listeners[ps].get_src_port() for ps in (PortSpace.TCP, PortSpace.UDP))
        due: list[tuple[Callable[[], None], Callable[[], CmMessage]]] = [
            (nothing, lambda: one.req(tcp)),
            (nothing, lambda: one.sidr_req(udp)),
            (ask, one.rtu),
            (ask, one.dreq),
            (ask, one.gives_up),
            *((ask, partial(one.reply, kind)) for kind in (Mra, Rej, Drep, Lap, Apr)),
            (calls, one.rep),
            (calls, partial(one.reply, Mra)),
            (calls, partial(one.reply, Rej)),
            (resolves, lambda: SidrRep(request_id=one.theirs, qpn=0x55, qkey=0x1234567)),
        ]
        for begin, make in due:
            for message in extremes(make()):
                town.one_message(begin, partial(due_but, make, one, message, {}))
            for header in extremes(MAD(attr_id=make().ATTR)):
                town.one_message(begin, partial(due_but, make, one, {}, header))
            assert not town.agent.mistakes
            town.look()


def test_the_same_through_the_device() -> None:
    with closing(Sockets()) as wire, settled(lambda _agent: wire) as town:
        attack(town, CASES // 3)


class Lossy(Sockets):
    """Some of its datagrams go twice, some not at all."""

    copies = (1, 0, 2, 1, 2)

    def __init__(self) -> None:
        super().__init__()
        self._copies = cycle(self.copies)

    def send_packet(self, packet: bytes, source: str = THEM) -> None:
        for _ in range(next(self._copies)):
            super().send_packet(packet, source)


def test_an_echo_that_is_lost_is_asked_for_again_and_one_that_comes_twice_is_heard_once() -> None:
    with closing(Lossy()) as wire, settled(lambda _agent: wire) as town:
        assert [wire.take() for _ in range(8)] == [None] * 8
        assert ib_of(town.agent).cm.statistics().dropped["malformed"] > 8
