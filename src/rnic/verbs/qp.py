# SPDX-License-Identifier: Apache-2.0
"""Queue pairs, and the attributes that move them from RESET to RTS."""

import errno
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from rnic._nic import nic
from rnic.enums import MTU, AccessFlags, MigState, QPAttrMask, QPState, QPType, WROpcode
from rnic.errors import VerbsError
from rnic.records import Attributes, Record, field, values
from rnic.sizes import whole
from rnic.verbs.ah import GID, AHAttr
from rnic.verbs.counters import Counters
from rnic.verbs.ece import ECE
from rnic.verbs.flow import Flow, FlowAttr
from rnic.verbs.mw import MWBind
from rnic.verbs.rate_limit import RateLimitAttr
from rnic.verbs.stream import StreamAttr
from rnic.verbs.wq import RxHashConf

if TYPE_CHECKING:
    from socket import socket

__all__ = ["QP", "QPAttr", "QPCap", "QPInitAttr", "QPOpenAttr", "QPStats"]


class QPCap(Attributes):
    """The sizes of a queue pair (ibv_create_qp(3))."""

    max_send_wr: int = 128
    """Send work requests that can be outstanding."""
    max_recv_wr: int = 128
    """Receive work requests that can be outstanding."""
    max_send_sge: int = 4
    """The most SGEs in a send work request."""
    max_recv_sge: int = 4
    """The most SGEs in a receive work request."""
    max_inline_data: int = 256
    """The most bytes that a send work request can carry INLINE."""

    def as_struct(self) -> dict[str, int]:
        """The fields of struct rnic_qp_cap."""
        return values(self)


class QPInitAttr(Attributes):
    """Attributes of a new queue pair (ibv_create_qp(3)).

        init = rnic.QPInitAttr(send_cq=cq, recv_cq=cq)
        init.cap.max_send_wr = 16

    A change after the queue pair has been created does not affect it.
    """

    send_cq: nic.CQ | None = None
    """The completion queue of send work requests; XRC_RECV has none."""
    recv_cq: nic.CQ | None = None
    """The completion queue of receives, which may be send_cq. XRC queue pairs, and those with an rwq_ind_tbl,
    have none.
    """
    qp_type: QPType = QPType.RC
    """The transport service."""
    sq_sig_all: bool = False
    """Every send work request makes a completion, not only those with SIGNALED."""
    cap: QPCap = field(default_factory=QPCap)
    """How much it holds."""
    qp_context: object = None
    """Any object of the caller."""
    srq: nic.SRQ | None = None
    """The shared receive queue that it uses; then cap.max_recv_wr and max_recv_sge have no effect."""
    xrcd: nic.XRCD | None = None
    """The XRC domain of an XRC_RECV queue pair; XRCD.create_qp() fills it in."""
    rwq_ind_tbl: nic.RwqIndTable | None = None
    """RAW_PACKET: the table that spreads frames over work queues. Such a queue pair has no recv_cq."""
    rx_hash_conf: RxHashConf | None = None
    """RAW_PACKET: the hash that chooses a table entry for a frame."""


class QPOpenAttr(Attributes):
    """Which queue pair Context.open_qp() opens (ibv_open_qp(3))."""

    xrcd: nic.XRCD
    """The domain that the queue pair belongs to."""
    qp_num: int
    """Its number."""
    qp_type: QPType = QPType.XRC_RECV
    """XRC_RECV: no other can be opened."""
    qp_context: object = None
    """Any object of the caller."""


class QPAttr(Attributes):
    """Attributes of a queue pair (ibv_modify_qp(3), ibv_query_qp(3)); an attribute that is None is not set.

        attr = rnic.QPAttr(qp_state=rnic.QPState.INIT, pkey_index=0, port_num=1)
        attr.qp_access_flags = rnic.AccessFlags.REMOTE_WRITE
        qp.modify(attr)

    Give attributes by keyword, or assign them later. The table of IBA 11.2.5.2 says which attributes a
    transition needs or allows; QP.modify() names what is missing.
    """

    qp_state: QPState | None = None
    """The state to move to."""
    cur_qp_state: QPState | None = None
    """The state in which the caller expects the queue pair to be."""
    path_mtu: MTU | None = None
    """The most payload bytes of a packet; the same at both ends."""
    path_mig_state: MigState | None = None
    """Whether the queue pair may change over to its other path."""
    qkey: int | None = None
    """UD: what datagrams to it must carry."""
    rq_psn: int | None = None
    """The first PSN that the peer will send, 24 bits."""
    sq_psn: int | None = None
    """The first PSN to send, 24 bits."""
    dest_qp_num: int | None = None
    """The number of the peer's queue pair, 24 bits."""
    qp_access_flags: AccessFlags | None = None
    """What the peer may do here: REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC, FLUSH_GLOBAL, FLUSH_PERSISTENT."""
    cap: QPCap | None = None
    """Its size, as query() tells; modify() cannot change it."""
    ah_attr: AHAttr | None = None
    """The path to the peer."""
    alt_ah_attr: AHAttr | None = None
    """The other path to the peer."""
    pkey_index: int | None = None
    """Index of its P_Key in the port's table."""
    alt_pkey_index: int | None = None
    """The same on the other path."""
    en_sqd_async_notify: bool | None = None
    """Report SQ_DRAINED when the send queue has drained."""
    sq_draining: bool | None = None
    """Only queried: work is still outstanding in SQD."""
    max_rd_atomic: int | None = None
    """READs and atomics that may be outstanding to the peer."""
    max_dest_rd_atomic: int | None = None
    """READs and atomics that the peer may have outstanding here."""
    min_rnr_timer: int | None = None
    """The peer's wait if no receive is posted here. A code: 1 (0.01 ms) to 31 (492 ms), 0 (655 ms)."""
    port_num: int | None = None
    """The port, 1."""
    timeout: int | None = None
    """How long to wait for an acknowledgement: 4.096 us * 2**timeout, 0: for ever (IBA 9.7.6.1.3)."""
    retry_cnt: int | None = None
    """How often to send again before RETRY_EXC_ERR, 0 to 7."""
    rnr_retry: int | None = None
    """How often to send again when the peer has no receive posted, 0 to 6, 7: without end."""
    alt_port_num: int | None = None
    """The same on the other path."""
    alt_timeout: int | None = None
    """`timeout` on the other path."""
    rate_limit: int | None = None
    """kbit/s, 0: none; set by QP.modify_rate_limit()."""

    def mask(self) -> QPAttrMask:
        """The attributes that are set, as a mask."""
        found = 0
        for bit, value in zip(_MASK_BITS, _masked(self), strict=True):
            if value is not None:
                found |= bit
        return QPAttrMask(found)

    def check(self) -> None:
        """Raise EINVAL, or TypeError, for a value that no queue pair can have."""
        if self.path_mtu is not None and self.path_mtu not in tuple(MTU):
            codes = ", ".join(f"MTU.{one.name}" for one in MTU)
            raise VerbsError(
                errno.EINVAL, f"path_mtu is {self.path_mtu!r}: it is one of {codes}", "modify_qp"
            )
        for name in _MASKS:
            value = getattr(self, name)
            if value is not None and name not in _RECORDS:
                whole("modify_qp", name, value, _BITS.get(name, 32))

    def as_struct(self) -> dict[str, Any]:
        """The fields of struct rnic_qp_attr, those that are not set as 0."""
        known = {name: value or 0 for name, value in values(self).items()}
        known["cap"] = (self.cap or QPCap()).as_struct()
        known["ah_attr"] = (self.ah_attr or _NOWHERE).as_struct()
        known["alt_ah_attr"] = (self.alt_ah_attr or _NOWHERE).as_struct()
        return known

    @classmethod
    def from_struct(cls, values: Mapping[str, Any]) -> "QPAttr":
        """The record of struct rnic_qp_attr's fields."""
        kinds: dict[str, Callable[[Any], Any]] = {
            "qp_state": QPState,
            "cur_qp_state": QPState,
            "path_mtu": _mtu,
            "path_mig_state": MigState,
            "qp_access_flags": AccessFlags,
            "cap": lambda cap: QPCap(**cap),
            "ah_attr": AHAttr.from_struct,
            "alt_ah_attr": AHAttr.from_struct,
            "en_sqd_async_notify": bool,
            "sq_draining": bool,
        }
        return cls(**{name: kinds.get(name, int)(value) for name, value in values.items()})


_NOWHERE = AHAttr(dgid=GID(), hop_limit=0, port_num=0, is_global=False)

# What is set is what counts: the mask bit of each field.
_MASKS = {
    "qp_state": QPAttrMask.STATE,
    "cur_qp_state": QPAttrMask.CUR_STATE,
    "path_mtu": QPAttrMask.PATH_MTU,
    "path_mig_state": QPAttrMask.PATH_MIG_STATE,
    "qkey": QPAttrMask.QKEY,
    "rq_psn": QPAttrMask.RQ_PSN,
    "sq_psn": QPAttrMask.SQ_PSN,
    "dest_qp_num": QPAttrMask.DEST_QPN,
    "qp_access_flags": QPAttrMask.ACCESS_FLAGS,
    "cap": QPAttrMask.CAP,
    "ah_attr": QPAttrMask.AV,
    "alt_ah_attr": QPAttrMask.ALT_PATH,
    "pkey_index": QPAttrMask.PKEY_INDEX,
    "alt_pkey_index": QPAttrMask.ALT_PATH,
    "en_sqd_async_notify": QPAttrMask.EN_SQD_ASYNC_NOTIFY,
    "max_rd_atomic": QPAttrMask.MAX_QP_RD_ATOMIC,
    "max_dest_rd_atomic": QPAttrMask.MAX_DEST_RD_ATOMIC,
    "min_rnr_timer": QPAttrMask.MIN_RNR_TIMER,
    "port_num": QPAttrMask.PORT,
    "timeout": QPAttrMask.TIMEOUT,
    "retry_cnt": QPAttrMask.RETRY_CNT,
    "rnr_retry": QPAttrMask.RNR_RETRY,
    "alt_port_num": QPAttrMask.ALT_PATH,
    "alt_timeout": QPAttrMask.ALT_PATH,
    "rate_limit": QPAttrMask.RATE_LIMIT,
}
_MASK_BITS = tuple(int(bit) for bit in _MASKS.values())  # plain numbers are quicker to put together
_masked = attrgetter(*_MASKS)

_RECORDS = {"cap", "ah_attr", "alt_ah_attr"}

# The bits of the fields of struct rnic_qp_attr, where they are fewer than 32.
_BITS = dict.fromkeys(("pkey_index", "alt_pkey_index"), 16) | dict.fromkeys(
    (
        "en_sqd_async_notify",
        "max_rd_atomic",
        "max_dest_rd_atomic",
        "min_rnr_timer",
        "port_num",
        "timeout",
        "retry_cnt",
        "rnr_retry",
        "alt_port_num",
        "alt_timeout",
    ),
    8,
)
_BITS |= dict.fromkeys(("qp_state", "cur_qp_state", "path_mig_state"), 31)


def _mtu(value: int) -> MTU | None:
    """The path MTU; None before the queue pair has a path."""
    return MTU(value) if value else None


class QPStats(Record):
    """Numbers of a queue pair for debugging."""

    counters: Counters
    """The counters of this queue pair alone."""
    snd_psn: int
    """The next PSN to send."""
    snd_una: int
    """The oldest PSN that the peer has not acknowledged."""
    rcv_psn: int
    """The next PSN that the peer should send."""
    msn: int
    """Messages completed as responder (IBA 9.7.7.1)."""
    sq_depth: int
    """Send work requests that have not completed."""
    rq_depth: int
    """Receive work requests that have not completed."""
    window: int
    """Bytes that may be in flight now."""
    in_flight: int
    """Bytes that are in flight."""
    retries_left: int
    """How often the oldest request can still be sent again after a timeout."""
    rnr_retries_left: int
    """How often it can still be sent again because the peer had no receive posted."""
    srtt: int
    """Smoothed round trip time in nanoseconds, 0: not known yet."""
    rate: int
    """Bytes per second that congestion control allows; 0: no limit."""


class QP(nic.QP):
    """A queue pair: one end of a connection (IBA 10.2.4; ibv_create_qp(3)); PD.create_qp() makes it.

    modify() moves it from RESET through INIT (receives can be posted) and RTR (it receives) to RTS (it
    sends). A failed request moves it to ERR, which flushes all work; after modify() to RESET it can be used
    again. It keeps the memory regions of posted work alive.

    On an iWARP device the type is RC, and the peer is whoever is at the other end of a TCP connection:
    RDMA-CM makes it, or attach_stream() takes it. RTR and RTS then need no attributes. modify() from RTS to
    SQD closes the connection in order: what is posted is sent, and when the peer has closed, too, the queue
    pair is in ERR. A SEND that meets no receive ends the connection.
    """

    __slots__ = ()

    @property
    def cap(self) -> QPCap:
        """The granted sizes: at least the requested ones."""
        return QPCap(**self.raw_cap())

    def modify(self, attr: QPAttr, mask: QPAttrMask | None = None) -> None:
        """Set attributes, and move to attr.qp_state if it is set (ibv_modify_qp(3)).

        Without a mask, the attributes that are set count. Raises VerbsError: EINVAL, with the attribute that
        is missing or not allowed between the two states (IBA 11.2.5.2); then nothing has changed.
        """
        if not isinstance(attr, QPAttr):
            name = type(attr).__name__
            raise TypeError(f"modify() takes a QPAttr, such as QPAttr(qp_state=QPState.ERR), not {name}")
        attr.check()
        if mask is None:
            mask = attr.mask()
        elif unset := mask & ~attr.mask():
            names = ", ".join(name for name, bit in _MASKS.items() if bit & unset)
            text = f"the mask names {names}, which attr does not set: set it, or leave out the mask"
            raise VerbsError(errno.EINVAL, text, "modify_qp")
        self.raw_modify(attr.as_struct(), mask)

    def bind_mw(self, mw: nic.MW, mw_bind: MWBind) -> None:
        """Post a bind of a memory window of type 1 (IBA 11.2.8.11; ibv_bind_mw(3)); length 0 unbinds it.

        The call returns at once, and mw.rkey is the new key. The key is valid when the bind has completed; a
        SIGNALED bind completes at send_cq. If the region does not allow the window, the bind completes with
        MW_BIND_ERR and the queue pair fails. Raises VerbsError: EINVAL for a window of type 2, EPERM for a
        region of another protection domain.
        """
        self.raw_bind_mw(mw, mw_bind.bind_info, int(mw_bind.send_flags), mw_bind.wr_id)

    def attach_stream(self, sock: "socket", attr: StreamAttr) -> None:
        """iWARP: go by a connected TCP socket from now on; in INIT or RTR.

        Both ends have agreed on `attr` before. The queue pair takes the socket over: `sock` is detached. It
        reads and writes the socket from RTS on, and closes it in RESET, with close(), and when the
        connection ends. Context.next_stream_event() reports the end. RDMA-CM does all this by itself;
        connect_qps() does it for two queue pairs of this process.

        Raises VerbsError: EINVAL in another state, or for a socket that is not a connected TCP socket; EBUSY
        if the queue pair has a connection already; EOPNOTSUPP if its device is not an iWARP device.
        """
        flags = values(attr)
        self.raw_attach_stream(sock.fileno(), flags.pop("early"), flags)
        sock.detach()

    def confirm_stream(self, both: bool = False) -> None:
        """iWARP: signaled SENDs and WRITEs complete when the peer has them, as on other transports.

        Otherwise they complete when TCP has taken them. Behind them go READs of no bytes (RFC 5040, 5.5),
        whose answers tell. If `max_rd_atomic` is 0 there are none, and nothing changes. `both`: the peer
        does the same. Then this end closes the connection only when the peer has asked for its last message,
        or after one second. From INIT on; RESET ends it.

        Raises VerbsError: EINVAL in RESET; EOPNOTSUPP if the device is not an iWARP device.
        """
        self.raw_confirm_stream(both)

    def attach_mcast(self, gid: GID | str | bytes, lid: int = 0) -> None:
        """Receive the datagrams of a multicast group (IBA 11.3.1; ibv_attach_mcast(3)); UD only.

        A group is an IP multicast address: ::ffff:239.1.2.3, ff02::1:2. Datagrams to it carry the queue pair
        number 0xFFFFFF, and must have this queue pair's Q_Key. Every attached queue pair except the sender
        gets a copy. A second attach to the same group has no effect. `lid` is for InfiniBand links.
        """
        self.raw_attach_mcast(GID(gid).raw, lid)

    def detach_mcast(self, gid: GID | str | bytes, lid: int = 0) -> None:
        """Leave a multicast group (IBA 11.3.2; ibv_detach_mcast(3)). Raises VerbsError: EINVAL if the queue
        pair was not attached.
        """
        self.raw_detach_mcast(GID(gid).raw, lid)

    def create_flow(self, attr: FlowAttr) -> Flow:
        """Receive the frames that match a rule (ibv_create_flow(3)); RAW_PACKET only.

        Frames from other queue pairs of this context match, too. Raises VerbsError: EINVAL for a rule that
        contradicts itself, EOPNOTSUPP for a specification or flag that the device does not have.
        """
        return Flow(self, attr.as_bytes(), attr.counters())

    def query(self) -> tuple[QPAttr, QPInitAttr]:
        """The current attributes, and the attributes of creation (ibv_query_qp(3))."""
        attr, init = self.raw_query()
        created = QPInitAttr(
            send_cq=self.send_cq,
            recv_cq=self.recv_cq,
            qp_type=QPType(init["qp_type"]),
            sq_sig_all=bool(init["sq_sig_all"]),
            cap=QPCap(**init["cap"]),
            qp_context=self.qp_context,
            srq=self.srq,
            xrcd=self.xrcd,
            rwq_ind_tbl=self.rwq_ind_tbl,
        )
        return QPAttr.from_struct(attr), created

    def modify_rate_limit(self, attr: RateLimitAttr) -> None:
        """Limit the rate of the send queue (ibv_modify_qp_rate_limit(3)); a rate of 0 removes the limit.

        RC, UC, UD and RAW_PACKET queue pairs can have a limit, from RTR on; RESET removes it. All bytes from
        the BTH to the ICRC count, for RAW_PACKET the whole frame; retransmissions count, and responses to the
        peer's requests do not. Raises VerbsError: EINVAL for a rate outside DeviceAttrEx.packet_pacing_caps,
        or in another state.
        """
        self.raw_modify_rate_limit(attr.as_struct())

    def query_data_in_order(self, op: WROpcode, flags: int = 0) -> int:
        """Whether the bytes of a message become visible in order (ibv_query_qp_data_in_order(3)); 0 means no.

        If not, a program that watches memory instead of completions cannot take the last byte for the end.
        The software RNIC copies a packet with memcpy, in any order, so the answer is 0 for every operation.
        `flags` is 0, or 1 (RETURN_CAPS) for an answer that is a mask; other flags raise EINVAL.
        """
        return self.raw_query_data_in_order(op, flags)

    def set_ece(self, ece: ECE) -> ECE:
        """Request a vendor's options for an enhanced connection, before RTR (ibv_set_ece(3)).

        Returns the accepted options. The software RNIC accepts none: ECE.options is 0.
        """
        return ECE(**self.raw_set_ece(ece.as_struct()))

    def query_ece(self) -> ECE:
        """The vendor's options in force (ibv_query_ece(3)); of the software RNIC ECE.options is 0."""
        return ECE(**self.raw_query_ece())

    def statistics(self) -> QPStats:
        """Counters, PSNs and timers of this queue pair."""
        values = self.raw_stats()
        values["counters"] = Counters.from_values(values["counters"]["value"])
        return QPStats(**values)
