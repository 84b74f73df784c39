# SPDX-License-Identifier: Apache-2.0
"""One RC connection between rnic and the kernel, each end driven from the test through the same few calls.

KernelEnd is a QP of the guest's kernel (guest_verbs.py there does the work); RnicEnd, in rnic_end.py, one of
rnic in this process.  Everything at an end lives in one memory region; work requests name bytes by offset.
"""

from __future__ import annotations

import base64
import ipaddress
import json
import socket
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

ALL_ACCESS = ("LOCAL_WRITE", "REMOTE_WRITE", "REMOTE_READ", "REMOTE_ATOMIC")

SG = list[tuple[int, int]]  # (offset in the region, length)


@dataclass(frozen=True, kw_only=True)
class Send:
    """A send work request; opcode and flags are libibverbs' names without the prefix."""

    opcode: str
    sg: SG
    wr_id: int = 0
    send_flags: tuple[str, ...] = ("SIGNALED",)
    remote_addr: int = 0
    rkey: int = 0
    imm_data: int = 0
    compare_add: int = 0
    swap: int = 0
    invalidate_rkey: int = 0


@dataclass(frozen=True)
class Completion:
    wr_id: int
    status: str
    opcode: str
    byte_len: int
    imm_data: int | None
    invalidated_rkey: int | None = None


@dataclass(frozen=True)
class Address:
    """What one end must know of the other."""

    qp_num: int
    psn: int
    gid: str
    addr: int  # of the region
    rkey: int


@dataclass(frozen=True)
class Path:
    """How two ends treat each other."""

    mtu: int  # bytes
    timeout: int = (
        18  # the local ACK timeout, 4.096 us * 2**timeout: 1.07 s; an emulated guest can be silent longer
    )
    retry_cnt: int = 7  # to the kernel 7 means without end
    rnr_retry: int = 7


class End(Protocol):
    address: Address
    rd_atomic: int  # READs and atomics that may be outstanding
    in_order: bool  # it completes work requests as they were posted

    def connect(self, remote: Address, path: Path) -> None: ...
    def store(self, offset: int, data: bytes) -> None: ...
    def load(self, offset: int, length: int) -> bytes: ...
    def post_recv(self, wr_id: int, sg: SG) -> None: ...
    def post_send(self, *wrs: Send) -> None: ...
    def bind_mw(self, offset: int, length: int, access: Iterable[str]) -> int: ...
    def poll(self, n: int, timeout: float = 60) -> list[Completion]: ...
    def state(self) -> str: ...
    def close(self) -> None: ...


def connect(a: End, b: End, path: Path) -> None:
    a.connect(b.address, path)
    b.connect(a.address, path)


class KernelEnd:
    """An end in the guest; server is where guest_verbs.py listens, ip the guest's address for RoCE."""

    in_order = True

    def __init__(
        self,
        server: tuple[str, int],
        ip: str,
        *,
        length: int,
        psn: int = 0x123456,
        access: Iterable[str] = ALL_ACCESS,
        rd_atomic: int = 16,
    ) -> None:
        self.rd_atomic = rd_atomic
        self._begin(server)
        gid = gid_of(ip)
        made = self._call("open", gid=gid, length=length, access=list(access), rd_atomic=rd_atomic)
        self.address = Address(made["qp_num"], psn, gid, made["addr"], made["rkey"])

    def _begin(self, server: tuple[str, int]) -> None:
        self._socket = socket.create_connection(server, timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rwb")

    def connect(self, remote: Address, path: Path) -> None:
        peer = {"qp_num": remote.qp_num, "gid": remote.gid, "rq_psn": remote.psn}
        self._call("connect", **peer, sq_psn=self.address.psn, path=asdict(path))

    def store(self, offset: int, data: bytes) -> None:
        self._call("store", offset=offset, data=base64.b64encode(data).decode())

    def load(self, offset: int, length: int) -> bytes:
        return base64.b64decode(self._call("load", offset=offset, length=length))

    def post_recv(self, wr_id: int, sg: SG) -> None:
        self._call("post_recv", wr_id=wr_id, sg=sg)

    def post_send(self, *wrs: Send) -> None:
        self._call("post_send", wrs=[asdict(wr) for wr in wrs])

    def bind_mw(self, offset: int, length: int, access: Iterable[str]) -> int:
        """Post a bind of a new memory window of type 2 to a part of the region; its key."""
        return int(self._call("bind_mw", offset=offset, length=length, access=list(access)))

    def poll(self, n: int, timeout: float = 60) -> list[Completion]:
        return [Completion(**wc) for wc in self._call("poll", n=n, timeout=timeout)]

    def state(self) -> str:
        return str(self._call("state"))

    def close(self) -> None:
        """Return when the QP is gone, not only asked to go."""
        if not self._file.closed:
            self._call("close")
        self._file.close()
        self._socket.close()

    def _call(self, op: str, **arguments: Any) -> Any:
        self._file.write(json.dumps({"op": op, **arguments}).encode() + b"\n")
        self._file.flush()
        line = self._file.readline()
        if not line:
            raise ConnectionError(f"guest_verbs.py ended during {op}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"in the guest, {op}: {answer['error']}")
        return answer["result"]


def gid_of(ip: str) -> str:
    """The RoCE v2 GID of an address, as text: an IPv4 address as its mapped IPv6 address, in full."""
    address = ipaddress.ip_address(ip)
    if isinstance(address, ipaddress.IPv4Address):
        address = ipaddress.IPv6Address(b"\0" * 10 + b"\xff\xff" + address.packed)
    return address.exploded
