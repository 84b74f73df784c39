# SPDX-License-Identifier: Apache-2.0
"""A program at the server's other end that writes its commands itself, as src/preload forwards them."""

from __future__ import annotations

import array
import os
import select
import socket
from typing import Any, Self

from rnic.rdmacm import EventType
from rnic.ucma import layouts
from rnic.ucma.layouts import ANSWER, CONN_PARAM, HEADER, ORDER, SOCKADDR_IN, Cmd, Layout

ROOM = 4096  # for answers
HOST = "127.0.0.1"
QP_NUM, OTHER_QP_NUM = 0x1234, 0x5678
SECONDS = 180  # that only a server that hangs takes


class Device:
    """An open /dev/infiniband/rdma_cm."""

    def __init__(self, path: str) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.settimeout(SECONDS)
        self.sock.connect(path)
        self.undone = 0  # what the last answer has asked to take back
        self.orders: list[dict[str, Any]] = []  # for queue pairs, that answers have brought
        self.fds: list[int] = []  # and their descriptors

    def write(self, message: bytes) -> tuple[int, bytes]:
        """A message as it is: the answer's result, and its data."""
        reading, ours = socket.socketpair()
        writing = ours.detach()
        try:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [writing]))]
            self.sock.sendmsg([message], rights)
            os.close(writing)
            writing = -1
            assert select.select([reading], [], [], SECONDS)[0], "no answer"
            answer, fds, _, _ = socket.recv_fds(reading, 1 << 16, 4)
        finally:
            reading.close()
            if writing >= 0:
                os.close(writing)
        head = ANSWER.read(answer)
        self.undone = head["undone"]
        at = ANSWER.size + head["length"]
        assert len(answer) == at + head["orders"] * ORDER.size
        self.orders += [ORDER.read(answer[i : i + ORDER.size]) for i in range(at, len(answer), ORDER.size)]
        self.fds += fds
        return head["result"], answer[ANSWER.size : at]

    def command(
        self, cmd: int, layout: Layout, room: int = ROOM, rest: bytes = b"", **fields: Any
    ) -> tuple[int, bytes]:
        """A command by its fields."""
        body = layout.write(**fields)
        return self.write(HEADER.write(cmd=cmd, out=room, **{"in": len(body)}) + body + rest)

    def good(self, cmd: int, layout: Layout, **fields: Any) -> bytes:
        """The data of a command that succeeds."""
        result, data = self.command(cmd, layout, **fields)
        assert result == 0, (cmd, os.strerror(-result))
        return data

    def create_id(self, ps: int = 0x106, uid: int = 1) -> int:
        """The number of a new id."""
        data = self.good(Cmd.CREATE_ID, layouts.CREATE_ID, uid=uid, ps=ps)
        return int(layouts.ID_RESP.read(data)["id"])

    def destroy_id(self, number: int) -> int:
        """The events that it has reported."""
        data = self.good(Cmd.DESTROY_ID, layouts.OF_ID, id=number)
        return int(layouts.EVENTS_RESP.read(data)["events_reported"])

    def bytes_waiting(self) -> int:
        """The bytes of events in the socket, which are taken."""
        count = 0
        while select.select([self.sock], [], [], 0)[0] and self.sock.recv(1):
            count += 1
        return count

    def event(self) -> dict[str, Any]:
        """The next event; waits for its byte."""
        assert self.sock.recv(1) == b"\0"
        found = layouts.EVENT_RESP.read(self.good(Cmd.GET_EVENT, layouts.GET_EVENT))
        return found | {"conn": CONN_PARAM.read(found["param"]), "ud": layouts.UD_PARAM.read(found["param"])}

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def sockaddr(port: int, host: str = HOST) -> bytes:
    return SOCKADDR_IN.write(family=socket.AF_INET, port=port.to_bytes(2, "big"), addr=socket.inet_aton(host))


def param(data: bytes = b"", qp_num: int = QP_NUM, **more: int) -> bytes:
    return layouts.CONN_PARAM.write(
        qp_num=qp_num, private_data=data, private_data_len=len(data), valid=1, **more
    )


def listening(device: Device, ps: int = 0x106, uid: int = 7, host: str = HOST) -> tuple[int, int]:
    """An id that listens, and its port."""
    number = device.create_id(ps, uid)
    device.good(Cmd.BIND_IP, layouts.BIND_IP, id=number, addr=sockaddr(0, host))
    device.good(Cmd.LISTEN, layouts.LISTEN, id=number, backlog=5)
    route = layouts.ROUTE_RESP.read(device.good(Cmd.QUERY_ROUTE, layouts.QUERY, id=number))
    return number, int.from_bytes(SOCKADDR_IN.read(route["src_addr"])["port"], "big")


def resolved(device: Device, port: int, ps: int = 0x106, uid: int = 9) -> int:
    """An id that is ready to connect."""
    number = device.create_id(ps, uid)
    device.good(Cmd.RESOLVE_IP, layouts.RESOLVE_IP, id=number, dst_addr=sockaddr(port), timeout_ms=60_000)
    assert event_kind(device) == (EventType.ADDR_RESOLVED, number)
    device.good(Cmd.RESOLVE_ROUTE, layouts.RESOLVE_ROUTE, id=number, timeout_ms=60_000)
    assert event_kind(device) == (EventType.ROUTE_RESOLVED, number)
    return number


def event_kind(device: Device) -> tuple[int, int]:
    event = device.event()
    return event["event"], event["id"]
