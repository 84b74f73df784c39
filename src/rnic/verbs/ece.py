# SPDX-License-Identifier: Apache-2.0
"""Enhanced connection establishment: options on which two devices of one vendor agree."""

from rnic.records import Record, values

__all__ = ["ECE"]


class ECE(Record):
    """Options of a vendor's enhanced connections (ibv_set_ece(3), rdma_get_remote_ece(3))."""

    vendor_id: int = 0
    """The vendor that defines the options; 0: none."""
    options: int = 0
    """What the vendor makes of it."""
    comp_mask: int = 0
    """Must be 0: there are no more fields."""

    def as_struct(self) -> dict[str, int]:
        """The fields of struct rnic_ece."""
        return values(self)
