# SPDX-License-Identifier: Apache-2.0
"""Listeners that were destroyed a moment ago, and who has their ports next."""

from __future__ import annotations

from errno import ENOMEM
from typing import Any, cast

import pytest

from rnic.enums import QPType
from rnic.errors import VerbsError
from rnic.rdmacm import CmId, EventChannel, EventType, IdState, Option, PortSpace, create_id
from rnic.ucma import commands, layouts, parking
from rnic.ucma.commands import Commands
from rnic.ucma.files import File, Handle
from rnic.ucma.layouts import SOCKADDR_IN, Cmd
from rnic.wire import RejReason
from ucma.client import Device, event_kind, listening, param, resolved, sockaddr
from waiting import until


def test_port_of_a_destroyed_listener_can_call(device: Device) -> None:
    listener, port = listening(device)
    device.destroy_id(listener)
    one = device.create_id()
    device.good(Cmd.BIND_IP, layouts.BIND_IP, id=one, addr=sockaddr(port))
    device.good(Cmd.RESOLVE_IP, layouts.RESOLVE_IP, id=one, dst_addr=sockaddr(9), timeout_ms=60_000)
    assert event_kind(device) == (EventType.ADDR_RESOLVED, one)
    route = layouts.ROUTE_RESP.read(device.good(Cmd.QUERY_ROUTE, layouts.QUERY, id=one))
    assert SOCKADDR_IN.read(route["src_addr"])["port"] == port.to_bytes(2, "big")


def test_port_of_a_destroyed_listener_has_options_when_it_is_bound(device: Device) -> None:
    listener, port = listening(device)
    device.destroy_id(listener)
    one = device.create_id()
    device.good(Cmd.BIND_IP, layouts.BIND_IP, id=one, addr=sockaddr(port))
    afonly = {"rest": bytes([1, 0, 0, 0]), "level": 0, "optname": Option.AFONLY, "optlen": 4}
    device.good(Cmd.SET_OPTION, layouts.SET_OPTION, id=one, **afonly)
    device.good(Cmd.LISTEN, layouts.LISTEN, id=one, backlog=5)
    assert called(device, port)[0] == EventType.CONNECT_REQUEST


def called(device: Device, port: int) -> tuple[int, int]:
    """The event, and its status, of a new id that connects to a port."""
    caller = resolved(device, port)
    device.good(Cmd.CONNECT, layouts.CONNECT, id=caller, conn_param=param())
    event = device.event()
    return event["event"], event["status"]


def test_port_of_a_destroyed_listener_refuses_if_it_is_only_bound(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parking, "TAKEN_NS", 10**8)
    listener, port = listening(device)
    device.destroy_id(listener)
    one = device.create_id()
    device.good(Cmd.BIND_IP, layouts.BIND_IP, id=one, addr=sockaddr(port))
    assert called(device, port)[0] == EventType.REJECTED  # it has waited for LISTEN, which did not come
    assert called(device, port) == (EventType.REJECTED, RejReason.INVALID_SERVICE_ID)
    device.good(Cmd.LISTEN, layouts.LISTEN, id=one, backlog=5)
    assert called(device, port)[0] == EventType.CONNECT_REQUEST


def test_program_ends_that_has_bound_the_port_of_a_destroyed_listener(path: str, device: Device) -> None:
    with Device(path) as other:
        listener, port = listening(other)
        other.destroy_id(listener)
        other.good(Cmd.BIND_IP, layouts.BIND_IP, id=other.create_id(), addr=sockaddr(port))
    assert called(device, port) == (EventType.REJECTED, RejReason.INVALID_SERVICE_ID)


def listener(channel: EventChannel, qp_type: QPType = QPType.RC, port: int = 0) -> CmId:
    one = create_id(channel, PortSpace.IB, qp_type=qp_type)
    one.bind_addr(("127.0.0.1", port))
    one.listen()
    return one


FILE = cast("File", None)


def test_few_listeners_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a port, and descriptors: the oldest goes for a new one."""
    monkeypatch.setattr(parking, "MOST", 3)
    with EventChannel() as channel:
        kept, ids = parking.Parking(), [listener(channel) for _ in range(5)]
        for one in ids:
            kept.park(one, FILE)
        assert [one.state for one in ids] == 2 * [IdState.DESTROYING] + 3 * [IdState.LISTEN]
        kept.close()


def test_a_listener_is_taken_over_by_its_kind() -> None:
    with EventChannel() as channel, create_id(channel, PortSpace.IB, qp_type=QPType.UD) as other:
        kept, one = parking.Parking(), listener(channel)
        kept.park(one, FILE)
        assert kept.take(one.get_local_addr(), Handle(1, 1, other, FILE)) is None
        kept.close()


@pytest.mark.parametrize("part", ["migrate_id", "destroy"])
def test_a_listener_is_its_programs_or_kept_though_memory_is_short(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(*_: object) -> None:
        raise MemoryError

    with EventChannel() as channel, listener(channel) as one:
        kept = parking.Parking()
        with monkeypatch.context() as patch:
            patch.setattr(CmId, part, short)
            with pytest.raises(MemoryError):
                kept.park(one, FILE)
                kept.clear()
        assert bool(kept) is (part == "destroy")
        kept.close()


def test_the_server_goes_on_when_memory_was_short_for_what_was_due(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, expire = [], Commands.expire

    def short(of: Commands, now: int) -> None:
        if not done:
            done.append(now)
            raise MemoryError
        expire(of, now)

    monkeypatch.setattr(Commands, "expire", short)
    device.destroy_id(listening(device)[0])
    device.create_id()
    assert done
    device.create_id()


def test_a_file_whose_end_was_interrupted_ends(
    path: str, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ids go when memory is there again."""
    done, end = [], Commands.end

    def short(of: Commands, file: File) -> None:
        if not done:
            done.append(file)
            raise MemoryError
        end(of, file)

    monkeypatch.setattr(Commands, "end", short)
    with Device(path) as other:
        port = listening(other)[1]
    assert called(device, port)[0] == EventType.REJECTED
    assert done


def test_an_id_that_has_moved_to_another_file_is_called_when_it_listens(
    path: str, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parking, "TAKEN_NS", 10**8)
    listener, port = listening(device)
    device.destroy_id(listener)
    one = device.create_id()
    device.good(Cmd.BIND_IP, layouts.BIND_IP, id=one, addr=sockaddr(port))
    with Device(path) as other:
        other.good(Cmd.MIGRATE_ID, layouts.MIGRATE_ID, id=one, fd=99)
        assert called(device, port)[0] == EventType.REJECTED  # it has waited for LISTEN, which did not come
        assert other.bytes_waiting() == 0
        other.good(Cmd.LISTEN, layouts.LISTEN, id=one, backlog=5)
        caller = resolved(device, port)
        device.good(Cmd.CONNECT, layouts.CONNECT, id=caller, conn_param=param())
        assert other.event()["event"] == EventType.CONNECT_REQUEST


def test_a_port_that_cannot_be_bound_anew_is_lost_once(
    device: Device, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = commands.create_id

    def short(*what: Any, **how: Any) -> CmId:
        if "context" in how:
            raise VerbsError(ENOMEM, "no memory", "create_id")
        return real(*what, **how)

    monkeypatch.setattr(parking, "TAKEN_NS", 10**7)
    monkeypatch.setattr(commands, "create_id", short)
    listener, port = listening(device)
    device.destroy_id(listener)
    device.good(Cmd.BIND_IP, layouts.BIND_IP, id=device.create_id(), addr=sockaddr(port))
    until(lambda: "has lost its port" in caplog.text, "the id has lost its port")
    for _ in range(3):
        device.create_id()  # each is a turn of the server
    assert caplog.text.count("has lost its port") == 1
