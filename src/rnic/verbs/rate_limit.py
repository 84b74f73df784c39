# SPDX-License-Identifier: Apache-2.0
"""The rate limit of a queue pair."""

from rnic.records import Attributes, values

__all__ = ["RateLimitAttr"]


class RateLimitAttr(Attributes):
    """A rate limit, and how much it may be exceeded for a moment (ibv_modify_qp_rate_limit(3))."""

    rate_limit: int = 0
    """kbit/s, 0: no limit."""
    max_burst_sz: int = 0
    """The most bytes without a pause, at least one packet; 0: the device chooses."""
    typical_pkt_sz: int = 0
    """The size of a packet in bytes; 0: the path MTU (RAW_PACKET: the MTU of the network interface)."""
    comp_mask: int = 0
    """Must be 0: there are no more fields."""

    def as_struct(self) -> dict[str, int]:
        """The fields of struct rnic_qp_rate_limit_attr."""
        return values(self)
