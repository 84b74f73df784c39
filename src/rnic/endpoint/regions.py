# SPDX-License-Identifier: Apache-2.0
"""The regions that this end shares, and the regions of the peer.  Each withdrawal is confirmed."""

from rnic.endpoint.errors import ProtocolError, Reason
from rnic.endpoint.events import Region
from rnic.endpoint.frame import Frame, parse_region
from rnic.enums import AccessFlags

__all__ = ["OwnRegions", "PeerRegions"]


class OwnRegions:
    """The regions of this end: shared, then withdrawn, then released by the peer.

    look(), look_withdrawn() and look_released() compute a change; add(), withdraw() and release() apply it,
    and calling them again changes nothing.
    """

    def __init__(self, allowed: AccessFlags) -> None:
        self._allowed = allowed
        self._ids = 0
        self.shared: dict[int, Region] = {}
        """The regions that the peer may use, by id."""
        self.unreleased: tuple[int, ...] = ()
        """The ids of withdrawn regions that the peer has not released: it may still use them."""
        self.released = 0
        """The number of regions that the peer has released, modulo 2**32."""

    def look(
        self,
        addr: int,
        length: int,
        rkey: int,
        access: AccessFlags,
        most: int,
        array: tuple[tuple[int, ...], str] = ((), ""),
    ) -> tuple[Region, int]:
        """Return the next region and its number; ValueError for a wrong region, or one too many."""
        if len(self.shared) >= most:
            raise ValueError(f"share(): the peer takes {most} regions at a time")
        if not access or access & ~self._allowed:
            allowed = self._allowed.name or "nothing"
            raise ValueError(f"share(): access is {access!r}, and Config.access allows {allowed} or a part")
        if addr < 0 or length < 0 or addr + length > 1 << 64 or not 0 <= rkey < 1 << 32:
            raise ValueError(f"share(): {length} bytes at {addr:#x} with rkey {rkey:#x} cannot be a region")
        number = self._ids + 1
        return Region(number & 0xFFFFFFFF, addr, length, rkey, access, *array), number

    def add(self, region: Region, number: int) -> None:
        """Share the region that look() has returned; calling it again changes nothing."""
        self.shared[region.id] = region
        self._ids = number

    def look_withdrawn(self, region_id: int) -> tuple[int, ...]:
        """Return `unreleased` as it is after this withdrawal; ValueError when no such region is shared."""
        if region_id not in self.shared:
            raise ValueError(f"withdraw(): no region {region_id} is shared")
        return (*self.unreleased, region_id)

    def withdraw(self, region_id: int, unreleased: tuple[int, ...]) -> None:
        """Withdraw a region, with what look_withdrawn() has returned; calling it again changes nothing."""
        self.shared.pop(region_id, None)
        self.unreleased = unreleased

    def look_released(self, frame: Frame) -> tuple[int, tuple[int, ...]]:
        """Check a RELEASE; return `released` and `unreleased` after it, or raise ProtocolError."""
        number = frame.id - self.released & 0xFFFFFFFF
        if not 1 <= number <= len(self.unreleased):
            raise ProtocolError(
                f"RELEASE says {frame.id}, after {self.released} and with {len(self.unreleased)} to come",
                Reason.REGION,
            )
        return frame.id, self.unreleased[number:]

    def release(self, argument: tuple[int, tuple[int, ...]]) -> None:
        """Apply what look_released() has returned; calling it again changes nothing."""
        self.released, self.unreleased = argument


class PeerRegions:
    """The regions of the peer, and the withdrawals that need a RELEASE.

    look() and look_withdrawn() check a SHARE and a WITHDRAW; add() and drop() apply it, and calling them
    again changes nothing.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.known: dict[int, Region] = {}
        """The regions that may be used now, by id."""
        self.withdrawals = 0
        """The number of withdrawals that have come, modulo 2**32."""
        self.confirmed = 0
        """The number of withdrawals that a RELEASE has confirmed, modulo 2**32."""

    def look(self, frame: Frame) -> Region:
        """Return the region that a SHARE names; ProtocolError when it is not allowed."""
        region = parse_region(frame)
        if region.id in self.known:
            raise ProtocolError(f"region {region.id} is shared twice", Reason.REGION)
        if len(self.known) >= self._most:
            raise ProtocolError(f"more than {self._most} regions are shared", Reason.REGION)
        return region

    def add(self, region: Region) -> None:
        """Add the region that look() has returned; calling it again changes nothing."""
        self.known[region.id] = region

    def look_withdrawn(self, frame: Frame) -> tuple[Region, int]:
        """Return the region that a WITHDRAW names, and the count of withdrawals with it; or ProtocolError."""
        region = self.known.get(frame.id)
        if region is None:
            raise ProtocolError(f"region {frame.id} is withdrawn, and was not shared", Reason.REGION)
        return region, self.withdrawals + 1 & 0xFFFFFFFF

    def drop(self, argument: tuple[Region, int]) -> None:
        """Apply what look_withdrawn() has returned; calling it again changes nothing."""
        region, withdrawals = argument
        self.known.pop(region.id, None)
        self.withdrawals = withdrawals

    def confirm(self, withdrawals: int) -> None:
        """Note that a RELEASE for so many withdrawals was handed out."""
        self.confirmed = withdrawals
