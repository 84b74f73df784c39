# SPDX-License-Identifier: Apache-2.0
"""How connections between rnic and siw begin and end: depths, refusals, errors, disconnects."""

from __future__ import annotations

import pytest
from ends import Send
from link import Link, Wire
from program import LENGTH, rdma
from siw_ends import CmEnd, JoinPair

from conftest import OTHER, MakeEnds

pytestmark = [pytest.mark.interop, pytest.mark.siw, pytest.mark.usefixtures("wire")]

ENDS = ["rnic", "kernel"]


def test_nobody_listens_there(link: Link, make_ends: MakeEnds) -> None:
    with make_ends() as ends:
        ends["rnic"].call(link.guest_ip["ipv4"], 9)
        ends["rnic"].ask()
        told = ends["rnic"].event()
        assert (told["event"], told["status"]) == ("REJECTED", -111)


def test_nobody_listens_here(link: Link, make_ends: MakeEnds) -> None:
    with make_ends() as ends:
        ends["kernel"].call(link.host_ip["ipv4"], 9)
        with pytest.raises(RuntimeError, match="Connection refused"):  # siw connects while it is asked to
            ends["kernel"].ask()


def test_depths_are_agreed(link: Link, make_ends: MakeEnds) -> None:
    """siw's answer is never less than what was asked for. Its caller's event has them the other way round."""
    link.set_siw()
    for connects, mine, said in (("rnic", (3, 5), (3, 5)), ("kernel", (3, 5), (1, 2))):
        with make_ends() as ends:
            caller, listener = ends[connects], ends[OTHER[connects]]
            ip = (link.guest_ip if connects == "rnic" else link.host_ip)["ipv4"]
            caller.call(ip, listener.listen(ip))
            caller.ask("", *mine)
            told = listener.take()
            assert (told["ird"], told["ord"]) == (5, 3)
            listener.accept("", 1, 2)
            told = caller.event()
            assert (told["ird"], told["ord"]) == said


# ---------------------------------------------------------------- errors

ERRORS = ["key", "bounds", "rights"]


def ask_wrongly(requester: CmEnd, responder: CmEnd, opcode: str, wrong: str) -> None:
    """Post a request that the responder refuses, with 7 for its number."""
    offset = LENGTH - 50 if wrong == "bounds" else 0
    send = rdma(opcode, responder, offset, [(0, 100)], wr_id=7)
    requester.post_recv(55, [(0, 100)])
    requester.post_send(Send(**{**vars(send), "rkey": send.rkey ^ 0x1200}) if wrong == "key" else send)


def access(wrong: str) -> tuple[str, ...]:
    return ("LOCAL_WRITE",) if wrong == "rights" else ("LOCAL_WRITE", "REMOTE_WRITE", "REMOTE_READ")


def ended(here: CmEnd, there: CmEnd) -> None:
    """rnic's end knows of the error; siw's, that the connection has ended."""
    told = here.event()
    assert (told["event"], told["status"]) == ("DISCONNECTED", -71)
    assert there.event()["event"] == "DISCONNECTED"
    assert here.state() == "ERR"


@pytest.mark.parametrize("wrong", ERRORS)
@pytest.mark.parametrize("opcode", ["RDMA_WRITE", "RDMA_READ"])
def test_siw_refuses(join_pair: JoinPair, opcode: str, wrong: str) -> None:
    """A WRITE is complete before that, a READ has the status."""
    if (opcode, wrong) == ("RDMA_READ", "rights"):
        pytest.skip("siw (6.1) serves READs of memory without REMOTE_READ")
    requester, responder = join_pair("rnic", "rnic", kernel={"access": access(wrong)})
    ask_wrongly(requester, responder, opcode, wrong)
    status = "SUCCESS" if opcode == "RDMA_WRITE" else "REM_ACCESS_ERR"
    assert [(wc.wr_id, wc.status) for wc in requester.poll(2)] == [(7, status), (55, "WR_FLUSH_ERR")]
    ended(requester, responder)


@pytest.mark.parametrize("wrong", ERRORS)
@pytest.mark.parametrize("opcode", ["RDMA_WRITE", "RDMA_READ"])
def test_rnic_refuses(join_pair: JoinPair, opcode: str, wrong: str) -> None:
    """Of siw's statuses no more is known than that it does not take a READ for a success."""
    requester, responder = join_pair("kernel", "rnic", rnic={"access": access(wrong)})
    ask_wrongly(requester, responder, opcode, wrong)
    done = {wc.wr_id: wc.status for wc in requester.poll(2)}
    assert done.keys() == {7, 55}
    assert opcode == "RDMA_WRITE" or done[7] != "SUCCESS"
    assert responder.load(0, LENGTH) == bytes(LENGTH)
    ended(responder, requester)


@pytest.mark.parametrize("size", [None, 99], ids=["no receive", "short receive"])
@pytest.mark.parametrize("asks", ENDS)
def test_a_send_that_finds_no_room(join_pair: JoinPair, asks: str, size: int | None) -> None:
    requester, responder = join_pair(asks, "rnic")
    if size is not None:
        responder.post_recv(1, [(0, size)])
    requester.post_recv(55, [(0, 100)])
    requester.post_send(Send(opcode="SEND", sg=[(0, 100)], wr_id=7))
    assert {wc.wr_id: wc.status for wc in requester.poll(2)}[55] == "WR_FLUSH_ERR"
    if size is not None:
        assert [(wc.wr_id, wc.status) for wc in responder.poll(1)] == [(1, "LOC_LEN_ERR")]
    ended(*((requester, responder) if asks == "rnic" else (responder, requester)))


# ---------------------------------------------------------------- ends in order


@pytest.mark.parametrize("first", ENDS)
@pytest.mark.parametrize("connects", ENDS)
def test_a_disconnect(join_pair: JoinPair, first: str, connects: str) -> None:
    leaves, stays = join_pair(first, connects)
    stays.post_recv(3, [(0, 100)])
    leaves.disconnect()
    for end in (leaves, stays):
        told = end.event()
        assert (told["event"], told["status"]) == ("DISCONNECTED", 0)
    assert [(wc.wr_id, wc.status) for wc in stays.poll(1)] == [(3, "WR_FLUSH_ERR")]


def test_tshark_reads_what_was_sent(wire: Wire) -> None:
    """Ports where nobody listens reset connections."""
    report = wire.check_iwarp(allow=["Connection reset (RST)"])
    assert "TERMINATE" in report.opcodes
