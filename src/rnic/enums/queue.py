# SPDX-License-Identifier: Apache-2.0
"""Work requests, completions, and the queues in which they wait."""

from rnic.wording import Named, NamedFlags, Worded

__all__ = [
    "WROpcode",
    "SendFlags",
    "WCStatus",
    "WCOpcode",
    "WCFlags",
    "SRQAttrMask",
    "SRQType",
    "OpsWROpcode",
    "OpsFlags",
    "CreateCQWCFlags",
    "CQInitAttrMask",
    "CreateCQAttrFlags",
    "CQAttrMask",
    "CompCntrType",
    "QPAttachCompCntrOp",
]


class WROpcode(Named):
    """The operation of a send work request (IBA 10.7.2; ibv_post_send(3))."""

    RDMA_WRITE = 0
    """Write into the peer's memory; the peer's program is not told."""
    RDMA_WRITE_WITH_IMM = 1
    """The same, and a receive of the peer completes with `imm_data`."""
    SEND = 2
    """Send a message, which takes a receive of the peer."""
    SEND_WITH_IMM = 3
    """The same, with a 32-bit number beside the message."""
    RDMA_READ = 4
    """Read from the peer's memory."""
    ATOMIC_CMP_AND_SWP = 5
    """Replace 8 bytes of the peer's memory if they are `compare_add`; what was there is returned."""
    ATOMIC_FETCH_AND_ADD = 6
    """Add `compare_add` to 8 bytes of the peer's memory; what was there is returned."""
    LOCAL_INV = 7
    """Make a key of this end invalid: of a memory window."""
    BIND_MW = 8
    """Bind a memory window of type 2."""
    SEND_WITH_INV = 9
    """Send a message, and make a key of the peer's invalid."""
    TSO = 10
    """Send a long TCP segment as many packets; not supported."""
    ATOMIC_WRITE = 15
    """Write 8 bytes of the peer's memory in one step."""
    FLUSH = 14
    """Make sure that bytes written before are seen, or outlive the power."""


class SendFlags(NamedFlags):
    """Flags of a send work request (ibv_post_send(3))."""

    FENCE = 1 << 0
    """Begin when the READs and atomics before it are over."""
    SIGNALED = 1 << 1
    """Make a completion also when it succeeds."""
    SOLICITED = 1 << 2
    """The peer's completion counts as solicited: see CQ.req_notify()."""
    INLINE = 1 << 3
    """Copy the bytes while it is posted: the buffer is free when post_send() returns."""
    IP_CSUM = 1 << 4
    """RAW_PACKET: fill in the checksums of IPv4, TCP and UDP."""


class WCStatus(Worded):
    """How a work request ended (IBA 11.6.2; ibv_poll_cq(3))."""

    SUCCESS = 0
    """The work request was carried out."""
    LOC_LEN_ERR = 1
    """A message is longer than the receive, or longer than the port can send."""
    LOC_QP_OP_ERR = 2
    """The queue pair cannot carry out this request."""
    LOC_EEC_OP_ERR = 3
    """Of reliable datagrams, which are not supported."""
    LOC_PROT_ERR = 4
    """An SGE names memory that the queue pair may not use."""
    WR_FLUSH_ERR = 5
    """Not carried out, as the queue pair was in ERR: an earlier completion tells why."""
    MW_BIND_ERR = 6
    """A memory window could not be bound."""
    BAD_RESP_ERR = 7
    """The peer's answer does not fit the request."""
    LOC_ACCESS_ERR = 8
    """A peer's WRITE with immediate was refused, and used up this receive."""
    REM_INV_REQ_ERR = 9
    """The peer calls the request invalid: too long for its receive, for example."""
    REM_ACCESS_ERR = 10
    """The peer refuses access to its memory."""
    REM_OP_ERR = 11
    """The peer could not finish the operation, for a reason of its own."""
    RETRY_EXC_ERR = 12
    """The peer did not acknowledge, however often the request was sent."""
    RNR_RETRY_EXC_ERR = 13
    """The peer had no receive posted, however often it was asked."""
    LOC_RDD_VIOL_ERR = 14
    """Of reliable datagrams, which are not supported."""
    REM_INV_RD_REQ_ERR = 15
    """Of reliable datagrams, which are not supported."""
    REM_ABORT_ERR = 16
    """The peer ended the operation; not reported by rnic."""
    INV_EECN_ERR = 17
    """Of reliable datagrams, which are not supported."""
    INV_EEC_STATE_ERR = 18
    """Of reliable datagrams, which are not supported."""
    FATAL_ERR = 19
    """The device failed; not reported by rnic."""
    RESP_TIMEOUT_ERR = 20
    """The peer's answer came too late; not reported by rnic."""
    GENERAL_ERR = 21
    """Something failed that has no status of its own; not reported by rnic."""
    TM_ERR = 22
    """A tag was to be removed that the matching list does not have."""
    TM_RNDV_INCOMPLETE = 23
    """Software has to fetch the data of a rendezvous; not reported by rnic."""


class WCOpcode(Named):
    """The operation that completed (IBA 11.4.2.1; ibv_poll_cq(3))."""

    SEND = 0
    """A SEND of any kind."""
    RDMA_WRITE = 1
    """A WRITE of any kind."""
    RDMA_READ = 2
    """A READ."""
    COMP_SWAP = 3
    """ATOMIC_CMP_AND_SWP."""
    FETCH_ADD = 4
    """ATOMIC_FETCH_AND_ADD."""
    BIND_MW = 5
    """The bind of a memory window."""
    LOCAL_INV = 6
    """LOCAL_INV."""
    TSO = 7
    """TSO."""
    FLUSH = 8
    """A FLUSH."""
    ATOMIC_WRITE = 9
    """An ATOMIC_WRITE."""
    RECV = 128
    """A receive that a message has taken."""
    RECV_RDMA_WITH_IMM = 129
    """A receive that a WRITE with immediate has taken; its bytes went elsewhere."""
    TM_ADD = 130
    """A tag was added."""
    TM_DEL = 131
    """A tag was removed."""
    TM_SYNC = 132
    """Unexpected messages were reported."""
    TM_RECV = 133
    """A receive with a tag has matched, or its data has come: see WCFlags."""
    TM_NO_TAG = 134
    """A receive that a message without a tag has taken."""


class WCFlags(NamedFlags):
    """Which optional fields of a completion are valid (ibv_poll_cq(3))."""

    GRH = 1 << 0
    """Of datagrams: the received bytes begin with a header of 40 bytes."""
    WITH_IMM = 1 << 1
    """`imm_data` is valid."""
    IP_CSUM_OK = 1 << 2
    """The checksums of the received frame are right."""
    WITH_INV = 1 << 3
    """`invalidated_rkey` is valid."""
    TM_SYNC_REQ = 1 << 4
    """The matching list wants a TAG_SYNC."""
    TM_MATCH = 1 << 5
    """The message has matched this receive."""
    TM_DATA_VALID = 1 << 6
    """The message's bytes are there."""


class SRQAttrMask(NamedFlags):
    """Which fields of an SRQAttr count (ibv_modify_srq(3))."""

    MAX_WR = 1 << 0
    """`max_wr`."""
    LIMIT = 1 << 1
    """`srq_limit`."""


class SRQType(Named):
    """The kind of a shared receive queue: ordinary, XRC or tag matching (ibv_create_srq_ex(3))."""

    BASIC = 0
    """Queue pairs that name it in QPInitAttr.srq."""
    XRC = 1
    """All XRC_RECV queue pairs of its domain, as the sender says."""
    TM = 2
    """Like BASIC, and messages with a tag take the receive with this tag."""


class OpsWROpcode(Named):
    """Operations on the matching list of a tag matching SRQ (ibv_post_srq_ops(3))."""

    TAG_ADD = 0
    """Add a receive with a tag."""
    TAG_DEL = 1
    """Remove one."""
    TAG_SYNC = 2
    """Report how many unexpected messages the program has seen."""


class OpsFlags(NamedFlags):
    """Flags of an operation on a matching list (ibv_post_srq_ops(3))."""

    SIGNALED = 1 << 0
    """The operation makes a completion."""
    TM_SYNC = 1 << 1
    """`unexpected_cnt` is valid: it reports, too."""


class CreateCQWCFlags(NamedFlags):
    """The fields that an extended completion queue keeps (ibv_create_cq_ex(3))."""

    WITH_BYTE_LEN = 1 << 0
    """read_byte_len()."""
    WITH_IMM = 1 << 1
    """read_imm_data()."""
    WITH_QP_NUM = 1 << 2
    """read_qp_num()."""
    WITH_SRC_QP = 1 << 3
    """read_src_qp()."""
    WITH_SLID = 1 << 4
    """read_slid()."""
    WITH_SL = 1 << 5
    """read_sl()."""
    WITH_DLID_PATH_BITS = 1 << 6
    """read_dlid_path_bits()."""
    WITH_COMPLETION_TIMESTAMP = 1 << 7
    """read_completion_ts()."""
    WITH_CVLAN = 1 << 8
    """The VLAN tag of a frame; not supported."""
    WITH_FLOW_TAG = 1 << 9
    """read_flow_tag()."""
    WITH_TM_INFO = 1 << 10
    """read_tm_info()."""
    WITH_COMPLETION_TIMESTAMP_WALLCLOCK = 1 << 11
    """read_completion_wallclock_ns()."""


class CQInitAttrMask(NamedFlags):
    """Which later fields of CQInitAttrEx count (ibv_create_cq_ex(3))."""

    FLAGS = 1 << 0
    """`flags`."""
    PD = 1 << 1
    """`parent_domain`."""


class CreateCQAttrFlags(NamedFlags):
    """How an extended completion queue is used (ibv_create_cq_ex(3))."""

    SINGLE_THREADED = 1 << 0
    """No two threads poll at a time."""
    IGNORE_OVERRUN = 1 << 1
    """When the queue is full, the oldest completion is lost."""


class CQAttrMask(NamedFlags):
    """What ModifyCQAttr changes (ibv_modify_cq(3))."""

    MODERATE = 1 << 0
    """`moderate`."""


class CompCntrType(Named):
    """What a completion counter counts: work requests or bytes (rdma-core 64: ibv_create_comp_cntr(3))."""

    WRS = 0
    """Work requests."""
    BYTES = 1
    """Their bytes."""


class QPAttachCompCntrOp(NamedFlags):
    """Which operations a completion counter counts (rdma-core 64: ibv_qp_attach_comp_cntr(3)).

    The REMOTE ones are operations of the peer that are executed here. Atomics and local operations are not
    counted.
    """

    SEND = 1 << 0
    """SENDs."""
    RECV = 1 << 1
    """Receives."""
    RDMA_READ = 1 << 2
    """READs."""
    REMOTE_RDMA_READ = 1 << 3
    """READs of the peer."""
    RDMA_WRITE = 1 << 4
    """WRITEs."""
    REMOTE_RDMA_WRITE = 1 << 5
    """WRITEs of the peer."""
