# SPDX-License-Identifier: Apache-2.0
"""RDMA_OPTION_IB_PATH: a program gives the path to its peer, instead of asking for it."""

from __future__ import annotations

import errno

import pytest

from rnic.enums import MTU, QPState
from rnic.rdmacm import EventType
from rnic.ucma import layouts
from rnic.ucma.commands import LEVEL_IB, OPTION_IB_PATH
from rnic.ucma.layouts import PATH_DATA, Cmd
from rnic.ucma.structs import QUERY_PATH
from ucma.client import Device, event_kind, listening, param, resolved, sockaddr

UDP = 0x111
ALTERNATE = PATH_DATA.write(flags=4)


def path_of(device: Device, number: int) -> bytes:
    data = device.good(Cmd.QUERY, layouts.QUERY, id=number, option=QUERY_PATH)
    return data[layouts.PATH_RESP.size :]


def changed(path: bytes, **places: int) -> bytes:
    """The path with other bytes in its record, by their places: at_54=2."""
    data = bytearray(path)
    for place, value in places.items():
        data[PATH_DATA.offset("path_rec") + int(place.removeprefix("at_"))] = value
    return bytes(data)


def give(device: Device, number: int, value: bytes) -> int:
    fields = {"id": number, "level": LEVEL_IB, "optname": OPTION_IB_PATH, "optlen": len(value)}
    return device.command(Cmd.SET_OPTION, layouts.SET_OPTION, rest=value, **fields)[0]


def unrouted(device: Device, port: int, ps: int = 0x106) -> int:
    number = device.create_id(ps)
    device.good(Cmd.RESOLVE_IP, layouts.RESOLVE_IP, id=number, dst_addr=sockaddr(port), timeout_ms=60_000)
    assert event_kind(device) == (EventType.ADDR_RESOLVED, number)
    return number


@pytest.mark.parametrize("ps", [0x106, UDP])
def test_a_path_that_is_given_is_used(device: Device, ps: int) -> None:
    _, port = listening(device, ps)
    given = changed(path_of(device, resolved(device, port, ps)), at_48=0x28, at_47=7, at_54=0x82, at_56=0x89)
    one = unrouted(device, port, ps)
    assert give(device, one, ALTERNATE + given) == 0
    assert event_kind(device) == (EventType.ROUTE_RESOLVED, one)
    assert path_of(device, one) == given
    device.good(Cmd.CONNECT, layouts.CONNECT, id=one, conn_param=param())
    request = device.event()
    assert request["event"] == EventType.CONNECT_REQUEST
    if ps != UDP:
        attr = device.good(Cmd.INIT_QP_ATTR, layouts.INIT_QP_ATTR, id=request["id"], qp_state=QPState.RTR)
        found = layouts.QP_ATTR.read(attr)
        route = layouts.AH_ATTR.read(found["ah_attr"])
        assert (found["path_mtu"], route["traffic_class"], route["hop_limit"]) == (MTU.MTU_512, 0x28, 7)


def test_what_is_no_path_is_refused(device: Device) -> None:
    _, port = listening(device)
    path = path_of(device, resolved(device, port))
    one = device.create_id()
    assert give(device, one, path) == -errno.EINVAL  # no address
    one = unrouted(device, port)
    for wrong in (b"", path + b"x", ALTERNATE, changed(path, at_54=0x80), changed(path, at_50=0x12)):
        assert give(device, one, wrong) == -errno.EINVAL
    assert give(device, one, changed(path, at_23=9)) == -errno.EOPNOTSUPP
    assert give(device, one, path) == 0
    assert event_kind(device) == (EventType.ROUTE_RESOLVED, one)
    assert give(device, one, path) == -errno.EINVAL  # it has one
