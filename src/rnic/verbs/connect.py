# SPDX-License-Identifier: Apache-2.0
"""From RESET to RTS: what two queue pairs must know of each other, and the changes of state."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from enum import Enum
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, cast

from rnic._nic import nic
from rnic.enums import MTU, AccessFlags, QPState, QPType, Transport
from rnic.records import Record, field, replace, values
from rnic.verbs.ah import GID, AHAttr
from rnic.verbs.qp import QP, QPAttr
from rnic.verbs.stream import StreamAttr

if TYPE_CHECKING:
    from rnic.verbs.context import Context
    from rnic.verbs.meeting import IP, Meeting

__all__ = ["Address", "Options", "QPChange", "complete", "connect_both", "connect_qps", "meet", "prepare"]

_WIRE = struct.Struct("!16sIIBHB")
_CRC, _MARKERS = 1, 2
_TURN_NS, _TURNS = 1000, 1 << 24  # of iWARP: a PSN is the time of prepare(), modulo 17 s


class Options(Record):
    """What a connection is made with; the names are QPAttr's."""

    path_mtu: MTU | None = None
    """None: the largest that both ports have."""
    timeout: int = 14
    """4.096 us * 2**timeout: 67 ms."""
    retry_cnt: int = 7
    """How often to send again before RETRY_EXC_ERR, 0 to 7."""
    rnr_retry: int = 7
    """How often to send again when the peer has no receive posted, 0 to 6, 7: without end."""
    min_rnr_timer: int = 12
    """A code: 12 is 0.64 ms."""
    max_rd_atomic: int = 16
    """READs and atomics that may be outstanding to the peer."""
    max_dest_rd_atomic: int = 16
    """READs and atomics that the peer may have outstanding here."""
    access: AccessFlags = AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_READ | AccessFlags.REMOTE_ATOMIC
    """What the peer may do here."""
    address: str | None = None
    """The local IP address to use, None: the first of the GID table; iWARP: of the network interface."""
    qkey: int = 0x11111111
    """UD: the Q_Key that datagrams to this queue pair carry."""
    crc: bool | None = None
    """iWARP: messages carry CRCs, unless both ends do without. None: as RNIC_MPA_CRC says."""
    markers: bool = False
    """iWARP: the peer is to put markers into what it sends (RFC 5044, 4.3)."""


_DEFAULT = Options()


class Address(Record):
    """What the peer has to know of a queue pair."""

    gid: GID
    """The address of its port."""
    qp_num: int
    """Its number."""
    psn: int
    """The first that this end will send."""
    mtu: MTU
    """The most that this end can take."""
    port: int = 0
    """iWARP: the TCP port where it waits."""
    crc: bool = True
    """iWARP: it wants CRCs."""
    markers: bool = False
    """iWARP: it wants markers."""
    _meeting: Meeting | None = field(default=None, compare=False, repr=False)

    def __bytes__(self) -> bytes:
        flags = self.crc * _CRC | self.markers * _MARKERS
        return _WIRE.pack(self.gid.raw, self.qp_num, self.psn, self.mtu, self.port, flags)

    @classmethod
    def from_bytes(cls, data: bytes) -> Address:
        """The address that bytes() has packed; ValueError when it cannot be one."""
        if len(data) != _WIRE.size:
            raise ValueError(f"{len(data)} bytes are no address, which has {_WIRE.size}")
        gid, qp_num, psn, mtu, port, flags = _WIRE.unpack(data)
        return cls(GID(gid), qp_num, psn, MTU(mtu), port, bool(flags & _CRC), bool(flags & _MARKERS))


class QPChange(Record):
    """A change of state that connect_qps() has made; str() tells it in a line."""

    qp_num: int
    """The queue pair's number."""
    old_state: QPState
    """The state that it left."""
    attr: QPAttr
    """What QP.modify() was given: the new state, and the attributes that go with it."""

    def __str__(self) -> str:
        given = {name: value for name, value in values(self.attr).items() if value is not None}
        state = given.pop("qp_state").name
        more = ", ".join(f"{name}={_short(value)}" for name, value in given.items())
        return f"QP 0x{self.qp_num:06x}: {self.old_state.name} to {state}{more and ': '}{more}"


def _short(value: object) -> str:
    if isinstance(value, AHAttr):
        return f"AHAttr(dgid={str(value.dgid)!r}, sgid_index={value.sgid_index}, port_num={value.port_num})"
    return value.name if isinstance(value, Enum) and value.name else repr(value)


Tell = Callable[[QPChange], object]

# What a service takes, by the names of Options, beside what all do: at INIT, at RTR, at RTS.
_RETRIES = ("timeout", "retry_cnt", "rnr_retry", "max_rd_atomic")
_RESPONDS = ("max_dest_rd_atomic", "min_rnr_timer")
_TAKES: dict[QPType, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    QPType.RC: (("access",), _RESPONDS, _RETRIES),
    QPType.UC: (("access",), (), ()),
    QPType.UD: (("qkey",), (), ()),
    QPType.XRC_SEND: (("access",), (), _RETRIES),
    QPType.XRC_RECV: (("access",), _RESPONDS, ("timeout",)),
}
_PEERS = {QPType.XRC_SEND: QPType.XRC_RECV, QPType.XRC_RECV: QPType.XRC_SEND}


def prepare(qp: QP, options: Options = _DEFAULT, tell: Tell | None = None) -> Address:
    """RESET -> INIT, with a random first PSN: receives can be posted.  Returns what to tell the peer."""
    context = _context(qp)
    if _is_iwarp(context):
        return _prepare_stream(qp, context, options, tell)
    _move(qp, QPAttr(qp_state=QPState.INIT, pkey_index=0, port_num=1, **_more(qp, 0, options)), tell)
    gid = context.query_gid(1, _gid_index(context, options))
    mtu = options.path_mtu or context.query_port(1).active_mtu
    return Address(gid, qp.qp_num, int.from_bytes(os.urandom(3), "big"), mtu)


def complete(
    qp: QP, own: Address, peer: Address, options: Options = _DEFAULT, tell: Tell | None = None
) -> None:
    """INIT -> RTR -> RTS, towards the peer.  When the peer has done it too, both may send.

    iWARP: the end that was prepared first connects, and the other one waits for it. A thread that has both
    ends calls complete() in the order of prepare().
    """
    if _is_iwarp(_context(qp)):
        _complete_stream(qp, own, peer, options, tell)
        return
    attr = QPAttr(qp_state=QPState.RTR, **_more(qp, 1, options))
    if qp.qp_type is not QPType.UD:
        attr.path_mtu, attr.dest_qp_num, attr.rq_psn = min(own.mtu, peer.mtu), peer.qp_num, peer.psn
        attr.ah_attr = AHAttr(dgid=peer.gid, sgid_index=_gid_index(_context(qp), options), port_num=1)
    _move(qp, attr, tell)
    _move(qp, QPAttr(qp_state=QPState.RTS, sq_psn=own.psn, **_more(qp, 2, options)), tell)


def connect_both(
    a: QP, b: QP, options: Options = _DEFAULT, options_b: Options | None = None, tell: Tell | None = None
) -> None:
    """Lead two queue pairs of this process from RESET to RTS, each other's peer.

    `options_b` is for the second when it differs.  They may belong to one context or to two.
    """
    if a is b or b.qp_type is not _PEERS.get(a.qp_type, a.qp_type) or a.qp_type not in _TAKES:
        raise ValueError(f"{a!r} and {b!r} cannot be peers: two RC, UC or UD, or XRC_SEND and XRC_RECV can")
    options, options_b = _reachable(a, b, options, options_b or options)
    at_a, at_b = prepare(a, options, tell), prepare(b, options_b, tell)
    complete(a, at_a, at_b, options, tell)
    complete(b, at_b, at_a, options_b, tell)


def connect_qps(
    a: QP,
    b: QP,
    *,
    access: AccessFlags = _DEFAULT.access,
    path_mtu: MTU | None = _DEFAULT.path_mtu,
    timeout: int = _DEFAULT.timeout,
    retry_cnt: int = _DEFAULT.retry_cnt,
    rnr_retry: int = _DEFAULT.rnr_retry,
    min_rnr_timer: int = _DEFAULT.min_rnr_timer,
    max_rd_atomic: int = _DEFAULT.max_rd_atomic,
    qkey: int = _DEFAULT.qkey,
    show: Callable[[QPChange], object] | None = None,
) -> list[QPChange]:
    """Connect two queue pairs of this process: INIT, RTR and RTS for both, by QP.modify().

        rnic.connect_qps(a, b, show=print)

    Both are new (in RESET) and of one type: RC, UC or UD; or XRC_SEND and XRC_RECV.  They may be of one
    context or of two.  Returns the changes of state in their order, and calls `show` after each: a program
    that connects to another process makes the same ones.  Receives can be posted as soon as it returns.

    `access` is what each may do in the other's memory.  The rest has the names of QPAttr; None for `path_mtu`
    is the largest that both ports have.  RC alone repeats what is lost: UC and UD ignore timeouts and
    retries.  UD queue pairs have no fixed peer: a datagram is sent with `ah`, `remote_qpn` and this `qkey`.
    Queue pairs of iWARP devices are of RC, and TCP repeats what is lost: only `access` and `max_rd_atomic`
    count.

    Raises ValueError for types or states that do not fit, VerbsError for a value that QP.modify() refuses.
    """
    options = Options(
        path_mtu=path_mtu,
        timeout=timeout,
        retry_cnt=retry_cnt,
        rnr_retry=rnr_retry,
        min_rnr_timer=min_rnr_timer,
        max_rd_atomic=max_rd_atomic,
        max_dest_rd_atomic=max_rd_atomic,
        access=access,
        qkey=qkey,
    )
    for qp in (a, b):
        if not isinstance(qp, QP):
            raise TypeError(f"connect_qps() takes two queue pairs, not {type(qp).__name__}")
        if qp.state is not QPState.RESET:
            raise ValueError(f"{qp!r} is not in RESET: take a new one, or modify() it to RESET first")
    changes: list[QPChange] = []

    def tell(change: QPChange) -> None:
        changes.append(change)
        if show is not None:
            show(change)

    connect_both(a, b, options, tell=tell)
    return changes


# ------------------------------------------------------------------------------------------------- iWARP


def _is_iwarp(context: Context) -> bool:
    return context.device.transport is Transport.IWARP


def _prepare_stream(qp: QP, context: Context, options: Options, tell: Tell | None) -> Address:
    _move(qp, QPAttr(qp_state=QPState.INIT, port_num=1, **_more(qp, 0, options)), tell)
    return meet(qp, context, options)


def meet(qp: QP, context: Context, options: Options) -> Address:
    """iWARP: the address of a queue pair, which from now on waits for its peer."""
    from rnic.verbs.meeting import Meeting

    meeting = Meeting(_own_ip(context, options), context.device.index)
    turn = monotonic_ns() // _TURN_NS % _TURNS
    mtu = context.query_port(1).active_mtu
    gid = GID(str(meeting.ip))
    crc = nic.env_mpa_crc() if options.crc is None else options.crc
    return Address(gid, qp.qp_num, turn, mtu, meeting.port, crc, options.markers, meeting)


def _complete_stream(qp: QP, own: Address, peer: Address, options: Options, tell: Tell | None) -> None:
    if own._meeting is None:
        raise ValueError("complete() takes the address that prepare() has returned in this process")
    later = (own.psn - peer.psn) % _TURNS
    initiator = later > _TURNS // 2 if later else bytes(own) < bytes(peer)
    attr = StreamAttr(
        initiator=initiator,
        crc=own.crc or peer.crc,
        markers_in=own.markers,
        markers_out=peer.markers,
    )
    meeting = own._meeting
    with meeting.go(bytes(own), peer.gid.ip, peer.port) if initiator else meeting.wait(bytes(peer)) as sock:
        _move(qp, QPAttr(qp_state=QPState.RTR, max_dest_rd_atomic=options.max_dest_rd_atomic), tell)
        qp.attach_stream(sock, attr)
    _move(qp, QPAttr(qp_state=QPState.RTS, max_rd_atomic=options.max_rd_atomic), tell)


def _own_ip(context: Context, options: Options) -> IP:
    known = _ips(context)
    wanted = known[:1] if options.address is None else [GID(options.address).ip]
    if not wanted or wanted[0] not in known:
        listed = ", ".join(map(str, known)) or "none"
        raise ValueError(f"{context.name} does not have the address {options.address}; it has {listed}")
    return wanted[0]


def _move(qp: QP, attr: QPAttr, tell: Tell | None) -> None:
    change = None if tell is None else QPChange(qp.qp_num, qp.state, attr)
    qp.modify(attr)
    if tell is not None and change is not None:
        tell(change)


def _more(qp: QP, step: int, options: Options) -> dict[str, Any]:
    """The attributes that its service takes at INIT (0), RTR (1) or RTS (2)."""
    names = _TAKES[qp.qp_type][step]
    return {"qp_access_flags" if name == "access" else name: getattr(options, name) for name in names}


def _reachable(a: QP, b: QP, options: Options, options_b: Options) -> tuple[Options, Options]:
    """With addresses of one IP version, where the ends are of two devices and no address is asked for."""
    context, context_b = _context(a), _context(b)
    if _is_iwarp(context) is not _is_iwarp(context_b):
        raise ValueError(f"{context.name} and {context_b.name} have different transports")
    if context.name == context_b.name or options.address or options_b.address:
        return options, options_b
    ips, ips_b = _ips(context), _ips(context_b)
    pairs = [(ip, ip_b) for ip in ips for ip_b in ips_b if ip.version == ip_b.version]
    if not pairs:
        raise ValueError(f"{context.name} and {context_b.name} have no addresses of one IP version")
    ip, ip_b = min(pairs, key=lambda pair: sum(one.is_link_local for one in pair))
    return replace(options, address=str(ip)), replace(options_b, address=str(ip_b))


def _ips(context: Context) -> list[IP]:
    from rnic.verbs.meeting import addresses

    if _is_iwarp(context):
        return addresses(context.device.netdev)
    return [entry.gid.ip for entry in context.query_gid_table()]


def _context(qp: QP) -> Context:
    return cast("Context", qp.context)


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
