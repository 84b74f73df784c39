# SPDX-License-Identifier: Apache-2.0
"""How connections between rnic and siw begin and end: private data, depths, refusals, errors, deaths."""

from __future__ import annotations

import signal

import pytest
from cm_programs import original, rnic
from ends import Send
from link import SIW, Link, Wire
from program import LENGTH, rdma
from sampling import soak
from siw_ends import CmEnd, JoinPair

from conftest import OTHER, MakeEnds
from waiting import until

pytestmark = [pytest.mark.interop, pytest.mark.siw, pytest.mark.usefixtures("wire")]

ENDS = ["rnic", "kernel"]
MOST = 251  # bytes of private data that siw's sender gets right in revision 2
LENGTHS = [0, 1, 3, 4, 5, 55, 56, 57, 196, 197, MOST]


def data_of(length: int) -> str:
    """Hexadecimal digits of so many bytes."""
    return bytes(i * 7 % 256 for i in range(length)).hex()


def called(link: Link, ends: dict[str, CmEnd], connects: str, data: str = "") -> tuple[CmEnd, CmEnd]:
    """The caller and the listener, which has the request."""
    caller, listener = ends[connects], ends[OTHER[connects]]
    ip = (link.guest_ip if connects == "rnic" else link.host_ip)["ipv4"]
    caller.call(ip, listener.listen(ip))
    caller.ask(data)
    told = listener.take()
    assert (told["event"], told["data"]) == ("CONNECT_REQUEST", data)
    return caller, listener


@pytest.mark.combinations(4, connects=ENDS, siw=["revision 2", "revision 1", "equals"])
def test_private_data(
    request: pytest.FixtureRequest, link: Link, make_ends: MakeEnds, connects: str, siw: str
) -> None:
    """Of every length, in the request and in the answer."""
    link.set_siw(SIW[siw])
    for length in range(MOST + 1) if soak(request.config) else LENGTHS:
        data, answer = data_of(length), data_of(MOST - length)
        with make_ends() as ends:
            caller, listener = called(link, ends, connects, data)
            listener.accept(answer)
            told = caller.event()
            assert (told["event"], told["status"], told["data"]) == ("ESTABLISHED", 0, answer)
            told = listener.event()
            assert (told["event"], told["status"], told["data"]) == ("ESTABLISHED", 0, "")


@pytest.mark.combinations(4, connects=ENDS, length=[0, 1, 100, MOST], siw=["revision 2", "revision 1"])
def test_a_reject(link: Link, make_ends: MakeEnds, connects: str, length: int, siw: str) -> None:
    link.set_siw(SIW[siw])
    with make_ends() as ends:
        caller, listener = called(link, ends, connects)
        listener.reject(data_of(length))
        told = caller.event()
        assert (told["event"], told["status"], told["data"]) == ("REJECTED", -104, data_of(length))


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


# ---------------------------------------------------------------- ends in order, and deaths


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


@pytest.mark.parametrize("connects", ENDS)
def test_the_guests_process_is_killed(link: Link, join_pair: JoinPair, connects: str) -> None:
    here, there = join_pair("rnic", connects)
    here.post_recv(3, [(0, 100)])
    link.guest.check(f"kill -9 {there.pid()}")
    assert here.event()["event"] == "DISCONNECTED"
    assert [(wc.wr_id, wc.status) for wc in here.poll(1)] == [(3, "WR_FLUSH_ERR")]


@pytest.mark.parametrize("opcode", ["RDMA_WRITE", "RDMA_READ"])
def test_the_guests_process_is_killed_amid_traffic(link: Link, join_pair: JoinPair, opcode: str) -> None:
    here, there = join_pair("rnic", "rnic")
    pid, posted, done = there.pid(), 0, 0

    def fill() -> bool:
        """Keep it busy; whether it has ended."""
        nonlocal posted, done
        while posted - done < 50 and here.state() == "RTS":
            here.post_send(rdma(opcode, there, 0, [(0, 1 << 20)], wr_id=posted))
            posted += 1
        done += len(here.poll(1, 0.01))
        return here.state() == "ERR"

    until(lambda: fill() or done > 20, "traffic")
    job = link.guest.spawn(f"kill -9 {pid}")
    until(fill, "the end")
    job.wait()
    assert here.event()["event"] == "DISCONNECTED"
    statuses = [wc.status for wc in here.poll(posted - done)]
    assert len(statuses) == posted - done
    assert "SUCCESS" not in statuses[statuses.index(next(s for s in statuses if s != "SUCCESS")) :]


def test_the_guests_process_is_killed_before_it_answers(link: Link, make_ends: MakeEnds) -> None:
    with make_ends() as ends:
        caller, listener = called(link, ends, "rnic")
        link.guest.check(f"kill -9 {listener.pid()}")
        told = caller.event()
        assert told["event"] in ("REJECTED", "UNREACHABLE"), told


@pytest.mark.usefixtures("over_iwarp")
def test_rnics_process_is_killed(link: Link) -> None:
    link.set_siw()
    address, port = link.guest_ip["ipv4"], link.port()
    job = original(link, f"rping -s -a {address} -p {port} -v")
    link.guest_listens(port)
    with rnic("rping", "-c", "-a", address, "-p", port, "-v", "-C", 100000) as process:
        job.expect("rdma-ping-20:")
        process.send_signal(signal.SIGKILL)
        job.expect("server DISCONNECT EVENT")
        job.wait()


def test_the_link_goes_down(link: Link, join_pair: JoinPair) -> None:
    """A READ that nobody acknowledges ends as ACK_TIMEOUT says; siw hears of it later."""
    here, there = join_pair("rnic", "rnic", rnic={"ack_timeout": 16})  # 0.27 s, 8 times
    link.guest.check("ip link set eth0 down")
    try:
        here.post_send(rdma("RDMA_READ", there, 0, [(0, 100)], wr_id=7))
        told = here.event()
        assert (told["event"], told["status"]) == ("DISCONNECTED", -110)
        assert [(wc.wr_id, wc.status) for wc in here.poll(1)] == [(7, "RETRY_EXC_ERR")]
    finally:
        link.guest.check("ip link set eth0 up")


def test_tshark_reads_what_was_sent(wire: Wire) -> None:
    """Processes that are killed, and ports where nobody listens, reset connections."""
    report = wire.check_iwarp(allow=["Connection reset (RST)"])
    assert "TERMINATE" in report.opcodes
