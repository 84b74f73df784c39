# SPDX-License-Identifier: Apache-2.0
"""Flow steering: rules that say which frames a RAW_PACKET queue pair receives.

A specification describes one header. A field that is None matches everything. A field with a value must match
in all its bits, or in those of its mask.
"""

import struct
from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address
from typing import ClassVar

from rnic._nic import nic
from rnic.enums import FlowAttrType, FlowFlags, FlowSpecType
from rnic.records import Record

__all__ = [
    "Flow",
    "FlowAttr",
    "SpecActionCount",
    "SpecActionDrop",
    "SpecActionTag",
    "SpecEth",
    "SpecIPv4",
    "SpecIPv4Ext",
    "SpecIPv6",
    "SpecTCP",
    "SpecUDP",
]

Mac = str | bytes
Fields = dict[str, tuple[int, Callable[..., bytes]]]
_HEADER = struct.Struct("=iH")  # type, size


def _mac(value: Mac) -> bytes:
    raw = bytes.fromhex(value.replace(":", "")) if isinstance(value, str) else bytes(value)
    if len(raw) != 6:
        raise ValueError(f"not an Ethernet address: {value!r}")
    return raw


def _ipv4(value: str | IPv4Address) -> bytes:
    return IPv4Address(value).packed


def _ipv6(value: str | IPv6Address) -> bytes:
    return IPv6Address(value).packed


def _number(nbytes: int) -> Callable[[int], bytes]:
    def pack(value: int) -> bytes:
        if not 0 <= value < 1 << 8 * nbytes:
            raise ValueError(f"{value} does not fit {nbytes} bytes")
        return value.to_bytes(nbytes, "big")

    return pack


_U8, _U16, _U32 = _number(1), _number(2), _number(4)


def _layout(kind: FlowSpecType, align: int, *parts: bytes) -> bytes:
    """A specification as libibverbs lays it out: each part, and the whole, at its alignment."""
    body = b""
    for part in parts:
        body += bytes(-(_HEADER.size + len(body)) % align) + part
    body += bytes(-(_HEADER.size + len(body)) % max(align, 4))
    return _HEADER.pack(kind, _HEADER.size + len(body)) + body


class _Filter(Record):
    """A specification with a value and a mask for each of its fields."""

    __slots__ = ()

    kind: ClassVar[FlowSpecType]
    """The type of the struct."""
    align: ClassVar[int]
    """The alignment of its parts, in bytes."""
    fields: ClassVar[Fields]
    """The struct's fields in its order: their bytes, and how a value becomes bytes."""
    whole: ClassVar[dict[str, bytes]] = {
        "flow_label": b"\0\x0f\xff\xff",
        "hop_limit": b"\xff\0",
        "flags": b"\6",
    }
    """Masks of all bits, where these are not all of the field's."""

    def as_bytes(self) -> bytes:
        """The struct ibv_flow_spec_... of libibverbs."""
        value, mask = b"", b""
        for name, (nbytes, pack) in self.fields.items():
            given, bits = getattr(self, name), getattr(self, f"{name}_mask")
            value += bytes(nbytes) if given is None else pack(given)
            whole = bytes(nbytes) if given is None else self.whole.get(name, b"\xff" * nbytes)
            if bits is not None and given is None:
                raise ValueError(f"{type(self).__name__}: {name}_mask without {name}")
            mask += whole if bits is None else pack(bits)
        return _layout(self.kind, self.align, value, mask)


class SpecEth(_Filter):
    """The Ethernet header (struct ibv_flow_spec_eth); an address is "02:00:00:00:00:01" or 6 bytes."""

    dst_mac: Mac | None = None
    """The destination address."""
    src_mac: Mac | None = None
    """The source address."""
    ether_type: int | None = None
    """The type behind the last VLAN tag."""
    vlan_tag: int | None = None
    """The outermost VLAN tag: 3 bits priority, 1 bit DEI, 12 bits VLAN. Untagged frames do not match."""
    dst_mac_mask: Mac | None = None
    """Which bits of dst_mac count; None: all."""
    src_mac_mask: Mac | None = None
    """Which bits of src_mac count; None: all."""
    ether_type_mask: int | None = None
    """Which bits of ether_type count; None: all."""
    vlan_tag_mask: int | None = None
    """Which bits of vlan_tag count; None: all."""

    kind = FlowSpecType.ETH
    align = 2
    fields: ClassVar[Fields] = {
        "dst_mac": (6, _mac),
        "src_mac": (6, _mac),
        "ether_type": (2, _U16),
        "vlan_tag": (2, _U16),
    }


class SpecIPv4(_Filter):
    """The addresses in the IPv4 header (struct ibv_flow_spec_ipv4); without any field, every IPv4 packet."""

    src_ip: str | IPv4Address | None = None
    """The source address."""
    dst_ip: str | IPv4Address | None = None
    """The destination address."""
    src_ip_mask: str | IPv4Address | None = None
    """Which bits of src_ip count; None: all."""
    dst_ip_mask: str | IPv4Address | None = None
    """Which bits of dst_ip count; None: all."""

    kind = FlowSpecType.IPV4
    align = 4
    fields: ClassVar[Fields] = {"src_ip": (4, _ipv4), "dst_ip": (4, _ipv4)}


class SpecIPv4Ext(_Filter):
    """More fields of the IPv4 header (struct ibv_flow_spec_ipv4_ext)."""

    src_ip: str | IPv4Address | None = None
    """The source address."""
    dst_ip: str | IPv4Address | None = None
    """The destination address."""
    proto: int | None = None
    """What the packet carries: 6 is TCP, 17 UDP."""
    tos: int | None = None
    """DSCP and ECN, 8 bits."""
    ttl: int | None = None
    """Time to live."""
    flags: int | None = None
    """2: do not fragment, 4: more fragments. A mask with other bits is refused."""
    src_ip_mask: str | IPv4Address | None = None
    """Which bits of src_ip count; None: all."""
    dst_ip_mask: str | IPv4Address | None = None
    """Which bits of dst_ip count; None: all."""
    proto_mask: int | None = None
    """Which bits of proto count; None: all."""
    tos_mask: int | None = None
    """Which bits of tos count; None: all."""
    ttl_mask: int | None = None
    """Which bits of ttl count; None: all."""
    flags_mask: int | None = None
    """Which bits of flags count; None: both."""

    kind = FlowSpecType.IPV4_EXT
    align = 4
    fields: ClassVar[Fields] = {
        "src_ip": (4, _ipv4),
        "dst_ip": (4, _ipv4),
        "proto": (1, _U8),
        "tos": (1, _U8),
        "ttl": (1, _U8),
        "flags": (1, _U8),
    }


class SpecIPv6(_Filter):
    """The IPv6 header (struct ibv_flow_spec_ipv6); without any field, every IPv6 packet."""

    src_ip: str | IPv6Address | None = None
    """The source address."""
    dst_ip: str | IPv6Address | None = None
    """The destination address."""
    flow_label: int | None = None
    """20 bits."""
    next_hdr: int | None = None
    """The protocol behind all extension headers."""
    traffic_class: int | None = None
    """DSCP and ECN, 8 bits."""
    hop_limit: int | None = None
    """Time to live."""
    src_ip_mask: str | IPv6Address | None = None
    """Which bits of src_ip count; None: all."""
    dst_ip_mask: str | IPv6Address | None = None
    """Which bits of dst_ip count; None: all."""
    flow_label_mask: int | None = None
    """20 bits."""
    next_hdr_mask: int | None = None
    """Which bits of next_hdr count; None: all."""
    traffic_class_mask: int | None = None
    """Which bits of traffic_class count; None: all."""
    hop_limit_mask: int | None = None
    """Which bits of hop_limit count; None: all."""

    kind = FlowSpecType.IPV6
    align = 4
    fields: ClassVar[Fields] = {
        "src_ip": (16, _ipv6),
        "dst_ip": (16, _ipv6),
        "flow_label": (4, _U32),
        "next_hdr": (1, _U8),
        "traffic_class": (1, _U8),
        "hop_limit": (2, lambda value: _U8(value) + b"\0"),  # and a byte of padding
    }


class _Ports(_Filter):
    """The ports of TCP or UDP: they are not known of fragments, which do not match."""

    __slots__ = ()

    align = 2
    fields: ClassVar[Fields] = {"dst_port": (2, _U16), "src_port": (2, _U16)}


class SpecTCP(_Ports):
    """The ports in the TCP header (struct ibv_flow_spec_tcp_udp); without any field, every TCP segment."""

    dst_port: int | None = None
    """The destination port."""
    src_port: int | None = None
    """The source port."""
    dst_port_mask: int | None = None
    """Which bits of dst_port count; None: all."""
    src_port_mask: int | None = None
    """Which bits of src_port count; None: all."""

    kind = FlowSpecType.TCP


class SpecUDP(_Ports):
    """The ports in the UDP header (struct ibv_flow_spec_tcp_udp); without any field, every UDP datagram."""

    dst_port: int | None = None
    """The destination port."""
    src_port: int | None = None
    """The source port."""
    dst_port_mask: int | None = None
    """Which bits of dst_port count; None: all."""
    src_port_mask: int | None = None
    """Which bits of src_port count; None: all."""

    kind = FlowSpecType.UDP


class SpecActionTag(Record):
    """Set WC.flow_tag of the frames' completions to tag_id, 24 bits (struct ibv_flow_spec_action_tag)."""

    tag_id: int
    """The tag, 24 bits."""

    def as_bytes(self) -> bytes:
        """The struct of libibverbs."""
        return _layout(FlowSpecType.ACTION_TAG, 4, struct.pack("=I", self.tag_id))


class SpecActionDrop(Record):
    """Drop the frames (struct ibv_flow_spec_action_drop); the counter drop_flow_rule counts them."""

    def as_bytes(self) -> bytes:
        """The struct of libibverbs."""
        return _layout(FlowSpecType.ACTION_DROP, 4)


class SpecActionCount(Record):
    """Count the frames (struct ibv_flow_spec_counter_action)."""

    counters: nic.FlowCounters
    """What counts the frames."""

    def as_bytes(self) -> bytes:
        """The struct of libibverbs."""
        return _layout(FlowSpecType.ACTION_COUNT, 8, struct.pack("=Q", self.counters.pointer))


Spec = (
    SpecEth
    | SpecIPv4
    | SpecIPv4Ext
    | SpecIPv6
    | SpecTCP
    | SpecUDP
    | SpecActionTag
    | SpecActionDrop
    | SpecActionCount
)
_ATTR = struct.Struct("=IiHHBBxxI")


class FlowAttr(Record):
    """A rule for frames (struct ibv_flow_attr, ibv_create_flow(3)): all its specifications have to match."""

    type: FlowAttrType = FlowAttrType.NORMAL
    """NORMAL: matching frames. SNIFFER: copies of all frames. ALL_DEFAULT, MC_DEFAULT: frames, or multicast
    frames, that no other rule takes.
    """
    specs: tuple[Spec, ...] = ()
    """What a frame must match, and what is done to it."""
    priority: int = 0
    """16 bits. The lowest number is tried first; of equal numbers, the oldest rule."""
    port: int = 1
    """The port, 1."""
    flags: FlowFlags | int = 0
    """DONT_TRAP, for NORMAL rules: the frame also goes to later rules. EGRESS is not supported."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "specs", tuple(self.specs))

    def as_bytes(self) -> bytes:
        """The struct ibv_flow_attr with its specifications behind it."""
        specs = b"".join(spec.as_bytes() for spec in self.specs)
        size = _ATTR.size + len(specs)
        head = _ATTR.pack(0, self.type, size, self.priority, len(self.specs), self.port, self.flags)
        return head + specs

    def counters(self) -> tuple[nic.FlowCounters, ...]:
        """The counters that its actions name."""
        return tuple({spec.counters: None for spec in self.specs if isinstance(spec, SpecActionCount)})


class Flow(nic.Flow):
    """A rule in force (ibv_create_flow(3)); QP.create_flow() makes it, close() removes it.

    Close the flow before its queue pair and before the counters that it names.
    """

    __slots__ = ()
