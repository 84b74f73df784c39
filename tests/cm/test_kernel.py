# SPDX-License-Identifier: Apache-2.0
"""The captures again, with one of the two kernels replaced: what it said is what we say, byte for byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from rnic.capture import read_pcap
from rnic.cm import Connection, Exchange, IbCm, Resolution, State
from rnic.wire import (
    GSI_QPN,
    MAD,
    CmMessage,
    Drep,
    Dreq,
    NotRoCEError,
    Packet,
    Rej,
    Rep,
    Req,
    Rtu,
    SidrRep,
    SidrReq,
    parse_cm,
)

VECTORS = Path(__file__).parent.parent / "vectors"
Line = tuple[str, MAD, CmMessage]
CAPTURES = ["rcopy", "rdma-server", "reject", "rping-ipv6", "rping", "ucmatose", "udaddy"]


def spoken(name: str) -> list[Line]:
    """Who said what: sender, datagram, message."""
    found = []
    for record in read_pcap(VECTORS / f"rxe-{name}.pcap"):
        try:
            packet = Packet.parse(record.data, record.linktype)
        except NotRoCEError:
            continue
        if packet.bth.dqpn == GSI_QPN:
            mad = MAD.parse(packet.payload)
            found.append((str(packet.ip.src), mad, parse_cm(mad)))
    return found


def as_lived(lines: list[Line], part: str) -> list[Line]:
    """The lines in the order that one end saw: what crossed on the way was said before the other was heard.

    A kernel answers a DREQ at once, and sends none of its own any more once it has one.
    """
    order = list(lines)
    for line in lines:
        who, _, message = line
        if who != part or not isinstance(message, Dreq | Drep):
            continue
        heard = [
            other
            for other in order
            if other[0] != part
            and isinstance(other[2], Dreq)
            and other[2].local_comm_id == message.remote_comm_id
        ]
        if heard:
            order.remove(line)
            order.insert(order.index(heard[0]) + isinstance(message, Drep), line)
    return order


class Actor:
    """Our manager in a kernel's part: its ids are the kernel's, its program does what that kernel's did."""

    def __init__(self, name: str, part: str) -> None:
        self.lines = as_lived(spoken(name), part)
        self.part = part
        guids = [m.local_ca_guid for who, _, m in self.lines if who == part and isinstance(m, Req | Rep)]
        self.cm = IbCm(0, guids[0] if guids else 0)
        self.ids: dict[int, Exchange] = {}  # by what the part calls them
        for who, _, message in self.lines:
            if who != part and isinstance(message, Req | SidrReq) and "reject" not in name:
                self.cm.table.listeners.get(message.service_id) or self.cm.listen(message.service_id, 0)

    def play(self) -> None:
        for number, (who, mad, message) in enumerate(self.lines):
            if who == self.part:
                self._say(mad, message)
                (send,) = self.cm.take_sends()
                assert (send.mad.attr_id, send.mad.data) == (mad.attr_id, mad.data), f"line {number}"
                if not isinstance(message, Dreq):  # the passive end's is a number of its own
                    assert send.mad.tid == mad.tid
            else:
                self._hear(number, mad, message)

    def _say(self, mad: MAD, message: CmMessage) -> None:
        if isinstance(message, Req):
            conn = Connection(self.cm, message.local_comm_id, "peer", tid=mad.tid)
            self.cm.table.add(conn)
            self.ids[message.local_comm_id] = conn
            conn.send_req(message, 0)
        elif isinstance(message, SidrReq):
            one = Resolution(self.cm, message.request_id, "peer", tid=mad.tid)
            self.cm.table.add(one)
            one.send_sidr_req(message, 0, timeout_ns=1)
        elif isinstance(message, SidrRep):
            resolution = self.ids[message.request_id]
            assert isinstance(resolution, Resolution)
            resolution.send_sidr_rep(message, 0)
        elif isinstance(message, Rep | Rtu | Dreq | Drep):
            conn_ = self.ids[message.local_comm_id]
            assert isinstance(conn_, Connection)
            self._say_on(conn_, message)
        else:
            assert isinstance(message, Rej)  # of the manager itself: no program was asked

    def _say_on(self, conn: Connection, message: Rep | Rtu | Dreq | Drep) -> None:
        if isinstance(message, Rep):
            conn.send_rep(message, 0)
        elif isinstance(message, Rtu):
            conn.send_rtu(0, message.private_data)
        elif isinstance(message, Dreq):
            conn.send_dreq(0, message.private_data)
        else:
            conn.send_drep(0, message.private_data)

    def _hear(self, number: int, mad: MAD, message: CmMessage) -> None:
        answers = [m for who, _, m in self.lines[number:] if who == self.part and isinstance(m, Rep)]
        if isinstance(message, Req) and answers:  # the id that the kernel will give it
            mine = next(m for m in answers if m.remote_comm_id == message.local_comm_id)
            self.cm.table.allocate = lambda: mine.local_comm_id  # type: ignore[method-assign]
        self.cm.input(mad.emit(), "peer", 0)
        for event in self.cm.take_events():
            self.ids[event.source.local_comm_id] = event.source
            if isinstance(message, SidrReq):
                self.ids[message.request_id] = event.source


# What a part hears without needing it; the others need every word.
DROPPED = {
    "rcopy": ["DREP in TIMEWAIT: repeated, or the DREQs crossed"],
    "rdma-server": ["DREP in TIMEWAIT: repeated, or the DREQs crossed"],
    "reject second": ["a REQ that is refused: invalid_service_id"],
}


@pytest.mark.parametrize("name", CAPTURES)
@pytest.mark.parametrize("which", ["first", "second"])
def test_our_manager_plays_a_kernels_part(name: str, which: str) -> None:
    lines = spoken(name)
    first = lines[0][0]
    part = first if which == "first" else next(who for who, _, _ in lines if who != first)
    actor = Actor(name, part)
    actor.play()
    assert list(actor.cm.statistics().dropped) == DROPPED.get(name, DROPPED.get(f"{name} {which}", []))
    for exchange in actor.ids.values():
        assert exchange.over or exchange.state is State.TIMEWAIT
