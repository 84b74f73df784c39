# SPDX-License-Identifier: Apache-2.0
"""How fast a queue pair may send."""

from rnic.records import Record, values

__all__ = ["RateLimitAttr"]


class RateLimitAttr(Record):
    """A rate, and how evenly it is kept (ibv_modify_qp_rate_limit(3))."""

    rate_limit: int = 0
    """kbit/s, 0: no limit."""
    max_burst_sz: int = 0
    """Bytes that may go without a pause, a packet at least; 0: the device's choice."""
    typical_pkt_sz: int = 0
    """Bytes of a packet, 0: the path MTU (RAW_PACKET: the netdev's)."""
    comp_mask: int = 0
    """0: there are no more fields."""

    def as_struct(self) -> dict[str, int]:
        """The fields of struct rnic_qp_rate_limit_attr."""
        return values(self)
