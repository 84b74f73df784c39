# SPDX-License-Identifier: Apache-2.0
"""Addresses: GIDs, address vectors and handles, and the header in front of a received datagram."""

import struct
from collections.abc import Mapping
from functools import total_ordering
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any

from rnic._nic import nic
from rnic.records import Record

__all__ = ["AH", "GID", "AHAttr", "Route"]

_MAPPED = bytes(10) + b"\xff\xff"


@total_ordering
class GID:
    """A global identifier: 16 bytes in the form of an IPv6 address, immutable (IBA 4.1.1).

    With RoCEv2 it is the IP address of a port; an IPv4 address is ::ffff:a.b.c.d (IBA annex A17). GID() takes
    16 bytes, the text of an IPv4 or IPv6 address, an ipaddress object or another GID. It raises ValueError
    for anything else.
    """

    __slots__ = ("raw",)

    raw: bytes
    """The 16 bytes, in network order."""

    def __init__(
        self, value: "GID | str | bytes | bytearray | IPv4Address | IPv6Address" = bytes(16)
    ) -> None:
        object.__setattr__(self, "raw", _raw_gid(value))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a GID never changes: {name} cannot be set")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a GID never changes: {name} cannot be deleted")

    @property
    def ip(self) -> IPv4Address | IPv6Address:
        """The IP address: an IPv4Address if the GID is IPv4-mapped, else an IPv6Address."""
        if self.raw.startswith(_MAPPED):
            return IPv4Address(self.raw[12:])
        return IPv6Address(self.raw)

    def __bytes__(self) -> bytes:
        return self.raw

    def __bool__(self) -> bool:
        return any(self.raw)

    def __eq__(self, other: object) -> bool:
        return self.raw == other.raw if isinstance(other, GID) else NotImplemented

    def __lt__(self, other: object) -> bool:
        return self.raw < other.raw if isinstance(other, GID) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.raw)

    def __reduce__(self) -> tuple[type["GID"], tuple[bytes]]:
        return GID, (self.raw,)

    def __str__(self) -> str:
        ip = self.ip
        return f"::ffff:{ip}" if isinstance(ip, IPv4Address) else str(ip)

    def __repr__(self) -> str:
        return f"GID({str(self)!r})"


def _raw_gid(value: object) -> bytes:
    if isinstance(value, GID):
        return value.raw
    if isinstance(value, str):
        value = ip_address(value)
    if isinstance(value, IPv4Address):
        return _MAPPED + value.packed
    if isinstance(value, IPv6Address):
        return value.packed
    if isinstance(value, bytes | bytearray) and len(value) == 16:
        return bytes(value)
    raise ValueError(f"not a GID: {value!r}")


class AHAttr(Record):
    """The path to a peer, an address vector (IBA 11.2.2.1; ibv_modify_qp(3), ibv_create_ah(3)).

    `dgid` takes whatever GID() takes. RoCE uses only the global part and `sl`; dlid, src_path_bits and
    static_rate belong to InfiniBand links.
    """

    dgid: GID
    """The peer's GID."""
    sgid_index: int = 0
    """Index in the port's GID table of our own address, from which packets are sent."""
    port_num: int = 1
    """The port that packets leave by."""
    hop_limit: int = 64
    """IP time to live."""
    traffic_class: int = 0
    """IP DSCP and ECN, 8 bits."""
    flow_label: int = 0
    """20 bits of the IPv6 header. Over IPv4 it has no effect."""
    sl: int = 0
    """Service level: the priority, 0 to 7. Without a traffic class it becomes the DSCP class selector of the
    same number (RFC 2474). With a traffic class it must equal its first three bits.
    """
    dlid: int = 0
    """InfiniBand's: the peer's LID."""
    is_global: bool = True
    """Whether the packets carry a global route; RoCE needs True."""
    static_rate: int = 0
    """InfiniBand's: a limit of the path's speed (Rate)."""
    src_path_bits: int = 0
    """InfiniBand's: the low bits of our own LID."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "dgid", GID(self.dgid))

    def as_struct(self) -> dict[str, Any]:
        """The fields of struct rnic_ah_attr."""
        return {
            "grh": {
                "dgid": {"raw": self.dgid.raw},
                "flow_label": self.flow_label,
                "sgid_index": self.sgid_index,
                "hop_limit": self.hop_limit,
                "traffic_class": self.traffic_class,
            },
            "dlid": self.dlid,
            "sl": self.sl,
            "src_path_bits": self.src_path_bits,
            "static_rate": self.static_rate,
            "is_global": self.is_global,
            "port_num": self.port_num,
        }

    @classmethod
    def from_struct(cls, fields: Mapping[str, Any]) -> "AHAttr":
        """The record of struct rnic_ah_attr's fields."""
        own = dict(fields)
        route = dict(own.pop("grh"))
        dgid = GID(bytes(route.pop("dgid")["raw"]))
        return cls(dgid=dgid, **route, **{**own, "is_global": bool(own["is_global"])})


class AH(nic.AH):
    """An address handle: the path to a peer, named by every datagram to it (IBA 11.2.2; ibv_create_ah(3)).

    PD.create_ah() makes it. close() destroys it at once; work that is already posted still uses the path.
    """

    __slots__ = ()

    def query(self) -> AHAttr:
        """The address vector that the handle was created with (IBA 11.2.2.3)."""
        return AHAttr.from_struct(self.raw_query())


GRH_BYTES = 40
_IPV4 = 20
_WORDS = struct.Struct("!10H")


class Route(Record):
    """The source and destination of a datagram, from the 40 bytes in front of its payload (IBA 8.3; annex
    A17.4.5).
    """

    sgid: GID
    """The sender's address."""
    dgid: GID
    """The destination: one of our own addresses, or a multicast group."""
    hop_limit: int
    """IP time to live, as it arrived."""
    traffic_class: int
    """IP DSCP and ECN, 8 bits."""
    flow_label: int
    """20 bits, of IPv6; 0 of IPv4."""

    @classmethod
    def from_grh(cls, grh: bytes | bytearray | memoryview) -> "Route":
        """Read the 40 bytes in front of a datagram. Raises ValueError if they hold neither an IPv6 header
        nor, in the last 20 bytes, an IPv4 header.
        """
        raw = bytes(grh[:GRH_BYTES])
        if len(raw) < GRH_BYTES:
            raise ValueError(f"{len(raw)} bytes are no GRH, which has {GRH_BYTES}")
        if _is_ipv4(raw[_IPV4:]):
            ip = raw[_IPV4:]
            return cls(GID(_MAPPED + ip[12:16]), GID(_MAPPED + ip[16:20]), ip[8], ip[1], 0)
        if raw[0] >> 4 != 6:
            raise ValueError("neither an IPv6 header nor an IPv4 header behind 20 bytes: it is no GRH")
        (first,) = struct.unpack_from("!I", raw)
        return cls(GID(raw[8:24]), GID(raw[24:40]), raw[7], first >> 20 & 0xFF, first & 0xFFFFF)


def _is_ipv4(ip: bytes) -> bool:
    """Whether it is a header without options whose checksum is right."""
    total = sum(_WORDS.unpack(ip))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ip[0] == 0x45 and total == 0xFFFF
