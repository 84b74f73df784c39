# SPDX-License-Identifier: Apache-2.0
"""When a connection of iWARP begins and ends; and that nobody writes memory by it then, whoever has made its
queue pair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from errno import ENOMEM, ETIMEDOUT
from socket import socket
from typing import Any

import pytest

from rdmacm.ends import HASTY, WAIT, expect
from rdmacm.iwarp_peer import REQUEST, Stranger, calling, joined, listening, resolved, service_of
from rnic import MR, AccessFlags, QPCap, QPInitAttr, QPState, VerbsError
from rnic.enums import EventType as AsyncEventType
from rnic.mpa import Startup
from rnic.rdmacm import CmId, ConnParam, EventChannel, EventType
from rnic.rdmacm.iwcm import sockets, stream
from rnic.rdmacm.iwcm.connection import IwConnection
from rnic.rdmacm.iwcm.manager import IwService
from rnic.rdmacm.timers import Timer, Timers
from rnic.verbs.qp import QP, QPAttr
from rnic.wire import RdmapOpcode, Segment, Tagged
from waiting import until

E_ = EventType
RTR = Segment(Tagged(opcode=RdmapOpcode.WRITE, last=True), None, b"")


@contextmanager
def programs_qp(one: CmId) -> Iterator[tuple[QP, MR]]:
    """A queue pair that the program has made, not the id; and memory that its peer may write."""
    assert one.verbs is not None
    with one.verbs.alloc_pd() as pd, one.verbs.create_cq(4) as cq:
        with pd.create_qp(QPInitAttr(cq, cq, cap=QPCap())) as qp:
            with pd.reg_mr(bytearray(8), AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE) as mr:
                qp.modify(one.init_qp_attr(QPState.INIT))
                qp.modify(one.init_qp_attr(QPState.RTR))
                yield qp, mr


@dataclass
class Case:
    """A stranger who has been accepted, with the reply, and says nothing."""

    stranger: Stranger
    server: CmId
    listener: CmId
    service: IwService
    qp: QP
    mr: MR


@contextmanager
def accepted(listener: CmId) -> Iterator[Case]:
    with calling(listener.get_src_port()) as stranger:
        stranger.say(REQUEST)
        with expect(listener.channel, E_.CONNECT_REQUEST).id as server, programs_qp(server) as (qp, mr):
            server.accept(ConnParam(qp_num=qp.qp_num))
            stranger.hear_frame()
            yield Case(stranger, server, listener, service_of(server), qp, mr)


def write_to(mr: MR) -> Segment:
    return Segment(Tagged(opcode=RdmapOpcode.WRITE, last=True, stag=mr.rkey, offset=mr.addr), None, b"PWNED")


def is_over(case: Case) -> None:
    assert case.qp.state is QPState.ERR
    assert case.qp.qp_num not in case.service.streams
    with suppress(ConnectionError):
        case.stranger.say(write_to(case.mr))
    assert case.stranger.is_over()
    assert bytes(case.mr.buf[:5]) == bytes(5)


def is_late(case: Case) -> None:
    expect(case.listener.channel, E_.UNREACHABLE)


def gives_way(case: Case) -> None:
    with accepted(case.listener):
        expect(case.listener.channel, E_.UNREACHABLE)


def is_destroyed(case: Case) -> None:
    case.server.destroy()


def is_late_for_a_listener_that_has_gone(case: Case) -> None:
    case.listener.destroy()
    expect(case.server.channel, E_.UNREACHABLE)


def is_late_for_one_who_has_changed_his_mind(case: Case) -> None:
    with pytest.raises(VerbsError, match="nothing to refuse"):
        case.server.reject()
    expect(case.listener.channel, E_.UNREACHABLE)


def loses_the_device(case: Case) -> None:
    assert case.server.verbs is not None
    case.server.verbs.raise_event(AsyncEventType.DEVICE_FATAL)
    expect(case.listener.channel, E_.UNREACHABLE)


@pytest.mark.parametrize(
    ("ends", "limits"),
    [
        (is_late, {"handshake_timeout": 0.2}),
        (is_late_for_a_listener_that_has_gone, {"handshake_timeout": 0.2}),
        (is_late_for_one_who_has_changed_his_mind, {"handshake_timeout": 0.2}),
        (gives_way, {"max_half_open": 1}),
        (is_destroyed, {}),
        (loses_the_device, {}),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_a_peer_that_is_never_ready_has_no_stream_behind_the_end(
    ends: Callable[[Case], None], limits: dict[str, Any]
) -> None:
    with EventChannel() as channel, listening(channel, **limits) as listener:
        with accepted(listener) as case:
            ends(case)
            is_over(case)


def test_a_queue_pair_that_does_not_begin_has_no_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: object) -> None:
        raise VerbsError(ENOMEM, "no memory for the buffers of a connection", "modify_qp")

    monkeypatch.setattr(stream, "to_rts", no_memory)
    with EventChannel() as channel, listening(channel) as listener, accepted(listener) as case:
        assert expect(channel, E_.CONNECT_ERROR).status == -ENOMEM
        assert case.qp.state is QPState.ERR
        case.stranger.say(write_to(case.mr))
        case.qp.close()
        assert case.stranger.is_over()
        assert bytes(case.mr.buf[:5]) == bytes(5)


def test_a_queue_pair_that_has_another_connection_keeps_it_when_the_id_of_the_first_goes() -> None:
    with EventChannel() as channel, listening(channel) as listener, accepted(listener) as case:
        case.stranger.say(RTR)
        expect(channel, E_.ESTABLISHED)
        case.stranger.sock.close()
        expect(channel, E_.DISCONNECTED)
        case.qp.modify(QPAttr(qp_state=QPState.RESET))
        with calling(listener.get_src_port()) as stranger:
            stranger.say(REQUEST)
            with expect(channel, E_.CONNECT_REQUEST).id as server:
                case.qp.modify(server.init_qp_attr(QPState.INIT))
                server.accept(ConnParam(qp_num=case.qp.qp_num))
                stranger.hear_frame()
                case.server.destroy()
                stranger.say(RTR, write_to(case.mr))
                expect(channel, E_.ESTABLISHED)
                until(lambda: bytes(case.mr.buf[:5]) == b"PWNED", "the peer of the second writes")


def test_a_queue_pair_of_another_process_is_ordered_to_err() -> None:
    """It is ESTABLISHED when the orders are there, whether the peer is ready or not."""
    with EventChannel() as channel, listening(channel) as listener:
        with calling(listener.get_src_port()) as stranger:
            stranger.say(REQUEST)
            server = expect(channel, E_.CONNECT_REQUEST).id
            orders = server.orders = []
            server.accept(ConnParam(qp_num=17))
            expect(channel, E_.ESTABLISHED)
            assert [order.attr.qp_state for order in orders] == [QPState.RTS]
            stranger.hear_frame()
            server.destroy()
            assert [order.attr.qp_state for order in orders] == [QPState.ERR]
            assert stranger.is_over()


# ------------------------------------------------------------------ its beginning, and its end


def test_data_that_a_program_has_seen_establishes_a_connection() -> None:
    """The event of the device that says so may come later, and says nothing new."""
    with EventChannel() as channel, listening(channel) as listener, accepted(listener) as case:
        case.server.notify(AsyncEventType.COMM_EST)
        expect(channel, E_.ESTABLISHED)
        case.stranger.say(RTR, write_to(case.mr))
        until(lambda: bytes(case.mr.buf[:5]) == b"PWNED", "its peer may write")
        case.stranger.sock.close()
        expect(channel, E_.DISCONNECTED)
        assert not channel.has_events


def test_nothing_is_due_of_a_connection_that_is_up() -> None:
    with EventChannel() as channel, listening(channel, handshake_timeout=1000) as listener:
        with accepted(listener) as case:
            timers = service_of(listener).timers
            assert len(timers) == 1
            case.stranger.say(RTR)
            expect(channel, E_.ESTABLISHED)
            assert len(timers) == 0


def test_a_peer_that_takes_what_was_posted_has_time_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as it goes on; and then it does not close."""
    in_flight = iter([400, 300, 200, 100, 100])
    monkeypatch.setattr(IwConnection, "_find_in_flight", lambda _: next(in_flight))
    with EventChannel() as channel, listening(channel, timing=HASTY) as listener, accepted(listener) as case:
        case.stranger.say(RTR)
        expect(channel, E_.ESTABLISHED)
        case.server.disconnect()
        assert expect(channel, E_.DISCONNECTED).status == -ETIMEDOUT
        assert next(in_flight, None) is None
        is_over(case)


def test_whoever_does_not_want_to_wait_for_the_end_moves_the_queue_pair_to_err() -> None:
    with EventChannel() as channel, listening(channel) as listener, accepted(listener) as case:
        case.stranger.say(RTR)
        expect(channel, E_.ESTABLISHED)
        case.server.migrate_id(None)
        with ThreadPoolExecutor(1) as pool:
            leaving = pool.submit(case.server.disconnect)
            until(lambda: case.qp.state is QPState.SQD, "it waits for the peer to close")
            case.qp.modify(QPAttr(qp_state=QPState.ERR))
            leaving.result(WAIT)
        is_over(case)


def test_no_byte_is_lost_if_memory_is_short_behind_the_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the request, and of the reply."""
    read, receive = sockets.read, Startup.receive
    has_read = False
    short: list[str] = []

    def reading(sock: socket, most: int) -> bytes | None:
        nonlocal has_read
        data = read(sock, most)
        has_read = bool(data)
        return data

    def receiving(self: Startup, data: bytes, now: int) -> None:
        nonlocal has_read
        if has_read:
            has_read = False
            short.append(self.state.name)
            raise MemoryError
        receive(self, data, now)

    monkeypatch.setattr(sockets, "read", reading)
    monkeypatch.setattr(Startup, "receive", receiving)
    with joined():
        assert {"AWAIT_REQ", "REQ_SENT"} <= set(short)


class StopError(Exception):
    """What a signal's handler raises."""


def test_a_call_that_an_exception_has_ended_keeps_no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    at, called = Timers.at, list[Any]()

    def interrupted(self: Timers, due: int, call: Callable[[int], None]) -> Timer:
        at(self, due, call)
        called.append(call)
        raise StopError

    with resolved() as (_, _, one):
        with monkeypatch.context() as patch:
            patch.setattr(Timers, "at", interrupted)
            with pytest.raises(StopError):
                one.connect()
        line = called[0].__self__._calling
        assert line.sock.fileno() >= 0
        one.destroy_qp()
        one.destroy()
        assert line.sock.fileno() == -1
