# SPDX-License-Identifier: Apache-2.0
"""What devices and ports are and can do, and what happens to them."""

from rnic.wording import Named, NamedFlags, Worded

__all__ = [
    "PortState",
    "LinkLayer",
    "GIDType",
    "Transport",
    "NodeType",
    "AtomicCap",
    "EventType",
    "DeviceCap",
    "DeviceCapEx",
    "ValuesMask",
    "ODPGeneralCap",
    "ODPTransportCap",
    "TMCapFlags",
]


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


class LinkLayer(Named):
    """What carries the packets of a port (ibv_query_port(3))."""

    UNSPECIFIED = 0
    """It is not known."""
    INFINIBAND = 1
    """InfiniBand."""
    ETHERNET = 2
    """Ethernet: RoCE."""


class GIDType(Named):
    """The protocol of an entry in the GID table (ibv_query_gid_ex(3))."""

    IB = 0
    """InfiniBand."""
    ROCE_V1 = 1
    """RoCE version 1: Ethernet frames that are not routed."""
    ROCE_V2 = 2
    """RoCE version 2: UDP over IPv4 or IPv6."""


class Transport(Named):
    """The protocol family of a device (ibv_get_device_list(3))."""

    UNKNOWN = -1
    """It is not known."""
    IB = 0
    """InfiniBand's transport, which RoCE has too."""
    IWARP = 1
    """iWARP: RDMA over TCP."""


class NodeType(Worded):
    """What kind of node a device is."""

    UNKNOWN = -1
    """It is not known."""
    CA = 1
    """A channel adapter: an InfiniBand or RoCE device."""
    RNIC = 4
    """An iWARP device."""


class AtomicCap(Named):
    """Atomics are atomic for nobody, for users of this device, or for everybody (ibv_query_device(3))."""

    NONE = 0
    """Atomics are not supported."""
    HCA = 1
    """They are atomic against each other at this device."""
    GLOB = 2
    """They are atomic against programs and other devices, too."""


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


class DeviceCap(NamedFlags):
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


class DeviceCapEx(NamedFlags):
    """Optional features with a bit beyond DeviceCap's 32 (ibv_query_device_ex(3)); the kernel's."""

    FLUSH_GLOBAL = 1 << 38
    """FLUSH can make bytes seen by all."""
    FLUSH_PERSISTENT = 1 << 39
    """FLUSH can make bytes outlive the power."""
    ATOMIC_WRITE = 1 << 40
    """There is ATOMIC_WRITE."""


class ValuesMask(NamedFlags):
    """Which values of a device are asked for (ibv_query_rt_values_ex(3))."""

    RAW_CLOCK = 1 << 0
    """`raw_clock`."""


class ODPGeneralCap(NamedFlags):
    """Whether memory, and the whole address space, can be registered ON_DEMAND (ibv_query_device_ex(3))."""

    SUPPORT = 1 << 0
    """Memory can be registered ON_DEMAND."""
    SUPPORT_IMPLICIT = 1 << 1
    """So can the whole address space."""


class ODPTransportCap(NamedFlags):
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
    FLUSH = 1 << 6
    """FLUSH of it, but not FLUSH_PERSISTENT."""
    ATOMIC_WRITE = 1 << 7
    """ATOMIC_WRITE to it."""


class TMCapFlags(NamedFlags):
    """The transports with tag matching (ibv_query_device_ex(3))."""

    RC = 1 << 0
    """Messages of reliable connections."""
