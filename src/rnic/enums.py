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
]


class QPState(IntEnum):
    """The state of a queue pair: what it accepts and does (IBA 10.3.1; ibv_modify_qp(3))."""

    RESET = 0
    INIT = 1
    RTR = 2
    RTS = 3
    SQD = 4
    SQE = 5
    ERR = 6


class QPType(IntEnum):
    """The transport service of a queue pair (IBA 9.1; ibv_create_qp(3)).

    GSI is queue pair 1, for management datagrams (IBA 13.5.1); libibverbs has no name for it, the value
    is the kernel's.
    """

    GSI = 1
    RC = 2
    UC = 3
    UD = 4
    RAW_PACKET = 8
    XRC_SEND = 9
    XRC_RECV = 10


class MTU(IntEnum):
    """The most payload bytes in one packet of a path, as a code (IBA 9.2); `.nbytes` is their number."""

    MTU_256 = 1
    MTU_512 = 2
    MTU_1024 = 3
    MTU_2048 = 4
    MTU_4096 = 5

    @property
    def nbytes(self) -> int:
        """The payload bytes that this code stands for: 256 to 4096."""
        return 128 << self


class MigState(IntEnum):
    """Automatic path migration (IBA 17.2.8)."""

    MIGRATED = 0
    REARM = 1
    ARMED = 2


class PortState(Worded):
    """The logical state of a port (IBA 14.2.5.6; ibv_query_port(3))."""

    NOP = 0
    DOWN = 1
    INIT = 2
    ARMED = 3
    ACTIVE = 4
    ACTIVE_DEFER = 5


class LinkLayer(IntEnum):
    """What carries the packets of a port (ibv_query_port(3))."""

    UNSPECIFIED = 0
    INFINIBAND = 1
    ETHERNET = 2


class GIDType(IntEnum):
    """What an entry of the GID table speaks (ibv_query_gid_ex(3))."""

    IB = 0
    ROCE_V1 = 1
    ROCE_V2 = 2


class Transport(IntEnum):
    """The protocol family of a device (ibv_get_device_list(3))."""

    UNKNOWN = -1
    IB = 0
    IWARP = 1


class NodeType(Worded):
    """What kind of node a device is."""

    CA = 1
    RNIC = 4


class AtomicCap(IntEnum):
    """Against whom atomics are atomic: nobody, this device's users, everybody (ibv_query_device(3))."""

    NONE = 0
    HCA = 1
    GLOB = 2


class AccessFlags(IntFlag):
    """What may be done to a memory region, or through a queue pair (IBA 10.6.3; ibv_reg_mr(3))."""

    LOCAL_WRITE = 1 << 0
    REMOTE_WRITE = 1 << 1
    REMOTE_READ = 1 << 2
    REMOTE_ATOMIC = 1 << 3
    MW_BIND = 1 << 4
    ZERO_BASED = 1 << 5
    ON_DEMAND = 1 << 6
    HUGETLB = 1 << 7
    RELAXED_ORDERING = 1 << 20
    FLUSH_GLOBAL = 1 << 8
    FLUSH_PERSISTENT = 1 << 9


class QPAttrMask(IntFlag):
    """Which fields of a QPAttr count (ibv_modify_qp(3))."""

    STATE = 1 << 0
    CUR_STATE = 1 << 1
    EN_SQD_ASYNC_NOTIFY = 1 << 2
    ACCESS_FLAGS = 1 << 3
    PKEY_INDEX = 1 << 4
    PORT = 1 << 5
    QKEY = 1 << 6
    AV = 1 << 7
    PATH_MTU = 1 << 8
    TIMEOUT = 1 << 9
    RETRY_CNT = 1 << 10
    RNR_RETRY = 1 << 11
    RQ_PSN = 1 << 12
    MAX_QP_RD_ATOMIC = 1 << 13
    ALT_PATH = 1 << 14
    MIN_RNR_TIMER = 1 << 15
    SQ_PSN = 1 << 16
    MAX_DEST_RD_ATOMIC = 1 << 17
    PATH_MIG_STATE = 1 << 18
    CAP = 1 << 19
    DEST_QPN = 1 << 20
    RATE_LIMIT = 1 << 25


class SRQAttrMask(IntFlag):
    """Which fields of an SRQAttr count (ibv_modify_srq(3))."""

    MAX_WR = 1 << 0
    LIMIT = 1 << 1


class SRQType(IntEnum):
    """What takes from a shared receive queue, and how (ibv_create_srq_ex(3))."""

    BASIC = 0
    XRC = 1
    TM = 2


class OpsWROpcode(IntEnum):
    """What is done to the matching list of a tag matching SRQ (ibv_post_srq_ops(3))."""

    TAG_ADD = 0
    TAG_DEL = 1
    TAG_SYNC = 2


class OpsFlags(IntFlag):
    """How an operation on a matching list is carried out (ibv_post_srq_ops(3))."""

    SIGNALED = 1 << 0
    TM_SYNC = 1 << 1


class TMCapFlags(IntFlag):
    """On what tags are matched (ibv_query_device_ex(3))."""

    RC = 1 << 0


class WROpcode(IntEnum):
    """What a send work request asks for (IBA 10.7.2; ibv_post_send(3))."""

    RDMA_WRITE = 0
    RDMA_WRITE_WITH_IMM = 1
    SEND = 2
    SEND_WITH_IMM = 3
    RDMA_READ = 4
    ATOMIC_CMP_AND_SWP = 5
    ATOMIC_FETCH_AND_ADD = 6
    LOCAL_INV = 7
    BIND_MW = 8
    SEND_WITH_INV = 9
    TSO = 10
    ATOMIC_WRITE = 15
    FLUSH = 14


class SendFlags(IntFlag):
    """How a send work request is carried out (ibv_post_send(3))."""

    FENCE = 1 << 0
    SIGNALED = 1 << 1
    SOLICITED = 1 << 2
    INLINE = 1 << 3
    IP_CSUM = 1 << 4


class WCStatus(Worded):
    """How a work request ended (IBA 11.6.2; ibv_poll_cq(3))."""

    SUCCESS = 0
    LOC_LEN_ERR = 1
    LOC_QP_OP_ERR = 2
    LOC_EEC_OP_ERR = 3
    LOC_PROT_ERR = 4
    WR_FLUSH_ERR = 5
    MW_BIND_ERR = 6
    BAD_RESP_ERR = 7
    LOC_ACCESS_ERR = 8
    REM_INV_REQ_ERR = 9
    REM_ACCESS_ERR = 10
    REM_OP_ERR = 11
    RETRY_EXC_ERR = 12
    RNR_RETRY_EXC_ERR = 13
    LOC_RDD_VIOL_ERR = 14
    REM_INV_RD_REQ_ERR = 15
    REM_ABORT_ERR = 16
    INV_EECN_ERR = 17
    INV_EEC_STATE_ERR = 18
    FATAL_ERR = 19
    RESP_TIMEOUT_ERR = 20
    GENERAL_ERR = 21
    TM_ERR = 22
    TM_RNDV_INCOMPLETE = 23


class WCOpcode(IntEnum):
    """What a completion completes (IBA 11.4.2.1; ibv_poll_cq(3))."""

    SEND = 0
    RDMA_WRITE = 1
    RDMA_READ = 2
    COMP_SWAP = 3
    FETCH_ADD = 4
    BIND_MW = 5
    LOCAL_INV = 6
    TSO = 7
    FLUSH = 8
    ATOMIC_WRITE = 9
    RECV = 128
    RECV_RDMA_WITH_IMM = 129
    TM_ADD = 130
    TM_DEL = 131
    TM_SYNC = 132
    TM_RECV = 133
    TM_NO_TAG = 134


class WCFlags(IntFlag):
    """Which optional fields of a completion are valid (ibv_poll_cq(3))."""

    GRH = 1 << 0
    WITH_IMM = 1 << 1
    IP_CSUM_OK = 1 << 2
    WITH_INV = 1 << 3
    TM_SYNC_REQ = 1 << 4
    TM_MATCH = 1 << 5
    TM_DATA_VALID = 1 << 6


class EventType(Worded):
    """What an asynchronous event reports (IBA 11.6.3; ibv_get_async_event(3))."""

    CQ_ERR = 0
    QP_FATAL = 1
    QP_REQ_ERR = 2
    QP_ACCESS_ERR = 3
    COMM_EST = 4
    SQ_DRAINED = 5
    PATH_MIG = 6
    PATH_MIG_ERR = 7
    DEVICE_FATAL = 8
    PORT_ACTIVE = 9
    PORT_ERR = 10
    LID_CHANGE = 11
    PKEY_CHANGE = 12
    SM_CHANGE = 13
    SRQ_ERR = 14
    SRQ_LIMIT_REACHED = 15
    QP_LAST_WQE_REACHED = 16
    CLIENT_REREGISTER = 17
    GID_CHANGE = 18
    WQ_FATAL = 19


class DeviceCap(IntFlag):
    """Optional features of a device (ibv_query_device(3))."""

    CURR_QP_STATE_MOD = 1 << 7
    PORT_ACTIVE_EVENT = 1 << 10
    SYS_IMAGE_GUID = 1 << 11
    RC_RNR_NAK_GEN = 1 << 12
    SRQ_RESIZE = 1 << 13
    N_NOTIFY_CQ = 1 << 14
    MEM_WINDOW = 1 << 17
    XRC = 1 << 20
    BAD_PKEY_CNTR = 1 << 1
    BAD_QKEY_CNTR = 1 << 2
    AUTO_PATH_MIG = 1 << 4
    MEM_WINDOW_TYPE_2A = 1 << 23
    MEM_WINDOW_TYPE_2B = 1 << 24


class CreateCQWCFlags(IntFlag):
    """What an extended completion queue keeps of a completion (ibv_create_cq_ex(3))."""

    WITH_BYTE_LEN = 1 << 0
    WITH_IMM = 1 << 1
    WITH_QP_NUM = 1 << 2
    WITH_SRC_QP = 1 << 3
    WITH_SLID = 1 << 4
    WITH_SL = 1 << 5
    WITH_DLID_PATH_BITS = 1 << 6
    WITH_COMPLETION_TIMESTAMP = 1 << 7
    WITH_CVLAN = 1 << 8
    WITH_FLOW_TAG = 1 << 9
    WITH_TM_INFO = 1 << 10
    WITH_COMPLETION_TIMESTAMP_WALLCLOCK = 1 << 11


class CQInitAttrMask(IntFlag):
    """Which later fields of CQInitAttrEx count (ibv_create_cq_ex(3))."""

    FLAGS = 1 << 0
    PD = 1 << 1


class CreateCQAttrFlags(IntFlag):
    """How an extended completion queue is used (ibv_create_cq_ex(3))."""

    SINGLE_THREADED = 1 << 0
    IGNORE_OVERRUN = 1 << 1


class CQAttrMask(IntFlag):
    """What ModifyCQAttr changes (ibv_modify_cq(3))."""

    MODERATE = 1 << 0


class ValuesMask(IntFlag):
    """Which values of a device are asked for (ibv_query_rt_values_ex(3))."""

    RAW_CLOCK = 1 << 0


class CounterDescription(IntEnum):
    """What of a flow is counted (ibv_attach_counters_point_flow(3))."""

    PACKETS = 0
    BYTES = 1


class ReadCountersFlags(IntFlag):
    """How counters of flows are read (ibv_read_counters(3))."""

    PREFER_CACHED = 1 << 0


class CompCntrType(IntEnum):
    """What a completion counter adds up (rdma-core 64: ibv_create_comp_cntr(3))."""

    WRS = 0
    BYTES = 1


class QPAttachCompCntrOp(IntFlag):
    """Which operations a completion counter counts (rdma-core 64: ibv_qp_attach_comp_cntr(3)).

    The REMOTE ones are the peer's, as they are executed here.  Atomics and local operations are not counted.
    """

    SEND = 1 << 0
    RECV = 1 << 1
    RDMA_READ = 1 << 2
    REMOTE_RDMA_READ = 1 << 3
    RDMA_WRITE = 1 << 4
    REMOTE_RDMA_WRITE = 1 << 5


class ReregMRFlags(IntFlag):
    """What MR.rereg() changes (ibv_rereg_mr(3))."""

    CHANGE_TRANSLATION = 1 << 0
    CHANGE_PD = 1 << 1
    CHANGE_ACCESS = 1 << 2


class ODPGeneralCap(IntFlag):
    """Whether memory can be registered ON_DEMAND, and the whole address space so (ibv_query_device_ex(3))."""

    SUPPORT = 1 << 0
    SUPPORT_IMPLICIT = 1 << 1


class ODPTransportCap(IntFlag):
    """What a transport can do with memory that is registered ON_DEMAND (ibv_query_device_ex(3))."""

    SEND = 1 << 0
    RECV = 1 << 1
    WRITE = 1 << 2
    READ = 1 << 3
    ATOMIC = 1 << 4
    SRQ_RECV = 1 << 5


class AdviseMRAdvice(IntEnum):
    """What PD.advise_mr() asks for (ibv_advise_mr(3))."""

    PREFETCH = 0
    PREFETCH_WRITE = 1
    PREFETCH_NO_FAULT = 2


class AdviseMRFlags(IntFlag):
    """How PD.advise_mr() does it (ibv_advise_mr(3))."""

    FLUSH = 1 << 0


class MWType(IntEnum):
    """Who may use a bound memory window: its protection domain, or the queue pair that it was bound through.

    IBA 10.6.7; ibv_alloc_mw(3).
    """

    TYPE_1 = 1
    TYPE_2 = 2


class DeviceCapEx(IntFlag):
    """Optional features with a bit beyond DeviceCap's 32 (ibv_query_device_ex(3)); the kernel's."""

    FLUSH_GLOBAL = 1 << 38
    FLUSH_PERSISTENT = 1 << 39
    ATOMIC_WRITE = 1 << 40


class PlacementType(IntFlag):
    """What a FLUSH makes sure of (IBA A19.4.3): that bytes are seen by all, that they outlive the power."""

    GLOBAL = 1 << 0
    PERSISTENT = 1 << 1


class SelectivityLevel(IntEnum):
    """Which bytes a FLUSH is about (IBA A19.4.3): a range, or the whole memory region."""

    RANGE = 0
    MR = 1


class QPInitAttrMask(IntFlag):
    """Which fields of QPInitAttrEx are valid (ibv_create_qp_ex(3))."""

    PD = 1 << 0
    XRCD = 1 << 1
    CREATE_FLAGS = 1 << 2
    MAX_TSO_HEADER = 1 << 3
    IND_TABLE = 1 << 4
    RX_HASH = 1 << 5
    SEND_OPS_FLAGS = 1 << 6


class QPCreateFlags(IntFlag):
    """How a queue pair is created (ibv_create_qp_ex(3))."""

    BLOCK_SELF_MCAST_LB = 1 << 1
    SCATTER_FCS = 1 << 8
    CVLAN_STRIPPING = 1 << 9
    SOURCE_QPN = 1 << 10
    PCI_WRITE_END_PADDING = 1 << 11


class SendOpsFlags(IntFlag):
    """The operations that a queue pair's builders may be used for (ibv_wr_post(3))."""

    RDMA_WRITE = 1 << 0
    RDMA_WRITE_WITH_IMM = 1 << 1
    SEND = 1 << 2
    SEND_WITH_IMM = 1 << 3
    RDMA_READ = 1 << 4
    ATOMIC_CMP_AND_SWP = 1 << 5
    ATOMIC_FETCH_AND_ADD = 1 << 6
    LOCAL_INV = 1 << 7
    BIND_MW = 1 << 8
    SEND_WITH_INV = 1 << 9
    TSO = 1 << 10
    FLUSH = 1 << 11
    ATOMIC_WRITE = 1 << 12
