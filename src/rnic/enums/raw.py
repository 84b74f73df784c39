# SPDX-License-Identifier: Apache-2.0
"""Ethernet frames: rules, the work queues of RAW_PACKET queue pairs, counters of flows."""

from rnic.wording import Named, NamedFlags

__all__ = [
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
    "CounterDescription",
    "ReadCountersFlags",
]


class FlowAttrType(Named):
    """Which frames a flow rule takes (ibv_create_flow(3))."""

    NORMAL = 0
    """Frames that match its specifications."""
    ALL_DEFAULT = 1
    """Frames that no other rule wants."""
    MC_DEFAULT = 2
    """Multicast frames that no other rule wants."""
    SNIFFER = 3
    """Copies of all frames."""


class FlowFlags(NamedFlags):
    """Flags of a flow rule (ibv_create_flow(3))."""

    DONT_TRAP = 1 << 1
    """Other rules get the frame, too."""
    EGRESS = 1 << 2
    """Frames that are sent; not supported."""


class FlowSpecType(Named):
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


class RxHashFunction(NamedFlags):
    """How a queue pair hashes what it receives (ibv_create_qp_ex(3))."""

    TOEPLITZ = 1 << 0
    """The Toeplitz hash, with a key of 40 bytes."""


class RxHashFields(NamedFlags):
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


class WQType(Named):
    """What a work queue holds (ibv_create_wq(3))."""

    RQ = 0
    """Receives."""


class WQFlags(NamedFlags):
    """Features of a work queue (ibv_create_wq(3))."""

    CVLAN_STRIPPING = 1 << 0
    """Received frames lose their VLAN tag; not supported."""
    SCATTER_FCS = 1 << 1
    """Received frames keep their checksum; not supported."""
    DELAY_DROP = 1 << 2
    """A frame waits for a receive before it is dropped; not supported."""
    PCI_WRITE_END_PADDING = 1 << 3
    """A hint for hardware; not supported."""


class WQState(Named):
    """The state of a work queue (ibv_modify_wq(3))."""

    RESET = 0
    """New, or reset: it takes no frames."""
    RDY = 1
    """Receives can be posted, and take frames."""
    ERR = 2
    """Failed: its receives are flushed."""
    UNKNOWN = 3
    """The state is not known."""


class WQAttrMask(NamedFlags):
    """Which fields of a WQAttr count (ibv_modify_wq(3))."""

    STATE = 1 << 0
    """`wq_state`."""
    CURR_STATE = 1 << 1
    """`curr_wq_state`."""
    FLAGS = 1 << 2
    """`flags` and `flags_mask`."""


class RawPacketCaps(NamedFlags):
    """The device's features for RAW_PACKET queue pairs (ibv_query_device_ex(3))."""

    CVLAN_STRIPPING = 1 << 0
    """VLAN tags can be left out of received frames."""
    SCATTER_FCS = 1 << 1
    """Received frames can keep their checksum."""
    IP_CSUM = 1 << 2
    """Checksums are filled in and looked at."""
    DELAY_DROP = 1 << 3
    """A frame can wait for a receive."""


class CounterDescription(Named):
    """What to count of a flow: packets or bytes (ibv_attach_counters_point_flow(3))."""

    PACKETS = 0
    """Frames."""
    BYTES = 1
    """Their bytes."""


class ReadCountersFlags(NamedFlags):
    """How counters of flows are read (ibv_read_counters(3))."""

    PREFER_CACHED = 1 << 0
    """Values that were read a moment ago will do."""
