# SPDX-License-Identifier: Apache-2.0
"""Debian's librdmacm with the names of `rnic.rdmacm`, as far as rdmacm.seat calls them (through ctypes)."""

from __future__ import annotations

import ctypes as c
import os
import select
import socket
import struct
from dataclasses import dataclass
from enum import IntEnum
from errno import EAGAIN
from typing import Any, NamedTuple

CM = c.CDLL("librdmacm.so.1", use_errno=True)
VERBS = c.CDLL("libibverbs.so.1", use_errno=True)
PS_TCP, QPT_RC, QP_STATE_MASK = 0x0106, 2, 1
OPTIONS = (c.c_uint8, c.c_int, c.c_int, c.c_uint8)  # TOS, REUSEADDR, AFONLY, ACK_TIMEOUT

EventType = IntEnum(  # type: ignore[misc]
    "EventType",
    "ADDR_RESOLVED ADDR_ERROR ROUTE_RESOLVED ROUTE_ERROR CONNECT_REQUEST CONNECT_RESPONSE CONNECT_ERROR "
    "UNREACHABLE REJECTED ESTABLISHED DISCONNECTED DEVICE_REMOVAL MULTICAST_JOIN MULTICAST_ERROR ADDR_CHANGE "
    "TIMEWAIT_EXIT",
    start=0,
)
QPState = IntEnum("QPState", "RESET INIT RTR RTS SQD SQE ERR", start=0)  # type: ignore[misc]


class RawParam(c.Structure):
    """struct rdma_conn_param."""

    _fields_ = (
        ("private_data", c.c_void_p),
        ("private_data_len", c.c_uint8),
        ("responder_resources", c.c_uint8),
        ("initiator_depth", c.c_uint8),
        ("flow_control", c.c_uint8),
        ("retry_count", c.c_uint8),
        ("rnr_retry_count", c.c_uint8),
        ("srq", c.c_uint8),
        ("qp_num", c.c_uint32),
    )


class RawId(c.Structure):
    """The beginning of struct rdma_cm_id."""

    _fields_ = tuple((name, c.c_void_p) for name in ("verbs", "channel", "context", "qp"))


class RawEvent(c.Structure):
    """struct rdma_cm_event of a connected id."""

    _fields_ = (
        ("id", c.c_void_p),
        ("listen_id", c.c_void_p),
        ("event", c.c_int),
        ("status", c.c_int),
        ("param", RawParam),
    )


class Cap(c.Structure):
    """struct ibv_qp_cap."""

    _fields_ = tuple((name, c.c_uint32) for name in ("send_wr", "recv_wr", "send_sge", "recv_sge", "inline"))


class QPInit(c.Structure):
    """struct ibv_qp_init_attr."""

    _fields_ = (
        ("context", c.c_void_p),
        ("send_cq", c.c_void_p),
        ("recv_cq", c.c_void_p),
        ("srq", c.c_void_p),
        ("cap", Cap),
        ("qp_type", c.c_int),
        ("sq_sig_all", c.c_int),
    )


def call(name: str, *arguments: Any) -> None:
    """A call of librdmacm that fails with -1 and errno."""
    if getattr(CM, name)(*arguments) != 0:
        code = c.get_errno()
        raise OSError(code, os.strerror(code), name)


def sockaddr(address: tuple[str, int]) -> Any:
    family = struct.pack("=H", socket.AF_INET)
    return c.create_string_buffer(family + struct.pack("!H4s8x", address[1], socket.inet_aton(address[0])))


@dataclass(frozen=True)
class ConnParam:
    private_data: bytes = b""
    responder_resources: int = 255
    initiator_depth: int = 255
    flow_control: bool = True
    retry_count: int = 7
    rnr_retry_count: int = 7
    srq: bool = False
    qp_num: int = 0

    @classmethod
    def of(cls, raw: RawParam) -> ConnParam:
        data = c.string_at(raw.private_data, raw.private_data_len) if raw.private_data else b""
        return cls(data, *(getattr(raw, name) for name, *_ in RawParam._fields_[2:]))

    def raw(self) -> Any:
        fields = [getattr(self, name) for name, *_ in RawParam._fields_[2:]]
        kept = c.create_string_buffer(self.private_data, max(len(self.private_data), 1))
        raw = RawParam(c.cast(kept, c.c_void_p), len(self.private_data), *fields)
        raw.kept = kept
        return raw


class Event:
    def __init__(self, channel: EventChannel, at: int) -> None:
        raw = RawEvent.from_address(at)
        self._at = at
        self.event, self.status, self.param = EventType(raw.event), raw.status, ConnParam.of(raw.param)
        self.id = channel.known.get(raw.id) or CmId(channel, raw.id)

    def __repr__(self) -> str:
        return f"{self.event.name} {self.status}"

    def __enter__(self) -> Event:
        return self

    def __exit__(self, *_: object) -> None:
        call("rdma_ack_cm_event", c.c_void_p(self._at))


class EventChannel:
    def __init__(self) -> None:
        CM.rdma_create_event_channel.restype = c.c_void_p
        self.at = c.c_void_p(CM.rdma_create_event_channel())
        assert self.at.value
        self._fd = c.c_int.from_address(self.at.value).value
        os.set_blocking(self._fd, False)
        self.known: dict[int, CmId] = {}

    def get_cm_event(self, timeout: float) -> Event:
        if not select.select([self._fd], [], [], timeout)[0]:
            raise TimeoutError
        found = c.c_void_p()
        try:
            call("rdma_get_cm_event", self.at, c.byref(found))
        except OSError as error:
            if error.errno == EAGAIN:
                raise TimeoutError from None
            raise
        assert found.value
        return Event(self, found.value)

    def close(self) -> None:
        CM.rdma_destroy_event_channel(self.at)

    def __enter__(self) -> EventChannel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class QP(NamedTuple):
    at: c.c_void_p

    @property
    def state(self) -> Any:
        attr, init = c.create_string_buffer(512), c.create_string_buffer(512)
        assert VERBS.ibv_query_qp(self.at, attr, QP_STATE_MASK, init) == 0
        return QPState(c.c_int.from_buffer(attr).value)


class CmId:
    def __init__(self, channel: EventChannel, at: int) -> None:
        self._channel = channel
        self._at = c.c_void_p(at)
        channel.known[at] = self

    @property
    def qp(self) -> QP | None:
        assert self._at.value
        found = RawId.from_address(self._at.value).qp
        return QP(c.c_void_p(found)) if found else None

    def bind_addr(self, address: tuple[str, int]) -> None:
        call("rdma_bind_addr", self._at, sockaddr(address))

    def resolve_addr(self, _: None, address: tuple[str, int]) -> None:
        call("rdma_resolve_addr", self._at, None, sockaddr(address), 2000)

    def resolve_route(self) -> None:
        call("rdma_resolve_route", self._at, 2000)

    def listen(self, backlog: int) -> None:
        call("rdma_listen", self._at, backlog)

    def get_src_port(self) -> int:
        return socket.ntohs(CM.rdma_get_src_port(self._at) & 0xFFFF)

    def create_qp(self) -> None:
        init = QPInit(cap=Cap(4, 4, 1, 1, 0), qp_type=QPT_RC)
        call("rdma_create_qp", self._at, None, c.byref(init))

    def destroy_qp(self) -> None:
        CM.rdma_destroy_qp(self._at)

    def connect(self, param: ConnParam | None) -> None:
        call("rdma_connect", self._at, c.byref(param.raw()) if param else None)

    def accept(self, param: ConnParam | None) -> None:
        call("rdma_accept", self._at, c.byref(param.raw()) if param else None)

    def reject(self, data: bytes) -> None:
        call("rdma_reject", self._at, data, c.c_uint8(len(data)))

    def disconnect(self) -> None:
        call("rdma_disconnect", self._at)

    def establish(self) -> None:
        call("rdma_establish", self._at)

    def notify(self, event: int) -> None:
        call("rdma_notify", self._at, event)

    def set_option(self, option: int, value: int) -> None:
        kind = OPTIONS[option]
        call("rdma_set_option", self._at, 0, option, c.byref(kind(value)), c.c_size_t(c.sizeof(kind)))

    def migrate_id(self, channel: EventChannel) -> None:
        call("rdma_migrate_id", self._at, channel.at)
        self._channel = channel
        assert self._at.value
        channel.known[self._at.value] = self

    def init_qp_attr(self, state: int) -> None:
        attr, mask = c.create_string_buffer(512), c.c_int()
        c.c_int.from_buffer(attr).value = state
        call("rdma_init_qp_attr", self._at, attr, c.byref(mask))

    def destroy(self) -> None:
        if self.qp is not None:
            self.destroy_qp()
        call("rdma_destroy_id", self._at)
        assert self._at.value
        del self._channel.known[self._at.value]

    def __enter__(self) -> CmId:
        return self

    def __exit__(self, *_: object) -> None:
        self.destroy()


def create_id(channel: EventChannel) -> CmId:
    found = c.c_void_p()
    call("rdma_create_id", channel.at, c.byref(found), None, PS_TCP)
    assert found.value
    return CmId(channel, found.value)
