# SPDX-License-Identifier: Apache-2.0
"""Listeners that were destroyed a moment ago, and who has their ports next."""

from __future__ import annotations

import pytest

from rnic.rdmacm import EventType
from rnic.ucma import layouts, parking
from rnic.ucma.layouts import SOCKADDR_IN, Cmd
from rnic.wire import RejReason
from ucma.client import Device, event_kind, listening, param, resolved, sockaddr


def test_port_of_a_destroyed_listener_can_call(device: Device) -> None:
    listener, port = listening(device)
    device.destroy_id(listener)
    one = device.create_id()
    device.good(Cmd.BIND_IP, layouts.BIND_IP, id=one, addr=sockaddr(port))
    device.good(Cmd.RESOLVE_IP, layouts.RESOLVE_IP, id=one, dst_addr=sockaddr(9), timeout_ms=2000)
    assert event_kind(device) == (EventType.ADDR_RESOLVED, one)
    route = layouts.ROUTE_RESP.read(device.good(Cmd.QUERY_ROUTE, layouts.QUERY, id=one))
    assert SOCKADDR_IN.read(route["src_addr"])["port"] == port.to_bytes(2, "big")


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
