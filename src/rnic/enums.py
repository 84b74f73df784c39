# SPDX-License-Identifier: Apache-2.0
"""libibverbs' enumerations, with its names (less the prefix) and its values.

The C core holds the same rows (X-macros of nic.h); a test compares the two, and both with libibverbs.
"""

from enum import IntEnum, IntFlag

from rnic.wording import Worded

__all__ = [
    "QPState",
    "QPType",
    "MTU",
    "MigState",
    "PortState",
    "LinkLayer",
    "GIDType",
    "Transport",
    "NodeType",
    "AtomicCap",
    "AccessFlags",
    "QPAttrMask",
    "SRQAttrMask",
    "SRQType",
    "OpsWROpcode",
    "OpsFlags",
    "TMCapFlags",
    "WROpcode",
    "SendFlags",
    "WCStatus",
    "WCOpcode",
    "WCFlags",
    "EventType",
    "DeviceCap",
    "CreateCQWCFlags",
    "CQInitAttrMask",
    "CreateCQAttrFlags",
    "CQAttrMask",
    "ValuesMask",
    "CounterDescription",
    "ReadCountersFlags",
    "CompCntrType",
    "QPAttachCompCntrOp",
    "ReregMRFlags",
    "ODPGeneralCap",
    "ODPTransportCap",
    "AdviseMRAdvice",
    "AdviseMRFlags",
    "MWType",
    "DeviceCapEx",
    "PlacementType",
    "SelectivityLevel",
    "QPInitAttrMask",
    "QPCreateFlags",
    "SendOpsFlags",
    "FlowAttrType",
    "FlowFlags",
    "FlowSpecType",
    "RxHashFunction",
    "RxHashFields",
    "WQType",
    "WQFlags",
    "WQState",
    "WQAttrMask",
    "RawPacketCaps",
]


class QPState(IntEnum):
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


class QPType(IntEnum):
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


class MTU(IntEnum):
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


class MigState(IntEnum):
    """Automatic path migration (IBA 17.2.8)."""

    MIGRATED = 0
    """No other path is loaded, or the queue pair has changed over to it."""
    REARM = 1
    """Another path is to be armed at both ends."""
    ARMED = 2
    """Another path is ready: the queue pair changes over when the first one fails."""


class PortState(Worded):
    """The logical state of a port (IBA 14.2.5.6; ibv_query_port(3))."""

    NOP = 0
    """The state is not known."""
    DOWN = 1
    """There is no link: nothing is sent or received."""
    INIT = 2
    """There is a link; of InfiniBand, the subnet manager has not configured the port yet."""
    ARMED = 3
    """InfiniBand: the port is configured, and takes no data yet."""
    ACTIVE = 4
    """The port works."""
    ACTIVE_DEFER = 5
    """InfiniBand: the port works, and its link has failed for a moment."""


class LinkLayer(IntEnum):
    """What carries the packets of a port (ibv_query_port(3))."""

    UNSPECIFIED = 0
    """It is not known."""
    INFINIBAND = 1
    """InfiniBand."""
    ETHERNET = 2
    """Ethernet: RoCE."""


class GIDType(IntEnum):
    """The protocol of an entry in the GID table (ibv_query_gid_ex(3))."""

    IB = 0
    """InfiniBand."""
    ROCE_V1 = 1
    """RoCE version 1: Ethernet frames that are not routed."""
    ROCE_V2 = 2
    """RoCE version 2: UDP over IPv4 or IPv6."""


class Transport(IntEnum):
    """The protocol family of a device (ibv_get_device_list(3))."""

    UNKNOWN = -1
    """It is not known."""
    IB = 0
    """InfiniBand's transport, which RoCE has too."""
    IWARP = 1
    """iWARP: RDMA over TCP."""


class NodeType(Worded):
    """What kind of node a device is."""

    CA = 1
    """A channel adapter: an InfiniBand or RoCE device."""
    RNIC = 4
    """An iWARP device."""


class AtomicCap(IntEnum):
    """Atomics are atomic for nobody, for users of this device, or for everybody (ibv_query_device(3))."""

    NONE = 0
    """Atomics are not supported."""
    HCA = 1
    """They are atomic against each other at this device."""
    GLOB = 2
    """They are atomic against programs and other devices, too."""


class AccessFlags(IntFlag):
    """What may be done to a memory region, or through a queue pair (IBA 10.6.3; ibv_reg_mr(3))."""

    LOCAL_WRITE = 1 << 0
    """The device may write here: receives, and what READs and atomics return. REMOTE_WRITE needs it too."""
    REMOTE_WRITE = 1 << 1
    """The peer may WRITE."""
    REMOTE_READ = 1 << 2
    """The peer may READ."""
    REMOTE_ATOMIC = 1 << 3
    """The peer may do atomics."""
    MW_BIND = 1 << 4
    """Memory windows may be bound to the region."""
    ZERO_BASED = 1 << 5
    """Work requests and peers name the bytes from 0 on."""
    ON_DEMAND = 1 << 6
    """Pages of the region may come and go."""
    HUGETLB = 1 << 7
    """A hint that the memory has huge pages; software needs none."""
    RELAXED_ORDERING = 1 << 20
    """A hint that bytes may become visible in any order; without effect in software."""
    FLUSH_GLOBAL = 1 << 8
    """The peer may FLUSH, so that its writes are seen by all."""
    FLUSH_PERSISTENT = 1 << 9
    """The peer may FLUSH, so that its writes outlive the power."""


class QPAttrMask(IntFlag):
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


class SRQAttrMask(IntFlag):
    """Which fields of an SRQAttr count (ibv_modify_srq(3))."""

    MAX_WR = 1 << 0
    """`max_wr`."""
    LIMIT = 1 << 1
    """`srq_limit`."""


class SRQType(IntEnum):
    """The kind of a shared receive queue: ordinary, XRC or tag matching (ibv_create_srq_ex(3))."""

    BASIC = 0
    """Queue pairs that name it in QPInitAttr.srq."""
    XRC = 1
    """All XRC_RECV queue pairs of its domain, as the sender says."""
    TM = 2
    """Like BASIC, and messages with a tag take the receive with this tag."""


class OpsWROpcode(IntEnum):
    """Operations on the matching list of a tag matching SRQ (ibv_post_srq_ops(3))."""

    TAG_ADD = 0
    """Add a receive with a tag."""
    TAG_DEL = 1
    """Remove one."""
    TAG_SYNC = 2
    """Report how many unexpected messages the program has seen."""


class OpsFlags(IntFlag):
    """Flags of an operation on a matching list (ibv_post_srq_ops(3))."""

    SIGNALED = 1 << 0
    """The operation makes a completion."""
    TM_SYNC = 1 << 1
    """`unexpected_cnt` is valid: it reports, too."""


class TMCapFlags(IntFlag):
    """The transports with tag matching (ibv_query_device_ex(3))."""

    RC = 1 << 0
    """Messages of reliable connections."""


class WROpcode(IntEnum):
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


class SendFlags(IntFlag):
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


class WCOpcode(IntEnum):
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


class WCFlags(IntFlag):
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


class EventType(Worded):
    """The kind of an asynchronous event (IBA 11.6.3; ibv_get_async_event(3))."""

    CQ_ERR = 0
    """A completion queue was too small and has lost completions."""
    QP_FATAL = 1
    """A queue pair has failed, and no completion can tell."""
    QP_REQ_ERR = 2
    """A peer's request was invalid: the queue pair has failed."""
    QP_ACCESS_ERR = 3
    """A peer's request named memory that it may not use: the queue pair has failed."""
    COMM_EST = 4
    """The first message came while the queue pair was in RTR."""
    SQ_DRAINED = 5
    """The send queue has drained in SQD."""
    PATH_MIG = 6
    """The queue pair has changed over to its other path."""
    PATH_MIG_ERR = 7
    """It could not."""
    DEVICE_FATAL = 8
    """The device has failed, or its network device is gone."""
    PORT_ACTIVE = 9
    """The port works again."""
    PORT_ERR = 10
    """The port has lost its link."""
    LID_CHANGE = 11
    """InfiniBand: the port has another LID."""
    PKEY_CHANGE = 12
    """The table of P_Keys has changed."""
    SM_CHANGE = 13
    """InfiniBand: there is another subnet manager."""
    SRQ_ERR = 14
    """A shared receive queue has failed."""
    SRQ_LIMIT_REACHED = 15
    """Fewer receives than the limit are left in a shared receive queue."""
    QP_LAST_WQE_REACHED = 16
    """A queue pair in ERR takes no more receives from its shared receive queue."""
    CLIENT_REREGISTER = 17
    """InfiniBand: the subnet manager wants to be asked for everything again."""
    GID_CHANGE = 18
    """An address has come or gone."""
    WQ_FATAL = 19
    """A work queue has failed."""


class DeviceCap(IntFlag):
    """Optional features of a device (ibv_query_device(3))."""

    CURR_QP_STATE_MOD = 1 << 7
    """modify() takes `cur_qp_state`."""
    PORT_ACTIVE_EVENT = 1 << 10
    """PORT_ACTIVE is reported."""
    SYS_IMAGE_GUID = 1 << 11
    """`sys_image_guid` is valid."""
    RC_RNR_NAK_GEN = 1 << 12
    """A peer without a posted receive is told so by an RNR NAK."""
    SRQ_RESIZE = 1 << 13
    """SRQ.modify() can change the size."""
    N_NOTIFY_CQ = 1 << 14
    """A completion event can be asked for after a number of completions."""
    MEM_WINDOW = 1 << 17
    """There are memory windows of type 1."""
    XRC = 1 << 20
    """There are XRC domains and queue pairs."""
    BAD_PKEY_CNTR = 1 << 1
    """Packets with a wrong P_Key are counted."""
    BAD_QKEY_CNTR = 1 << 2
    """Datagrams with a wrong Q_Key are counted."""
    AUTO_PATH_MIG = 1 << 4
    """Queue pairs can change over to another path."""
    MEM_WINDOW_TYPE_2A = 1 << 23
    """There are memory windows of type 2A."""
    MEM_WINDOW_TYPE_2B = 1 << 24
    """There are memory windows of type 2B."""
    RAW_IP_CSUM = 1 << 26
    """Checksums of RAW_PACKET frames are filled in and looked at."""
    MANAGED_FLOW_STEERING = 1 << 29
    """Flow rules can be created."""


class CreateCQWCFlags(IntFlag):
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


class CQInitAttrMask(IntFlag):
    """Which later fields of CQInitAttrEx count (ibv_create_cq_ex(3))."""

    FLAGS = 1 << 0
    """`flags`."""
    PD = 1 << 1
    """`parent_domain`."""


class CreateCQAttrFlags(IntFlag):
    """How an extended completion queue is used (ibv_create_cq_ex(3))."""

    SINGLE_THREADED = 1 << 0
    """No two threads poll at a time."""
    IGNORE_OVERRUN = 1 << 1
    """When the queue is full, the oldest completion is lost."""


class CQAttrMask(IntFlag):
    """What ModifyCQAttr changes (ibv_modify_cq(3))."""

    MODERATE = 1 << 0
    """`moderate`."""


class ValuesMask(IntFlag):
    """Which values of a device are asked for (ibv_query_rt_values_ex(3))."""

    RAW_CLOCK = 1 << 0
    """`raw_clock`."""


class CounterDescription(IntEnum):
    """What to count of a flow: packets or bytes (ibv_attach_counters_point_flow(3))."""

    PACKETS = 0
    """Frames."""
    BYTES = 1
    """Their bytes."""


class ReadCountersFlags(IntFlag):
    """How counters of flows are read (ibv_read_counters(3))."""

    PREFER_CACHED = 1 << 0
    """Values that were read a moment ago will do."""


class CompCntrType(IntEnum):
    """What a completion counter counts: work requests or bytes (rdma-core 64: ibv_create_comp_cntr(3))."""

    WRS = 0
    """Work requests."""
    BYTES = 1
    """Their bytes."""


class QPAttachCompCntrOp(IntFlag):
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


class ReregMRFlags(IntFlag):
    """What MR.rereg() changes (ibv_rereg_mr(3))."""

    CHANGE_TRANSLATION = 1 << 0
    """The memory."""
    CHANGE_PD = 1 << 1
    """The protection domain."""
    CHANGE_ACCESS = 1 << 2
    """The rights."""


class ODPGeneralCap(IntFlag):
    """Whether memory, and the whole address space, can be registered ON_DEMAND (ibv_query_device_ex(3))."""

    SUPPORT = 1 << 0
    """Memory can be registered ON_DEMAND."""
    SUPPORT_IMPLICIT = 1 << 1
    """So can the whole address space."""


class ODPTransportCap(IntFlag):
    """The operations of a transport on memory that is registered ON_DEMAND (ibv_query_device_ex(3))."""

    SEND = 1 << 0
    """SEND from it."""
    RECV = 1 << 1
    """Receive into it."""
    WRITE = 1 << 2
    """WRITE, at both ends."""
    READ = 1 << 3
    """READ, at both ends."""
    ATOMIC = 1 << 4
    """Atomics."""
    SRQ_RECV = 1 << 5
    """Receives of shared receive queues."""


class AdviseMRAdvice(IntEnum):
    """The kinds of advice of PD.advise_mr() (ibv_advise_mr(3))."""

    PREFETCH = 0
    """Map the pages, to be read."""
    PREFETCH_WRITE = 1
    """Map them, to be written."""
    PREFETCH_NO_FAULT = 2
    """Use those that are mapped."""


class AdviseMRFlags(IntFlag):
    """Flags of PD.advise_mr() (ibv_advise_mr(3))."""

    FLUSH = 1 << 0
    """Return when it is done."""


class MWType(IntEnum):
    """The type of a memory window: usable by its protection domain, or by the queue pair that bound it.

    IBA 10.6.7; ibv_alloc_mw(3).
    """

    TYPE_1 = 1
    """QP.bind_mw() binds it; every queue pair of its protection domain may be asked for its bytes."""
    TYPE_2 = 2
    """A BIND_MW work request binds it, for one queue pair."""


class DeviceCapEx(IntFlag):
    """Optional features with a bit beyond DeviceCap's 32 (ibv_query_device_ex(3)); the kernel's."""

    FLUSH_GLOBAL = 1 << 38
    """FLUSH can make bytes seen by all."""
    FLUSH_PERSISTENT = 1 << 39
    """FLUSH can make bytes outlive the power."""
    ATOMIC_WRITE = 1 << 40
    """There is ATOMIC_WRITE."""


class PlacementType(IntFlag):
    """What a FLUSH guarantees (IBA A19.4.3): that everybody sees the bytes, or that they survive a loss of
    power.
    """

    GLOBAL = 1 << 0
    """All see the bytes."""
    PERSISTENT = 1 << 1
    """The bytes outlive the power."""


class SelectivityLevel(IntEnum):
    """Which bytes a FLUSH covers (IBA A19.4.3): a range, or the whole memory region."""

    RANGE = 0
    """The bytes that the request names."""
    MR = 1
    """The whole memory region."""


class QPInitAttrMask(IntFlag):
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


class QPCreateFlags(IntFlag):
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


class SendOpsFlags(IntFlag):
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


class FlowAttrType(IntEnum):
    """Which frames a flow rule takes (ibv_create_flow(3))."""

    NORMAL = 0
    """Frames that match its specifications."""
    ALL_DEFAULT = 1
    """Frames that no other rule wants."""
    MC_DEFAULT = 2
    """Multicast frames that no other rule wants."""
    SNIFFER = 3
    """Copies of all frames."""


class FlowFlags(IntFlag):
    """Flags of a flow rule (ibv_create_flow(3))."""

    DONT_TRAP = 1 << 1
    """Other rules get the frame, too."""
    EGRESS = 1 << 2
    """Frames that are sent; not supported."""


class FlowSpecType(IntEnum):
    """Headers that a flow rule matches, and its actions (ibv_create_flow(3))."""

    ETH = 0x20
    """SpecEth."""
    IPV4 = 0x30
    """SpecIPv4."""
    IPV6 = 0x31
    """SpecIPv6."""
    IPV4_EXT = 0x32
    """SpecIPv4Ext."""
    ESP = 0x34
    """IPsec; not supported."""
    TCP = 0x40
    """SpecTCP."""
    UDP = 0x41
    """SpecUDP."""
    VXLAN_TUNNEL = 0x50
    """VXLAN; not supported."""
    GRE = 0x51
    """GRE; not supported."""
    MPLS = 0x60
    """MPLS; not supported."""
    INNER = 0x100
    """The headers inside a tunnel; not supported."""
    ACTION_TAG = 0x1000
    """SpecActionTag."""
    ACTION_DROP = 0x1001
    """SpecActionDrop."""
    ACTION_HANDLE = 0x1002
    """An action of a vendor's; not supported."""
    ACTION_COUNT = 0x1003
    """SpecActionCount."""


class RxHashFunction(IntFlag):
    """How a queue pair hashes what it receives (ibv_create_qp_ex(3))."""

    TOEPLITZ = 1 << 0
    """The Toeplitz hash, with a key of 40 bytes."""


class RxHashFields(IntFlag):
    """What a queue pair hashes of what it receives (ibv_create_qp_ex(3))."""

    SRC_IPV4 = 1 << 0
    """The source address of IPv4."""
    DST_IPV4 = 1 << 1
    """The destination address of IPv4."""
    SRC_IPV6 = 1 << 2
    """The source address of IPv6."""
    DST_IPV6 = 1 << 3
    """The destination address of IPv6."""
    SRC_PORT_TCP = 1 << 4
    """The source port of TCP."""
    DST_PORT_TCP = 1 << 5
    """The destination port of TCP."""
    SRC_PORT_UDP = 1 << 6
    """The source port of UDP."""
    DST_PORT_UDP = 1 << 7
    """The destination port of UDP."""
    IPSEC_SPI = 1 << 8
    """The security index of IPsec; not supported."""
    INNER = 1 << 31
    """The headers inside a tunnel; not supported."""


class WQType(IntEnum):
    """What a work queue holds (ibv_create_wq(3))."""

    RQ = 0
    """Receives."""


class WQFlags(IntFlag):
    """Features of a work queue (ibv_create_wq(3))."""

    CVLAN_STRIPPING = 1 << 0
    """Received frames lose their VLAN tag; not supported."""
    SCATTER_FCS = 1 << 1
    """Received frames keep their checksum; not supported."""
    DELAY_DROP = 1 << 2
    """A frame waits for a receive before it is dropped; not supported."""
    PCI_WRITE_END_PADDING = 1 << 3
    """A hint for hardware; not supported."""


class WQState(IntEnum):
    """The state of a work queue (ibv_modify_wq(3))."""

    RESET = 0
    """New, or reset: it takes no frames."""
    RDY = 1
    """Receives can be posted, and take frames."""
    ERR = 2
    """Failed: its receives are flushed."""
    UNKNOWN = 3
    """The state is not known."""


class WQAttrMask(IntFlag):
    """Which fields of a WQAttr count (ibv_modify_wq(3))."""

    STATE = 1 << 0
    """`wq_state`."""
    CURR_STATE = 1 << 1
    """`curr_wq_state`."""
    FLAGS = 1 << 2
    """`flags` and `flags_mask`."""


class RawPacketCaps(IntFlag):
    """The device's features for RAW_PACKET queue pairs (ibv_query_device_ex(3))."""

    CVLAN_STRIPPING = 1 << 0
    """VLAN tags can be left out of received frames."""
    SCATTER_FCS = 1 << 1
    """Received frames can keep their checksum."""
    IP_CSUM = 1 << 2
    """Checksums are filled in and looked at."""
    DELAY_DROP = 1 << 3
    """A frame can wait for a receive."""
