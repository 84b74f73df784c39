# SPDX-License-Identifier: Apache-2.0
"""The messages of the communication manager (IBA 12.6), and the IP addresses in private data (annex A11).

    mad = MAD.parse(payload)
    message = parse_cm(mad)                      # a Req, Rep, Rej ...
    message.to_mad(mad.tid, mad.attr_mod) == mad

Private data is parsed whole, with the zeros that follow what was sent: its length is not on the wire.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address
from typing import ClassVar

from rnic.wire.bits import BitStruct, at, bytes_at, flag_at, gid_at, split_at, struct_at
from rnic.wire.cm_names import (
    EXTENDED_XRC,
    Answered,
    AprStatus,
    CmAttr,
    RejReason,
    SidrStatus,
    TransportType,
    name_of,
    service_text,
    split_service_id,
)
from rnic.wire.error import WireError
from rnic.wire.header import fit
from rnic.wire.mad import CM_CLASS_VERSION, MAD, MadMethod, MgmtClass

CM_DATA_BYTES = 232


class CmMessage(BitStruct, kw_only=True):
    """The common part of the messages: 232 bytes after the MAD header, and the attribute id that names the
    message.
    """

    SIZE: ClassVar[int] = CM_DATA_BYTES
    ATTR: ClassVar[CmAttr]
    PRIVATE_BYTES: ClassVar[int]  # room for private data

    def to_mad(self, tid: int, attr_mod: int = 0) -> MAD:
        """The datagram. Raises `WireError` if a field does not fit, or private data is too long."""
        fit("tid", tid, 64)
        fit("attr_mod", attr_mod, 32)
        return MAD(tid=tid, attr_id=self.ATTR, attr_mod=attr_mod, data=self.emit())


class CmReply(CmMessage, kw_only=True):
    """Messages that carry the communication ids of both ends."""

    local_comm_id: int = at(0, 32)  # the sender's; of a REJ 0, when it made none
    remote_comm_id: int = at(4, 32)

    @property
    def ids(self) -> str:
        """Both communication ids, in words."""
        return f"{self.local_comm_id:#010x} to {self.remote_comm_id:#010x}"


class CmPath(BitStruct, kw_only=True):
    """A path in a REQ: the primary or the alternate one (IBA 12.6.5)."""

    SIZE: ClassVar[int] = 44

    local_lid: int = at(0, 16)
    remote_lid: int = at(2, 16)  # 0xFFFF, the permissive LID, where packets are routed
    local_gid: IPv6Address = gid_at(4)
    remote_gid: IPv6Address = gid_at(20)
    flow_label: int = at(36, 20)
    packet_rate: int = at(39, 6, bit=2)  # the code of IBA's static rates
    traffic_class: int = at(40, 8)
    hop_limit: int = at(41, 8)
    sl: int = at(42, 4)
    subnet_local: bool = flag_at(42, 4)
    ack_timeout: int = at(43, 5)  # local ACK timeout, 4.096 us * 2^n: twice the life time and the ACK delay


class Req(CmMessage, kw_only=True):
    """Connection request (IBA 12.6.5)."""

    ATTR: ClassVar[CmAttr] = CmAttr.REQ
    PRIVATE_BYTES: ClassVar[int] = 92

    local_comm_id: int = at(0, 32)
    vendor_id: int = at(5, 24)  # of the ECE options in the MAD's attribute modifier
    service_id: int = at(8, 64)
    local_ca_guid: int = at(16, 64)
    local_qkey: int = at(28, 32)
    local_qpn: int = at(32, 24)
    responder_resources: int = at(35, 8)  # READs and atomics that the sender can serve at once
    local_eecn: int = at(36, 24)
    initiator_depth: int = at(39, 8)  # READs and atomics that the sender will have outstanding
    remote_eecn: int = at(40, 24)
    remote_cm_timeout: int = at(43, 5)  # the receiver answers within 4.096 us * 2^n
    transport_type: int = at(43, 2, bit=5)
    flow_control: bool = flag_at(43, 7)  # the sender counts credits
    starting_psn: int = at(44, 24)
    local_cm_timeout: int = at(47, 5)  # the sender answers within 4.096 us * 2^n, the way included
    retry_count: int = at(47, 3, bit=5)
    pkey: int = at(48, 16, default=0xFFFF)
    path_mtu: int = at(50, 4)  # the code: 1 is 256, 5 is 4096
    rdc_exists: bool = flag_at(50, 4)
    rnr_retry_count: int = at(50, 3, bit=5)
    max_cm_retries: int = at(51, 4)
    srq: bool = flag_at(51, 4)
    extended_transport_type: int = at(51, 3, bit=5)
    primary: CmPath = struct_at(52, CmPath)
    alternate: CmPath = struct_at(96, CmPath)
    private_data: bytes = bytes_at(140, PRIVATE_BYTES)

    @property
    def is_xrc(self) -> bool:
        """Whether it asks for a connection of XRC (IBA A14)."""
        return (self.transport_type, self.extended_transport_type) == (TransportType.EXTENDED, EXTENDED_XRC)

    def __str__(self) -> str:
        transport = name_of(TransportType, self.transport_type).upper()
        ends = f"{_gid_text(self.primary.local_gid)} to {_gid_text(self.primary.remote_gid)}"
        return (
            f"CM REQ {self.local_comm_id:#010x} {service_text(self.service_id)} {transport}"
            f" QP {self.local_qpn:#08x} PSN {self.starting_psn} {ends}{_ip_text(self)}"
        )


class Mra(CmReply, kw_only=True):
    """Message receipt acknowledgement: wait longer (IBA 12.6.6)."""

    ATTR: ClassVar[CmAttr] = CmAttr.MRA
    PRIVATE_BYTES: ClassVar[int] = 222

    message: int = at(8, 2)  # `Answered`
    service_timeout: int = at(9, 5)  # the answer comes within 4.096 us * 2^n
    private_data: bytes = bytes_at(10, PRIVATE_BYTES)

    def __str__(self) -> str:
        wait = 4.096e-6 * 2**self.service_timeout
        return f"CM MRA {self.ids} of the {name_of(Answered, self.message).upper()}, wait {wait:.3g} s"


class Rej(CmReply, kw_only=True):
    """Rejection, with additional information for its reason (IBA 12.6.7)."""

    ATTR: ClassVar[CmAttr] = CmAttr.REJ
    PRIVATE_BYTES: ClassVar[int] = 148
    ARI_BYTES: ClassVar[int] = 72

    message: int = at(8, 2)  # `Answered`
    ari_length: int = at(9, 7)
    reason: int = at(10, 16)  # `RejReason`
    ari: bytes = bytes_at(12, ARI_BYTES)
    private_data: bytes = bytes_at(84, PRIVATE_BYTES)

    @property
    def info(self) -> bytes:
        """The additional information, as long as its length says, 72 bytes at most."""
        return self.ari[: self.ari_length]

    def __str__(self) -> str:
        return (
            f"CM REJ {self.ids} of the {name_of(Answered, self.message).upper()},"
            f" reason {self.reason}: {name_of(RejReason, self.reason)}"
        )


class Rep(CmReply, kw_only=True):
    """Connection reply (IBA 12.6.8)."""

    ATTR: ClassVar[CmAttr] = CmAttr.REP
    PRIVATE_BYTES: ClassVar[int] = 196

    local_qkey: int = at(8, 32)
    local_qpn: int = at(12, 24)
    vendor_id: int = split_at((15, 8), (19, 8), (23, 8))  # of the ECE options, in three places
    local_eecn: int = at(16, 24)
    starting_psn: int = at(20, 24)
    responder_resources: int = at(24, 8)
    initiator_depth: int = at(25, 8)
    target_ack_delay: int = at(26, 5)  # 4.096 us * 2^n
    failover_accepted: int = at(26, 2, bit=5)
    flow_control: bool = flag_at(26, 7)
    rnr_retry_count: int = at(27, 3)
    srq: bool = flag_at(27, 3)
    local_ca_guid: int = at(28, 64)
    private_data: bytes = bytes_at(36, PRIVATE_BYTES)

    @property
    def qp_num(self) -> int:
        """The queue pair; that of XRC stands in the place of an EE context (IBA A14)."""
        return self.local_qpn or self.local_eecn

    def __str__(self) -> str:
        return f"CM REP {self.ids} QP {self.qp_num:#08x} PSN {self.starting_psn}"


class Rtu(CmReply, kw_only=True):
    """Ready to use (IBA 12.6.9)."""

    ATTR: ClassVar[CmAttr] = CmAttr.RTU
    PRIVATE_BYTES: ClassVar[int] = 224

    private_data: bytes = bytes_at(8, PRIVATE_BYTES)

    def __str__(self) -> str:
        return f"CM RTU {self.ids}"


class Dreq(CmReply, kw_only=True):
    """Request for communication release (IBA 12.6.10)."""

    ATTR: ClassVar[CmAttr] = CmAttr.DREQ
    PRIVATE_BYTES: ClassVar[int] = 220

    remote_qpn: int = at(8, 24)  # the receiver's queue pair
    private_data: bytes = bytes_at(12, PRIVATE_BYTES)

    def __str__(self) -> str:
        return f"CM DREQ {self.ids} of QP {self.remote_qpn:#08x}"


class Drep(CmReply, kw_only=True):
    """Reply to a request for communication release (IBA 12.6.11)."""

    ATTR: ClassVar[CmAttr] = CmAttr.DREP
    PRIVATE_BYTES: ClassVar[int] = 224

    private_data: bytes = bytes_at(8, PRIVATE_BYTES)

    def __str__(self) -> str:
        return f"CM DREP {self.ids}"


class Lap(CmReply, kw_only=True):
    """Load alternate path (IBA 12.8.1)."""

    ATTR: ClassVar[CmAttr] = CmAttr.LAP
    PRIVATE_BYTES: ClassVar[int] = 168

    remote_qpn: int = at(12, 24)
    remote_cm_timeout: int = at(15, 5)
    local_lid: int = at(20, 16)
    remote_lid: int = at(22, 16)
    local_gid: IPv6Address = gid_at(24)
    remote_gid: IPv6Address = gid_at(40)
    flow_label: int = at(56, 20)
    traffic_class: int = at(59, 8)
    hop_limit: int = at(60, 8)
    packet_rate: int = at(61, 6, bit=2)
    sl: int = at(62, 4)
    subnet_local: bool = flag_at(62, 4)
    ack_timeout: int = at(63, 5)
    private_data: bytes = bytes_at(64, PRIVATE_BYTES)

    def __str__(self) -> str:
        ends = f"{_gid_text(self.local_gid)} to {_gid_text(self.remote_gid)}"
        return f"CM LAP {self.ids} of QP {self.remote_qpn:#08x} {ends}"


class Apr(CmReply, kw_only=True):
    """Alternate path response (IBA 12.8.2)."""

    ATTR: ClassVar[CmAttr] = CmAttr.APR
    PRIVATE_BYTES: ClassVar[int] = 148
    INFO_BYTES: ClassVar[int] = 72

    info_length: int = at(8, 8)
    status: int = at(9, 8)  # `AprStatus`
    additional: bytes = bytes_at(12, INFO_BYTES)
    private_data: bytes = bytes_at(84, PRIVATE_BYTES)

    @property
    def info(self) -> bytes:
        """The additional information, as long as its length says, 72 bytes at most."""
        return self.additional[: self.info_length]

    def __str__(self) -> str:
        return f"CM APR {self.ids} status {self.status}: {name_of(AprStatus, self.status)}"


class SidrReq(CmMessage, kw_only=True):
    """Service id resolution request (IBA 12.11.1)."""

    ATTR: ClassVar[CmAttr] = CmAttr.SIDR_REQ
    PRIVATE_BYTES: ClassVar[int] = 216

    request_id: int = at(0, 32)
    pkey: int = at(4, 16, default=0xFFFF)
    service_id: int = at(8, 64)
    private_data: bytes = bytes_at(16, PRIVATE_BYTES)

    def __str__(self) -> str:
        return f"CM SIDR_REQ {self.request_id:#010x} {service_text(self.service_id)}{_ip_text(self)}"


class SidrRep(CmMessage, kw_only=True):
    """Service id resolution response (IBA 12.11.2)."""

    ATTR: ClassVar[CmAttr] = CmAttr.SIDR_REP
    PRIVATE_BYTES: ClassVar[int] = 136
    INFO_BYTES: ClassVar[int] = 72

    request_id: int = at(0, 32)
    status: int = at(4, 8)  # `SidrStatus`
    info_length: int = at(5, 8)
    vendor_id: int = split_at((6, 16), (11, 8))  # of the ECE options, in two places
    qpn: int = at(8, 24)
    service_id: int = at(12, 64)
    qkey: int = at(20, 32)
    additional: bytes = bytes_at(24, INFO_BYTES)
    private_data: bytes = bytes_at(96, PRIVATE_BYTES)

    @property
    def info(self) -> bytes:
        """The additional information, as long as its length says, 72 bytes at most."""
        return self.additional[: self.info_length]

    def __str__(self) -> str:
        if self.status != SidrStatus.SUCCESS:
            words = name_of(SidrStatus, self.status)
            return f"CM SIDR_REP {self.request_id:#010x} status {self.status}: {words}"
        return f"CM SIDR_REP {self.request_id:#010x} QP {self.qpn:#08x} Q_Key {self.qkey:#010x}"


MESSAGES: dict[int, type[CmMessage]] = {
    cls.ATTR: cls for cls in (Req, Mra, Rej, Rep, Rtu, Dreq, Drep, SidrReq, SidrRep, Lap, Apr)
}


def parse_cm(mad: MAD) -> CmMessage:
    """The CM message in a datagram. Raises `WireError` if it is not a known message."""
    if mad.mgmt_class != MgmtClass.CM:
        raise WireError(f"management class {mad.mgmt_class:#04x}, not the communication manager's")
    if (mad.base_version, mad.class_version) != (1, CM_CLASS_VERSION):
        raise WireError(f"CM of version {mad.base_version}.{mad.class_version}, not 1.{CM_CLASS_VERSION}")
    if mad.method != MadMethod.SEND:
        raise WireError(f"CM method {mad.method:#04x}, not Send")
    cls = MESSAGES.get(mad.attr_id)
    if cls is None:
        raise WireError(f"CM attribute {mad.attr_id:#06x} is not known")
    return cls.parse(mad.data)


def describe_mad(data: bytes) -> str:
    """Describe a datagram to queue pair 1 in words; it never raises."""
    try:
        mad = MAD.parse(data)
        if mad.mgmt_class == MgmtClass.CM:
            return str(parse_cm(mad))
    except WireError as error:
        return f"[MAD: {error}]"
    words = name_of(MgmtClass, mad.mgmt_class)
    return f"MAD class {words} method {mad.method:#04x} attribute {mad.attr_id:#06x}"


# -------------------------------------------------------------------------------- IP addressing annex


class IpCmHeader(BitStruct, kw_only=True):
    """The header of RDMA-CM in front of the user's private data in a REQ and a SIDR_REQ (annex A11): both IP
    addresses.

    An IPv4 address is the last four bytes of its field. A REQ has 56 bytes left for the user, a SIDR_REQ 180.
    """

    SIZE: ClassVar[int] = 36

    major: int = at(0, 4)  # version of the format; 0.0 is the only one
    minor: int = at(0, 4, bit=4)
    ip_version: int = at(1, 4)
    sport: int = at(2, 16)  # the caller's port
    src_field: IPv6Address = gid_at(4)
    dst_field: IPv6Address = gid_at(20)

    @classmethod
    def build(cls, src: IPv4Address | IPv6Address, dst: IPv4Address | IPv6Address, sport: int) -> IpCmHeader:
        """The header for a connection from an address and port to an address. `WireError` for mixed
        families.
        """
        if src.version != dst.version:
            raise WireError(f"{src} and {dst} are of two address families")
        return cls(
            ip_version=src.version,
            sport=fit("source port", sport, 16),
            src_field=IPv6Address(int(src)),
            dst_field=IPv6Address(int(dst)),
        )

    @property
    def known(self) -> bool:
        """Whether the header has a known version. If not, the private data is not RDMA-CM's."""
        return self.major == 0 and self.ip_version in (4, 6)

    @property
    def src(self) -> IPv4Address | IPv6Address:
        """The caller's address. `WireError` when the header is of another version."""
        return self._address(self.src_field)

    @property
    def dst(self) -> IPv4Address | IPv6Address:
        """The destination address. `WireError` when the header is of another version."""
        return self._address(self.dst_field)

    def _address(self, field: IPv6Address) -> IPv4Address | IPv6Address:
        if not self.known:
            raise WireError(f"IP CM version {self.major}.{self.minor}, IP version {self.ip_version}")
        return field if self.ip_version == 6 else IPv4Address(int(field) & 0xFFFFFFFF)


IP_REQ_PRIVATE_BYTES = Req.PRIVATE_BYTES - IpCmHeader.SIZE  # 56: what RDMA-CM leaves to its user
IP_SIDR_REQ_PRIVATE_BYTES = SidrReq.PRIVATE_BYTES - IpCmHeader.SIZE  # 180


def _gid_text(gid: IPv6Address) -> str:
    return str(gid.ipv4_mapped or gid)


def _ip_text(message: Req | SidrReq) -> str:
    """The IP header of annex A11 in words, if the service id says that there is one."""
    if split_service_id(message.service_id) is None:
        return ""
    header = IpCmHeader.parse(message.private_data.ljust(message.PRIVATE_BYTES, b"\0"))
    if not header.known:
        return ""
    source = f"[{header.src}]" if header.ip_version == 6 else str(header.src)
    return f" from {source}:{header.sport} for {header.dst}"
