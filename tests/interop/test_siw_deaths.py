# SPDX-License-Identifier: Apache-2.0
"""Peers that vanish, between rnic and siw: killed processes and links that go down, in each state.

What cannot be tried: siw sends its request within one call, and its kernel takes requests without the
program, so nobody dies within a request. Nobody closes between siw's reply and the RTR message that it waits
for: that crashes the kernel of siw 6.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from errno import ECONNRESET, ETIMEDOUT
from typing import Any

import pytest
from ends import Send
from link import SIW, Link, Wire
from program import MiB
from siw_ends import CmEnd, JoinPair, called

from conftest import MakeEnds
from rdmacm.ends import HASTY
from rdmacm.mortal import DEPTH, Mortal, mortal
from rnic import WROpcode
from rnic.rdmacm import EventType
from rnic.rdmacm.iwcm import sockets

pytestmark = [pytest.mark.interop, pytest.mark.siw, pytest.mark.usefixtures("wire")]

ENDS = ["rnic", "kernel"]
OPCODES = ["RDMA_WRITE", "RDMA_READ", "SEND"]
SIW_MODES = ["revision 2", "revision 1", "equals"]
MANY = 100  # messages of 1 MiB: whoever kills comes long before the last one
LAST = 999  # the number of a receive that never gets its message
Where = tuple[int, int]  # address and key


def messages(opcode: str, where: Where) -> list[Send]:
    """Many long ones, and a short one behind them."""
    addr, rkey = where
    place = {} if opcode == "SEND" else {"remote_addr": addr, "rkey": rkey}
    long = [Send(opcode=opcode, sg=[(0, MiB)], wr_id=i, **place) for i in range(MANY)]
    return [*long, Send(opcode="SEND", sg=[(0, 1)], wr_id=MANY)]


def begin_traffic(asks: CmEnd, answers: CmEnd, opcode: str) -> None:
    """Return when the first message is through."""
    for i in range(MANY if opcode == "SEND" else 0):
        answers.post_recv(i, [(0, MiB)])
    answers.post_recv(LAST, [(0, 1)])
    asks.post_send(*messages(opcode, (answers.address.addr, answers.address.rkey)))
    assert [wc.status for wc in asks.poll(1)] == ["SUCCESS"]


def cut_off(asker: CmEnd) -> None:
    """All messages have an end, and not all have succeeded."""
    statuses = [wc.status for wc in asker.poll(MANY)]
    assert len(statuses) == MANY
    failed = statuses.index(next(status for status in statuses if status != "SUCCESS"))
    assert "SUCCESS" not in statuses[failed:]


def left_waiting(answerer: CmEnd) -> None:
    """The last message has not come."""
    statuses: dict[int, str] = {}
    while LAST not in statuses and (found := answerer.poll(1)):
        statuses[found[0].wr_id] = found[0].status
    assert statuses[LAST] == "WR_FLUSH_ERR"


def parted(end: CmEnd, *statuses: int) -> None:
    told = end.event()
    assert (told["event"], told["status"] in statuses) == ("DISCONNECTED", True), told


# ---------------------------------------------------------------- the guest's process is killed


def kill(link: Link, end: CmEnd) -> None:
    link.guest.check(f"kill -9 {end.pid()}")


@pytest.mark.combinations(3, connects=ENDS, siw=SIW_MODES)
def test_siws_process_is_killed_when_nothing_happens(
    link: Link, join_pair: JoinPair, connects: str, siw: str
) -> None:
    here, there = join_pair("rnic", connects, siw)
    here.post_recv(LAST, [(0, 100)])
    kill(link, there)
    repeats = (
        siw == "equals" and connects == "rnic"
    )  # the RTR message, until something is heard: a reset answers it
    parted(here, 0, *[-ECONNRESET] * repeats)
    left_waiting(here)


@pytest.mark.combinations(3, asks=ENDS, opcode=OPCODES, connects=ENDS)
def test_siws_process_is_killed_amid_traffic(
    link: Link, join_pair: JoinPair, asks: str, opcode: str, connects: str
) -> None:
    asker, answerer = join_pair(asks, connects)
    here, there = (asker, answerer) if asks == "rnic" else (answerer, asker)
    pid = there.pid()  # it does not answer while it is busy
    begin_traffic(asker, answerer, opcode)
    link.guest.check(f"kill -9 {pid}")
    parted(here, 0, -ECONNRESET)
    cut_off(here) if asks == "rnic" else left_waiting(here)


def test_siws_process_is_killed_before_it_answers(link: Link, make_ends: MakeEnds) -> None:
    """It has closed without a word: so it is asked once more, in revision 1. Nobody listens then."""
    with make_ends() as ends:
        caller, listener = called(link, ends, "rnic")
        kill(link, listener)
        told = caller.event()
        assert told["event"] in ("REJECTED", "UNREACHABLE"), told


def test_siws_process_is_killed_before_it_is_answered(link: Link, make_ends: MakeEnds) -> None:
    with make_ends() as ends:
        caller, listener = called(link, ends, "kernel")
        kill(link, caller)
        told = listener.event()
        assert (told["event"], told["status"]) == ("UNREACHABLE", -ECONNRESET)
        with pytest.raises(OSError):  # noqa: PT011 - there is nothing to accept
            listener.accept()


# ---------------------------------------------------------------- rnic's process is killed


@contextmanager
def siw_and_victim(link: Link, siw: str = "revision 2") -> Iterator[tuple[CmEnd, Mortal]]:
    """siw's end, and a process of rnic's."""
    link.set_siw(SIW[siw])
    with mortal(device=link.device) as victim:
        there = link.siw_end(length=4 * MiB)
        try:
            yield there, victim
        finally:
            there.close()


def victim_asks(link: Link, there: CmEnd, victim: Mortal) -> None:
    ip = link.guest_ip["ipv4"]
    victim.do("ask", there.listen(ip), ip)
    assert there.take()["event"] == "CONNECT_REQUEST"


def victim_is_asked(link: Link, there: CmEnd, victim: Mortal) -> None:
    ip = link.host_ip["ipv4"]
    there.call(ip, victim.do("listen", ip))
    there.ask()
    victim.do("take")


def join_victim(link: Link, there: CmEnd, victim: Mortal, connects: str) -> None:
    if connects == "rnic":
        victim_asks(link, there, victim)
        there.accept()
    else:
        victim_is_asked(link, there, victim)
        victim.do("accept")
    assert there.event()["event"] == "ESTABLISHED"
    victim.do("expect", EventType.ESTABLISHED)


@pytest.mark.combinations(3, connects=ENDS, siw=SIW_MODES)
def test_rnics_process_is_killed_when_nothing_happens(link: Link, connects: str, siw: str) -> None:
    with siw_and_victim(link, siw) as (there, victim):
        join_victim(link, there, victim, connects)
        there.post_recv(LAST, [(0, 100)])
        victim.kill()
        parted(there, 0)
        left_waiting(there)


@pytest.mark.combinations(3, asks=ENDS, opcode=OPCODES, connects=ENDS)
def test_rnics_process_is_killed_amid_traffic(link: Link, asks: str, opcode: str, connects: str) -> None:
    with siw_and_victim(link) as (there, victim):
        join_victim(link, there, victim, connects)
        where = victim.do("register")
        if asks == "rnic":
            for i in range(DEPTH if opcode == "SEND" else 0):
                there.post_recv(i, [(0, MiB)])
            there.post_recv(LAST, [(0, 1)])
            victim.do("begin", WROpcode[opcode], (there.address.addr, there.address.rkey))
        else:
            if opcode == "SEND":
                victim.do("receives")
            there.post_send(*messages(opcode, where))
            assert [wc.status for wc in there.poll(1)] == ["SUCCESS"]
        victim.kill()
        parted(there, 0)
        left_waiting(there) if asks == "rnic" else cut_off(there)


def test_rnics_process_is_killed_before_it_is_answered(link: Link) -> None:
    """siw's program is not told; it must not accept, as that would be the crash of above."""
    with siw_and_victim(link) as (there, victim):
        victim_asks(link, there, victim)
        victim.kill()
    assert "BUG" not in link.guest.check("dmesg")


def test_rnics_process_is_killed_before_it_answers(link: Link) -> None:
    with siw_and_victim(link) as (there, victim):
        victim_is_asked(link, there, victim)
        victim.kill()
        told = there.event()
        assert told["event"] in ("REJECTED", "UNREACHABLE", "CONNECT_ERROR"), told


# ---------------------------------------------------------------- the link goes down

SOON = {"rnic": {"ack_timeout": 16}}  # rnic waits for an acknowledgement 0.27 s, 8 times


@pytest.fixture
def attentive(monkeypatch: pytest.MonkeyPatch) -> None:
    """A silent peer is asked after a second whether it lives, not after 20, and has two to answer."""
    monkeypatch.setattr(sockets, "_IDLE", 1)
    monkeypatch.setattr(sockets, "_BETWEEN", 1)
    monkeypatch.setattr(sockets, "_USER_TIMEOUT", 2.0)


@pytest.mark.usefixtures("attentive")
@pytest.mark.combinations(2, opcode=OPCODES, when=["before", "amid"])
def test_the_link_goes_down_and_rnic_asks(link: Link, join_pair: JoinPair, opcode: str, when: str) -> None:
    """siw hears of it when the link is up again, if it has something to send."""
    here, there = join_pair("rnic", "rnic", **SOON)
    if when == "amid":
        begin_traffic(here, there, opcode)
    with link.guest_down():
        if when == "before":
            where = (there.address.addr, there.address.rkey)
            here.post_send(*messages(opcode, where))
        parted(here, -ETIMEDOUT)
        statuses = [wc.status for wc in here.poll(MANY)]
        assert statuses[-1] == "WR_FLUSH_ERR"
        assert "RETRY_EXC_ERR" in statuses


@pytest.mark.usefixtures("attentive")
@pytest.mark.combinations(2, opcode=[*OPCODES, None], connects=ENDS)
def test_the_link_goes_down_and_rnic_is_asked(
    link: Link, join_pair: JoinPair, opcode: str | None, connects: str
) -> None:
    """Nobody asks it for anything, too: it asks itself whether siw lives."""
    answerer, asker = join_pair("rnic", connects, **SOON)
    if opcode:
        begin_traffic(asker, answerer, opcode)
    else:
        answerer.post_recv(LAST, [(0, 1)])
    with link.guest_down():
        parted(answerer, -ETIMEDOUT)
        left_waiting(answerer)
    if opcode:
        assert asker.event()["event"] == "DISCONNECTED"
        cut_off(asker)


@pytest.mark.usefixtures("attentive")
def test_the_link_goes_down_before_siw_answers(link: Link, make_ends: MakeEnds) -> None:
    with make_ends(**SOON) as ends:
        caller, _ = called(link, ends, "rnic")
        with link.guest_down():
            told = caller.event()
            assert (told["event"], told["status"]) == ("UNREACHABLE", -ETIMEDOUT)


@pytest.mark.usefixtures("attentive")
def test_the_link_goes_down_before_rnic_answers(link: Link, make_ends: MakeEnds) -> None:
    with make_ends(**SOON) as ends:
        _, listener = called(link, ends, "kernel")
        with link.guest_down():
            told = listener.event()
            assert (told["event"], told["status"]) == ("UNREACHABLE", -ETIMEDOUT)


def test_the_link_is_down_when_rnic_calls(link: Link, make_ends: MakeEnds) -> None:
    with make_ends(rnic={"timing": HASTY}) as ends:
        ip = link.guest_ip["ipv4"]
        ends["rnic"].call(ip, ends["kernel"].listen(ip))
        with link.guest_down():
            ends["rnic"].ask()
            told: dict[str, Any] = ends["rnic"].event()
            assert told["event"] == "UNREACHABLE", told


def test_tshark_reads_what_was_sent(wire: Wire) -> None:
    """Processes that are killed reset connections, and links that go down lose segments.

    What siw sends meanwhile is lost, and its FIN may follow once the link is up again.
    """
    wire.check_iwarp(allow=["Connection reset (RST)", "Previous segment(s) not captured"])
