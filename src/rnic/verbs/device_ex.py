# SPDX-License-Identifier: Apache-2.0
"""The capabilities of a device that ibv_query_device does not report."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rnic.enums import ODPGeneralCap, ODPTransportCap, QPType, RawPacketCaps, TMCapFlags
from rnic.records import Record
from rnic.verbs.cq import CQModerationCaps
from rnic.verbs.wq import RSSCaps, TSOCaps

if TYPE_CHECKING:
    from rnic.verbs.queries import DeviceAttr

__all__ = ["DeviceAttrEx", "ODPCaps", "PacketPacingCaps", "TMCaps"]


class TMCaps(Record):
    """The device's capabilities for tag matching (ibv_query_device_ex(3))."""

    max_rndv_hdr_size: int
    """The size of a rendezvous request in bytes, including headers."""
    max_num_tags: int
    """Receives with a tag in a list."""
    flags: TMCapFlags
    """On what tags are matched."""
    max_ops: int
    """Operations on a list in one call."""
    max_sge: int
    """SGEs in a receive with a tag."""

    @classmethod
    def from_struct(cls, values: dict[str, int]) -> "TMCaps":
        """The record of struct rnic_tm_caps' fields."""
        return cls(
            values["max_rndv_hdr_size"],
            values["max_num_tags"],
            TMCapFlags(values["flags"]),
            values["max_ops"],
            values["max_sge"],
        )


class ODPCaps(Record):
    """The operations on memory that is registered ON_DEMAND (ibv_query_device_ex(3))."""

    general_caps: ODPGeneralCap
    """Whether it can be registered at all."""
    rc_odp_caps: ODPTransportCap
    """What RC queue pairs can do to it."""
    uc_odp_caps: ODPTransportCap
    """What UC queue pairs can do to it."""
    ud_odp_caps: ODPTransportCap
    """What UD queue pairs can do to it."""

    @classmethod
    def from_struct(cls, values: Mapping[str, Any]) -> "ODPCaps":
        """The record of struct rnic_odp_caps' fields."""
        caps = values["per_transport_caps"]
        return cls(
            ODPGeneralCap(values["general_caps"]),
            **{name: ODPTransportCap(cap) for name, cap in caps.items()},
        )


class PacketPacingCaps(Record):
    """The range of QP.modify_rate_limit() (ibv_query_device_ex(3)); 0, no limit, is always allowed."""

    qp_rate_limit_min: int
    """kbit/s."""
    qp_rate_limit_max: int
    """kbit/s."""
    supported_qpts: int
    """A bit for each type of queue pair; supports() reads it."""

    def supports(self, qp_type: QPType) -> bool:
        """Whether the device can limit the rate of queue pairs of this type."""
        return bool(self.supported_qpts >> qp_type & 1)


class DeviceAttrEx(Record):
    """Capabilities of a device beyond DeviceAttr: libibverbs' fields (ibv_query_device_ex(3))."""

    orig_attr: "DeviceAttr"
    """What query_device() tells."""
    odp_caps: ODPCaps
    """What can be done to memory that is registered ON_DEMAND."""
    completion_timestamp_mask: int
    """The valid bits of a completion's timestamp; 0: there are no timestamps."""
    hca_core_clock: int
    """The frequency of the timestamps in kHz; 0: the clock cannot be read."""
    device_cap_flags_ex: int
    """Bits of DeviceCap and DeviceCapEx."""
    cq_mod_caps: CQModerationCaps
    """How far completion events can be held back."""
    tm_caps: TMCaps
    """What can be done for tag matching."""
    rss_caps: RSSCaps
    """How received frames can be spread."""
    max_wq_type_rq: int
    """Receive work queues."""
    raw_packet_caps: RawPacketCaps
    """What can be done for RAW_PACKET queue pairs."""
    tso_caps: TSOCaps
    """What can be cut up when it is sent."""
    xrc_odp_caps: ODPTransportCap
    """What XRC queue pairs can do to memory that is registered ON_DEMAND."""
    max_dm_size: int
    """All device memory, in bytes."""
    packet_pacing_caps: PacketPacingCaps
    """Which rate limits there can be."""

    @classmethod
    def from_struct(cls, values: Mapping[str, Any], orig_attr: "DeviceAttr") -> "DeviceAttrEx":
        """The record of struct rnic_device_attr_ex's fields."""
        parts = {
            "orig_attr": orig_attr,
            "odp_caps": ODPCaps.from_struct(values["odp_caps"]),
            "cq_mod_caps": CQModerationCaps.from_struct(values["cq_mod_caps"]),
            "tm_caps": TMCaps.from_struct(values["tm_caps"]),
            "rss_caps": RSSCaps.from_struct(values["rss_caps"]),
            "raw_packet_caps": RawPacketCaps(values["raw_packet_caps"]),
            "tso_caps": TSOCaps(**values["tso_caps"]),
            "xrc_odp_caps": ODPTransportCap(values["xrc_odp_caps"]),
            "packet_pacing_caps": PacketPacingCaps(**values["packet_pacing_caps"]),
        }
        return cls(**{**values, **parts})
