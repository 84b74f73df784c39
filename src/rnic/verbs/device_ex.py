# SPDX-License-Identifier: Apache-2.0
"""What a device can do, beyond what ibv_query_device tells."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rnic.enums import QPType

if TYPE_CHECKING:
    from rnic.verbs.context import DeviceAttr

__all__ = ["DeviceAttrEx", "PacketPacingCaps"]


@dataclass(frozen=True, slots=True)
class PacketPacingCaps:
    """What QP.modify_rate_limit() takes (ibv_query_device_ex(3)); a rate of 0, no limit, goes always."""

    qp_rate_limit_min: int
    """kbit/s."""
    qp_rate_limit_max: int
    """kbit/s."""
    supported_qpts: int
    """A bit for each type, see supports()."""

    def supports(self, qp_type: QPType) -> bool:
        """Whether queue pairs of that type can be paced."""
        return bool(self.supported_qpts >> qp_type & 1)


@dataclass(frozen=True, slots=True)
class DeviceAttrEx:
    """What a device can do, with what came later (ibv_query_device_ex(3))."""

    orig_attr: "DeviceAttr"
    device_cap_flags_ex: int
    """Bits of DeviceCap and DeviceCapEx."""
    packet_pacing_caps: PacketPacingCaps
