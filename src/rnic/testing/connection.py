# SPDX-License-Identifier: Apache-2.0
"""From RESET to RTS: what the two ends of a connection must tell each other, and the moves."""

from __future__ import annotations

import secrets
import socket
import struct
from typing import Protocol, cast

from rnic.enums import MTU, AccessFlags, QPState, QPType
from rnic.records import Record, replace
from rnic.verbs.ah import GID, AHAttr
from rnic.verbs.context import Context
from rnic.verbs.qp import QP, QPAttr

__all__ = ["Address", "Options", "complete", "connect", "connect_through", "prepare"]

_WIRE = struct.Struct("!16sIIB")


class Options(Record):
    """What a connection is made with; the names are QPAttr's."""

    path_mtu: MTU | None = None
    """None: the largest that both ports have."""
    timeout: int = 14
    """4.096 us * 2**timeout: 67 ms."""
    retry_cnt: int = 7
    rnr_retry: int = 7
    min_rnr_timer: int = 12
    """A code: 12 is 0.64 ms."""
    max_rd_atomic: int = 16
    max_dest_rd_atomic: int = 16
    access: AccessFlags = AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_READ | AccessFlags.REMOTE_ATOMIC
    """What the peer may do here."""
    address: str | None = None
    """The local IP address to use, None: the first of the GID table."""


class Address(Record):
    """What the peer has to know of a queue pair."""

    gid: GID
    qp_num: int
    psn: int
    """The first that this end will send."""
    mtu: MTU
    """The most that this end can take."""

    def __bytes__(self) -> bytes:
        return _WIRE.pack(self.gid.raw, self.qp_num, self.psn, self.mtu)

    @classmethod
    def from_bytes(cls, data: bytes) -> Address:
        """The address that bytes() has packed; ValueError when it cannot be one."""
        if len(data) != _WIRE.size:
            raise ValueError(f"{len(data)} bytes are no address, which has {_WIRE.size}")
        gid, qp_num, psn, mtu = _WIRE.unpack(data)
        return cls(GID(gid), qp_num, psn, MTU(mtu))


class BytesPipe(Protocol):
    """What multiprocessing.Pipe() makes."""

    def send_bytes(self, buf: bytes) -> None:
        """Send one message."""

    def recv_bytes(self) -> bytes:
        """Wait for one message."""


_DEFAULT = Options()

# What a service takes at RTR and RTS beside what all do.
_RTR = {
    QPType.RC: ("max_dest_rd_atomic", "min_rnr_timer"),
    QPType.XRC_RECV: ("max_dest_rd_atomic", "min_rnr_timer"),
}
_RTS = {
    QPType.RC: ("timeout", "retry_cnt", "rnr_retry", "max_rd_atomic"),
    QPType.XRC_SEND: ("timeout", "retry_cnt", "rnr_retry", "max_rd_atomic"),
    QPType.XRC_RECV: ("timeout",),
}


def prepare(qp: QP, options: Options = _DEFAULT) -> Address:
    """RESET -> INIT, with a random first PSN: receives can be posted.  Returns what to tell the peer."""
    context = _context(qp)
    qp.modify(QPAttr(qp_state=QPState.INIT, pkey_index=0, port_num=1, qp_access_flags=options.access))
    gid = context.query_gid(1, _gid_index(context, options))
    mtu = options.path_mtu or context.query_port(1).active_mtu
    return Address(gid, qp.qp_num, secrets.randbits(24), mtu)


def complete(qp: QP, own: Address, peer: Address, options: Options = _DEFAULT) -> None:
    """INIT -> RTR -> RTS, towards the peer.  When the peer has done it too, both may send."""
    receive = QPAttr(
        qp_state=QPState.RTR,
        path_mtu=min(own.mtu, peer.mtu),
        dest_qp_num=peer.qp_num,
        rq_psn=peer.psn,
        ah_attr=AHAttr(dgid=peer.gid, sgid_index=_gid_index(_context(qp), options), port_num=1),
    )
    send = QPAttr(qp_state=QPState.RTS, sq_psn=own.psn)
    more = {name: getattr(options, name) for name in _RTR.get(qp.qp_type, ())}
    qp.modify(replace(receive, **more))
    more = {name: getattr(options, name) for name in _RTS.get(qp.qp_type, ())}
    qp.modify(replace(send, **more))


def connect(qp_a: QP, qp_b: QP, options: Options = _DEFAULT, options_b: Options | None = None) -> None:
    """Lead two queue pairs of this process from RESET to RTS, each other's peer.

    `options_b` is for the second when it differs.  They may belong to one context or to two.
    """
    options_b = options_b or options
    a, b = prepare(qp_a, options), prepare(qp_b, options_b)
    complete(qp_a, a, b, options)
    complete(qp_b, b, a, options_b)


def connect_through(
    qp: QP, way: socket.socket | BytesPipe, options: Options = _DEFAULT, *, own: Address | None = None
) -> Address:
    """Lead a queue pair from RESET to RTS, with the peer that does the same at the other end of a way.

    The way is a connected stream socket or an end of multiprocessing.Pipe().  Returns the peer's address,
    when both ends can receive.  With `own`, prepare() has been called already (to post receives before the
    peer can send).
    """
    own = own or prepare(qp, options)
    peer = Address.from_bytes(_swap(way, bytes(own)))
    complete(qp, own, peer, options)
    _swap(way, b"\0" * _WIRE.size)
    return peer


def _swap(way: socket.socket | BytesPipe, message: bytes) -> bytes:
    """Sends a message and returns the peer's, which has the same length."""
    if not isinstance(way, socket.socket):
        way.send_bytes(message)
        return way.recv_bytes()
    way.sendall(message)
    received = b""
    while len(received) < len(message):
        part = way.recv(len(message) - len(received))
        if not part:
            raise ConnectionError("the peer closed the socket before the queue pairs were connected")
        received += part
    return received


def _context(qp: QP) -> Context:
    return cast(Context, qp.context)


def _gid_index(context: Context, options: Options) -> int:
    if options.address is None:
        return 0
    wanted = GID(options.address)
    table = context.query_gid_table()
    for entry in table:
        if entry.gid == wanted:
            return entry.gid_index
    known = ", ".join(str(entry.gid.ip) for entry in table)
    raise ValueError(f"{context.name} does not have the address {options.address}; it has {known}")
