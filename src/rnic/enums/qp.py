# SPDX-License-Identifier: Apache-2.0
"""Queue pairs: states, attributes, how they are made."""

from rnic.wording import Named, NamedFlags

__all__ = [
    "QPState",
    "QPType",
    "MTU",
    "MigState",
    "QPAttrMask",
    "QPInitAttrMask",
    "QPCreateFlags",
    "SendOpsFlags",
    "StreamRTR",
    "StreamEnd",
]


class QPState(Named):
    """The state of a queue pair: what it accepts and does (IBA 10.3.1; ibv_modify_qp(3))."""

    RESET = 0
    """New, or reset: nothing can be posted, and nothing is sent or received."""
    INIT = 1
    """Receives can be posted; nothing is received yet."""
    RTR = 2
    """Ready to receive: the peer's messages are taken; nothing can be sent yet."""
    RTS = 3
    """Ready to send: the queue pair works in both directions."""
    SQD = 4
    """The send queue drains: what was begun is finished, and new work waits."""
    SQE = 5
    """The send queue has failed, of UC and UD: its work is flushed; receives go on."""
    ERR = 6
    """Failed: all work is flushed, with WR_FLUSH_ERR. modify() to RESET begins anew."""


class QPType(Named):
    """The transport service of a queue pair (IBA 9.1; ibv_create_qp(3)).

    GSI is queue pair 1, for management datagrams (IBA 13.5.1); libibverbs has no name for it, the value
    is the kernel's.
    """

    GSI = 1
    """Queue pair 1: datagrams for the management of connections."""
    RC = 2
    """Reliable connection: one peer; messages arrive once and in order. READ, WRITE and atomics."""
    UC = 3
    """Unreliable connection: one peer; lost messages are not repeated. SEND and WRITE."""
    UD = 4
    """Unreliable datagrams: single messages to any peer and to multicast groups. SEND."""
    RAW_PACKET = 8
    """Whole Ethernet frames."""
    XRC_SEND = 9
    """Extended reliable connection, the end that asks: it names a shared receive queue of the peer."""
    XRC_RECV = 10
    """Extended reliable connection, the end that answers: it belongs to an XRC domain."""


class MTU(Named):
    """The most payload bytes in one packet of a path, as a code (IBA 9.2); `.nbytes` is their number."""

    MTU_256 = 1
    """256 bytes."""
    MTU_512 = 2
    """512 bytes."""
    MTU_1024 = 3
    """1024 bytes."""
    MTU_2048 = 4
    """2048 bytes."""
    MTU_4096 = 5
    """4096 bytes, the most."""

    @property
    def nbytes(self) -> int:
        """The payload bytes that this code stands for: 256 to 4096."""
        return 128 << self


class MigState(Named):
    """Automatic path migration (IBA 17.2.8)."""

    MIGRATED = 0
    """No other path is loaded, or the queue pair has changed over to it."""
    REARM = 1
    """Another path is to be armed at both ends."""
    ARMED = 2
    """Another path is ready: the queue pair changes over when the first one fails."""


class QPAttrMask(NamedFlags):
    """Which fields of a QPAttr count (ibv_modify_qp(3))."""

    STATE = 1 << 0
    """`qp_state`."""
    CUR_STATE = 1 << 1
    """`cur_qp_state`."""
    EN_SQD_ASYNC_NOTIFY = 1 << 2
    """`en_sqd_async_notify`."""
    ACCESS_FLAGS = 1 << 3
    """`qp_access_flags`."""
    PKEY_INDEX = 1 << 4
    """`pkey_index`."""
    PORT = 1 << 5
    """`port_num`."""
    QKEY = 1 << 6
    """`qkey`."""
    AV = 1 << 7
    """`ah_attr`."""
    PATH_MTU = 1 << 8
    """`path_mtu`."""
    TIMEOUT = 1 << 9
    """`timeout`."""
    RETRY_CNT = 1 << 10
    """`retry_cnt`."""
    RNR_RETRY = 1 << 11
    """`rnr_retry`."""
    RQ_PSN = 1 << 12
    """`rq_psn`."""
    MAX_QP_RD_ATOMIC = 1 << 13
    """`max_rd_atomic`."""
    ALT_PATH = 1 << 14
    """`alt_ah_attr`, `alt_pkey_index`, `alt_port_num` and `alt_timeout`."""
    MIN_RNR_TIMER = 1 << 15
    """`min_rnr_timer`."""
    SQ_PSN = 1 << 16
    """`sq_psn`."""
    MAX_DEST_RD_ATOMIC = 1 << 17
    """`max_dest_rd_atomic`."""
    PATH_MIG_STATE = 1 << 18
    """`path_mig_state`."""
    CAP = 1 << 19
    """`cap`."""
    DEST_QPN = 1 << 20
    """`dest_qp_num`."""
    RATE_LIMIT = 1 << 25
    """`rate_limit`."""


class QPInitAttrMask(NamedFlags):
    """Which fields of QPInitAttrEx are valid (ibv_create_qp_ex(3))."""

    PD = 1 << 0
    """`pd`."""
    XRCD = 1 << 1
    """`xrcd`."""
    CREATE_FLAGS = 1 << 2
    """`create_flags`."""
    MAX_TSO_HEADER = 1 << 3
    """`max_tso_header`."""
    IND_TABLE = 1 << 4
    """`rwq_ind_tbl`."""
    RX_HASH = 1 << 5
    """`rx_hash_conf`."""
    SEND_OPS_FLAGS = 1 << 6
    """`send_ops_flags`."""


class QPCreateFlags(NamedFlags):
    """How a queue pair is created (ibv_create_qp_ex(3))."""

    BLOCK_SELF_MCAST_LB = 1 << 1
    """Datagrams to a group do not come back to their sender; here they never do."""
    SCATTER_FCS = 1 << 8
    """Received frames keep their checksum; not supported."""
    CVLAN_STRIPPING = 1 << 9
    """Received frames lose their VLAN tag; not supported."""
    SOURCE_QPN = 1 << 10
    """Packets carry the queue pair number `source_qpn`; not supported."""
    PCI_WRITE_END_PADDING = 1 << 11
    """A hint for hardware; not supported."""


class SendOpsFlags(NamedFlags):
    """The operations that a queue pair's builders may be used for (ibv_wr_post(3))."""

    RDMA_WRITE = 1 << 0
    """wr_rdma_write()."""
    RDMA_WRITE_WITH_IMM = 1 << 1
    """wr_rdma_write_imm()."""
    SEND = 1 << 2
    """wr_send()."""
    SEND_WITH_IMM = 1 << 3
    """wr_send_imm()."""
    RDMA_READ = 1 << 4
    """wr_rdma_read()."""
    ATOMIC_CMP_AND_SWP = 1 << 5
    """wr_atomic_cmp_swp()."""
    ATOMIC_FETCH_AND_ADD = 1 << 6
    """wr_atomic_fetch_add()."""
    LOCAL_INV = 1 << 7
    """wr_local_inv()."""
    BIND_MW = 1 << 8
    """wr_bind_mw()."""
    SEND_WITH_INV = 1 << 9
    """wr_send_inv()."""
    TSO = 1 << 10
    """wr_send_tso()."""
    FLUSH = 1 << 11
    """wr_flush()."""
    ATOMIC_WRITE = 1 << 12
    """wr_atomic_write()."""


class StreamRTR(Named):
    """iWARP: the message of length 0 by which the initiator makes a new connection ready (RFC 6581, 9.2)."""

    NONE = 0
    """There is none: the initiator's first message does it."""
    SEND = 1
    """A SEND, which takes no receive."""
    WRITE = 2
    """A WRITE."""
    READ = 3
    """A READ."""


class StreamEnd(Named):
    """iWARP: how the connection of a queue pair has ended."""

    FIN = 0
    """The peer has closed it in order, between two messages."""
    LOST = 1
    """It was reset, it timed out, or the peer has closed it within a message."""
    TERMINATED = 2
    """The peer has sent a Terminate message (RFC 5040, 4.8)."""
    REFUSED = 3
    """The peer has sent something that was refused, with a Terminate message if that could be sent."""
    CLOSED = 4
    """Both ends have closed it in order, this end first."""
    READY = 5
    """It has not ended: the peer's first message has come."""
