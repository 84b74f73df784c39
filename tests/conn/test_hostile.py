# SPDX-License-Identifier: Apache-2.0
"""A peer that speaks plain RDMA-CM to a server of endpoints: it is refused or ended in words."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from random import Random
from struct import unpack_from
from time import monotonic
from typing import Any

import pytest

import rnic
import rnic.aio
from conn.frames import ABORT, STOP, TAKEN, TALK, announce, frame, message
from conn.peers import HOST, SMALL, WAIT, descriptors, quiet
from conn.test_servers import connect, echo, served
from rdmacm.ends import FAST, IWARP
from rnic import MR, SGE, QPCap, SendFlags, SendWR, VerbsError, WCStatus, WROpcode
from rnic.endpoint import AbortedError, EndpointError, RefusedError, VersionError, parse_refusal
from rnic.endpoint.hello import Hello
from rnic.rdmacm import CmId, ConnParam, EventType, create_id
from waiting import until

CASES = 1500 if os.environ.get("RNIC_SOAK") else 60
HELLO = Hello(1, 1, SMALL.access, SMALL.receive_size, SMALL.receives, 4, 1 << 16).emit()
HELLO_2 = replace(SMALL, max_regions=4, max_message=1 << 16).hello().emit()
NEWER = [announce(0, 100), announce(1, 1 << 14, tag=5), frame(TAKEN), frame(STOP), frame(STOP, 1)]
"""SENDs of version 2."""
RECEIVES = 32
ROOM = 4096


class Dialled:
    """A queue pair that is connected to a server, with receives for what it says."""

    def __init__(self, one: CmId, mr: MR) -> None:
        self.one, self._mr = one, mr
        for n in range(1, RECEIVES + 1):
            one.post_recv(SGE(self._mr, n * ROOM, ROOM), wr_id=n)

    def post(self, *sends: bytes, opcode: WROpcode = WROpcode.SEND, **more: Any) -> WCStatus:
        """Post these, one after the other; how the last of them ended, or the first that failed."""
        assert self.one.qp is not None
        status = WCStatus.SUCCESS
        for data in sends:
            self._mr.buf[: len(data)] = data
            pieces = [SGE(self._mr, 0, len(data))] if data else []
            self.one.qp.post_send(SendWR(1, opcode, SendFlags.SIGNALED, pieces, **more))
            status = self.one.get_send_comp(WAIT).status
            if status is not WCStatus.SUCCESS:
                break
        return status

    def hear(self) -> bytes:
        """The next SEND of the server."""
        got = self.one.get_recv_comp(WAIT)
        assert got.ok
        return bytes(self._mr.buf[got.wr_id * ROOM :][: got.byte_len])


@contextmanager
def dialled(server: rnic.Listener | rnic.aio.Listener, private_data: bytes) -> Iterator[Dialled]:
    with create_id(timing=FAST) as one:
        one.resolve_addr(None, (HOST, server.port))
        one.resolve_route()
        one.create_qp(cap=QPCap(max_send_wr=4, max_recv_wr=RECEIVES))
        with one.reg_msgs(bytearray(ROOM * (RECEIVES + 1))) as mr:
            found = Dialled(one, mr)
            one.connect(ConnParam(private_data, retry_count=1))
            if IWARP:
                assert one.qp is not None
                one.qp.confirm_stream()
            yield found


def refused(server: rnic.Listener, private_data: bytes) -> Exception | None:
    """How a server words that it does not take a hello; None when it does."""
    with create_id(timing=FAST) as one:
        one.resolve_addr(None, (HOST, server.port))
        one.resolve_route()
        one.create_qp()
        with suppress(VerbsError):
            one.connect(ConnParam(private_data))
            return None
        assert one.event is not None
        assert one.event.event is EventType.REJECTED
        assert isinstance(one.event.param, ConnParam)
        return parse_refusal(one.event.param.private_data)


@pytest.fixture
def server(caplog: pytest.LogCaptureFixture) -> Iterator[rnic.Listener]:
    """One that echoes, serves well afterwards, keeps nothing, and whose agents met no surprise."""
    before = descriptors()
    with served(echo) as found, connect(found) as beside:
        yield found
        for conn in (beside, connect(found)):
            conn.send(b"still served")
            assert conn.recv(WAIT) == b"still served"
            conn.close()
    quiet(before)
    assert not [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR]


# ------------------------------------------------------------ hellos


@pytest.mark.parametrize(
    ("hello", "words"),
    [
        (b"", "is no rnic endpoint"),
        (b"rnEP" + bytes(20), "offers versions 0 to 0"),
        (b"rnEP\x02\x01" + HELLO[6:], "offers versions 2 to 1"),
        (HELLO[:8] + bytes(4) + HELLO[12:], "receives of 0 bytes"),
        (HELLO[:8] + b"\xff" * 4 + HELLO[12:], "receives of 4294967295 bytes"),
        (HELLO[:12] + bytes(2) + HELLO[14:], "speaks of 0 receives"),
    ],
)
def test_a_hello_that_cannot_be_is_refused_in_words(server: rnic.Listener, hello: bytes, words: str) -> None:
    error = refused(server, hello)
    assert isinstance(error, RefusedError)
    assert words in str(error)


def test_a_version_of_tomorrow_is_told_ours(server: rnic.Listener) -> None:
    assert isinstance(refused(server, b"rnEP\x07\x09" + HELLO[6:]), VersionError)


def test_any_hello_is_taken_or_refused_in_words(server: rnic.Listener) -> None:
    outcomes = set()
    for seed in range(CASES):
        rng = Random(seed)
        hello = bytearray(HELLO)
        for _ in range(rng.choice((1, 1, 2, 4))):
            hello[rng.randrange(len(hello))] = rng.choice((0, 1, 0x7F, 0xFF, rng.randrange(256)))
        error = refused(server, bytes(hello[: rng.choice((None, None, rng.randrange(25)))]))
        assert error is None or (str(error).isprintable() and "no reason" not in str(error))
        outcomes.add(type(error))
    assert {type(None), RefusedError} <= outcomes


# ------------------------------------------------------------ what follows a hello


def test_any_sends_end_their_connection_alone(server: rnic.Listener) -> None:
    for seed in range(CASES // 2):
        rng = Random(seed)
        hello = rng.choice([HELLO, HELLO_2])
        known = [*TALK, message(0, b"hello"), *(NEWER if hello is HELLO_2 else [])]
        sends = [rng.choice(known) for _ in range(rng.randrange(1, 6))]
        if rng.random() < 0.7:
            spoilt = bytearray(sends[-1])
            spoilt[rng.randrange(len(spoilt))] = rng.randrange(256)
            sends[-1] = rng.choice([bytes(spoilt), rng.randbytes(rng.randrange(100)), b""])
        with dialled(server, hello) as one, suppress(VerbsError):
            one.post(*sends)


def pumped(conn: rnic.Connection) -> bool:
    """The end has done what it can, and no call waits."""
    conn._core.pump(monotonic())
    return True


@pytest.mark.parametrize("late", [False, True], ids=["in time", "too late"])
def test_a_stop_takes_an_announced_message_back_unless_it_is_too_late(late: bool) -> None:
    """In time: it has not been READ, as the backlog has no room for it and nobody waits."""

    def take(conn: rnic.Connection) -> None:
        if not late:
            until(lambda: pumped(conn) and told, "the peer hears that it is taken back")
        got.append(conn.recv(WAIT))
        if late:
            got.append(conn.recv(WAIT))
        with suppress(EndpointError):
            conn.recv(WAIT)

    got, told = list[bytes](), list[bytes]()
    data = bytes(range(100)) * 200
    with (
        served(take) as server,
        dialled(server, HELLO_2) as one,
        one.one.reg_read(bytearray(data)) as region,
    ):
        one.post(announce(0, len(data), region.addr, region.rkey))
        if late:
            told.append(one.hear())
        one.post(frame(STOP))
        if not late:
            told.append(one.hear())
        one.post(message(1, b"behind it"))
        until(lambda: len(got) == 1 + late, "the messages")
    assert got == [data, b"behind it"][not late :]
    assert told == [frame(TAKEN, refill=1 if late else 2)]


@pytest.mark.parametrize("text", [b"\x1b[2J\xff bye\n", b"\x00" * 60, b""])
def test_what_an_abort_says_is_shown_without_what_a_terminal_obeys(text: bytes) -> None:
    raised: list[AbortedError] = []

    def hear(conn: rnic.Connection) -> None:
        with pytest.raises(AbortedError) as caught:
            conn.recv(WAIT)
        raised.append(caught.value)

    with served(hear) as server, dialled(server, HELLO) as one:
        one.post(frame(ABORT, 99, text))
        until(lambda: bool(raised), "it is heard")
    assert raised[0].reason == 99
    assert str(raised[0]).startswith("the peer aborted the connection: ")
    assert str(raised[0]).isprintable()


def test_a_send_that_is_longer_than_the_receives(server: rnic.Listener) -> None:
    with dialled(server, HELLO) as one:
        assert one.post(bytes(SMALL.receive_size + 1)) is WCStatus.REM_INV_REQ_ERR


@pytest.mark.parametrize("opcode", [WROpcode.RDMA_WRITE, WROpcode.RDMA_READ])
def test_memory_that_was_not_shared_is_out_of_reach(server: rnic.Listener, opcode: WROpcode) -> None:
    with dialled(server, HELLO) as one:
        status = one.post(bytes(64), opcode=opcode, remote_addr=0x1000, rkey=0x1234)
        assert status is WCStatus.REM_ACCESS_ERR


def test_a_write_with_immediate_is_no_message(server: rnic.Listener) -> None:
    """It takes a receive and leaves nothing in it."""
    with dialled(server, HELLO) as one:
        assert one.post(message(0, b"hello")) is WCStatus.SUCCESS
        assert one.post(b"", opcode=WROpcode.RDMA_WRITE_WITH_IMM, imm_data=7) is WCStatus.SUCCESS
        assert one.post(*(message(n, b"and?") for n in range(1, 100))) is not WCStatus.SUCCESS


@pytest.mark.parametrize("hello", [HELLO, b""])
def test_whoever_is_gone_before_the_server_looks_leaves_nothing(hello: bytes) -> None:
    before = descriptors()
    with rnic.listen(HOST, 0, config=SMALL) as server:
        listener = server._desk.cm_id
        with create_id(timing=FAST) as one:
            one.resolve_addr(None, (HOST, server.port))
            one.resolve_route()
            one.create_qp()
            one.sync = False
            one.connect(ConnParam(hello))
            until(lambda: bool(listener.waiting), "the request is there")
        if not IWARP:
            until(lambda: "REJ" in listener.statistics().received, "so is the end")
        with pytest.raises(TimeoutError):
            server.accept(0.1)
    quiet(before)


def test_a_write_with_immediate_is_not_read_from_beyond_its_receive() -> None:
    """Its completion speaks of the bytes in the region, of which none is in the receive."""

    def share(conn: rnic.Connection) -> None:
        conn.share(bytearray(2 * SMALL.receive_size))
        for _ in conn:
            pass

    with served(share) as server, dialled(server, HELLO) as one:
        _, addr, _, rkey, _ = unpack_from(">QQQII", one.hear())
        size = SMALL.receive_size + 1
        where = {"remote_addr": addr, "rkey": rkey}
        assert one.post(bytes(size), opcode=WROpcode.RDMA_WRITE_WITH_IMM, **where) is WCStatus.SUCCESS
        assert b"a SEND of 0 bytes" in one.hear()
