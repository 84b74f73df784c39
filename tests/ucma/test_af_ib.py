# SPDX-License-Identifier: Apache-2.0
"""Addresses of InfiniBand (AF_IB): over RoCE an id can be bound to any address, and nothing else."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from rnic.enums import QPType
from rnic.rdmacm import EventType
from rnic.ucma import layouts
from rnic.ucma.layouts import CMA_HDR, SOCKADDR_IB, Cmd
from rnic.ucma.sockaddrs import AF_IB
from rnic.ucma.structs import QUERY_ADDR, QUERY_GID
from ucma.client import HOST, Device, param, resolved, sockaddr

TCP, UDP, IB = 0x106, 0x111, 0x13F
GID = b"\xfe\x80" + bytes(14)
PS_MASK = (1 << 64) - (1 << 16)


def ib(service: int = 0, mask: int = 0, gid: bytes = b"") -> bytes:
    return SOCKADDR_IB.write(
        family=AF_IB, addr=gid, sid=service.to_bytes(8, "big"), sid_mask=mask.to_bytes(8, "big")
    )


def bind(device: Device, number: int, addr: bytes) -> int:
    return device.command(Cmd.BIND, layouts.BIND, id=number, addr=addr, addr_size=len(addr))[0]


def queried(device: Device, number: int, option: int) -> dict[str, Any]:
    return layouts.ADDR_RESP.read(device.good(Cmd.QUERY, layouts.QUERY, id=number, option=option))


def test_any_address_can_be_bound(device: Device) -> None:
    """As librdmacm tries it, to find out whether a kernel knows such addresses."""
    made = device.good(Cmd.CREATE_ID, layouts.CREATE_ID, uid=1, ps=IB, qp_type=QPType.RC)
    one = layouts.ID_RESP.read(made)["id"]
    assert bind(device, one, ib(TCP << 16, PS_MASK)) == 0
    assert bind(device, one, ib(TCP << 16, PS_MASK)) == -errno.EINVAL
    for option in (QUERY_ADDR, QUERY_GID):
        addr = queried(device, one, option)
        assert addr["src_size"] == addr["dst_size"] == SOCKADDR_IB.size
        source = SOCKADDR_IB.read(addr["src_addr"])
        service = int.from_bytes(source["sid"], "big")
        assert (source["family"], source["addr"]) == (AF_IB, bytes(16))
        assert service >> 16 == TCP
        assert service & 0xFFFF != 0
        assert source["sid_mask"] == b"\xff" * 8


@pytest.mark.parametrize(
    ("ps", "addr", "expected"),
    [
        (TCP, ib(gid=GID), errno.ENODEV),
        (TCP, ib(UDP << 16, PS_MASK), errno.EPROTONOSUPPORT),
        (TCP, ib()[:28], errno.EINVAL),
        (2, ib(), errno.EPROTONOSUPPORT),  # IPOIB
    ],
)
def test_other_addresses_are_refused(device: Device, ps: int, addr: bytes, expected: int) -> None:
    assert bind(device, device.create_id(ps), addr) == -expected


def test_there_is_nothing_to_resolve(device: Device) -> None:
    one = device.create_id()
    to = {"dst_addr": ib(gid=GID), "dst_size": SOCKADDR_IB.size, "timeout_ms": 2000}
    assert device.command(Cmd.RESOLVE_ADDR, layouts.RESOLVE_ADDR, id=one, **to)[0] == -errno.ENODEV
    assert bind(device, one, ib()) == 0
    to = {"dst_addr": sockaddr(9), "dst_size": 16, "timeout_ms": 2000}
    assert device.command(Cmd.RESOLVE_ADDR, layouts.RESOLVE_ADDR, id=one, **to)[0] == -errno.EINVAL


@pytest.mark.parametrize("ps", [TCP, UDP])
def test_a_listener_has_requests_of_ip_with_their_header(device: Device, ps: int) -> None:
    one = device.create_id(ps)
    assert bind(device, one, ib()) == 0
    device.good(Cmd.LISTEN, layouts.LISTEN, id=one, backlog=5)
    port = (
        int.from_bytes(SOCKADDR_IB.read(queried(device, one, QUERY_ADDR)["src_addr"])["sid"], "big") & 0xFFFF
    )
    caller = resolved(device, port, ps)
    device.good(Cmd.CONNECT, layouts.CONNECT, id=caller, conn_param=param(b"hello"))
    request = device.event()
    assert request["event"] == EventType.CONNECT_REQUEST
    said = request["conn" if ps == TCP else "ud"]["private_data"]
    assert CMA_HDR.read(said)["ip_version"] == 0x40
    assert said[CMA_HDR.size :].startswith(b"hello")
    addr = queried(device, request["id"], QUERY_ADDR)
    for name in ("src_addr", "dst_addr"):
        found = SOCKADDR_IB.read(addr[name])
        assert found["family"] == AF_IB
        assert found["addr"].endswith(bytes(int(part) for part in HOST.split(".")))
    device.good(Cmd.REJECT, layouts.REJECT, id=request["id"])
    assert device.event()["event"] in (EventType.REJECTED, EventType.UNREACHABLE)
