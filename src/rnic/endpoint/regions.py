# SPDX-License-Identifier: Apache-2.0
"""Regions: those of this end that the peer may use, and those of the peer; each withdrawal is confirmed."""

from rnic.endpoint.errors import ProtocolError, Reason
from rnic.endpoint.events import Region
from rnic.endpoint.frame import Frame, parse_region
from rnic.enums import AccessFlags

__all__ = ["OwnRegions", "PeerRegions"]


class OwnRegions:
    """Regions of this end: shared, then withdrawn, then released by the peer.

    look(), look_withdrawn() and look_released() say what comes of a call or a RELEASE; add(), withdraw() and
    release() make it so, and again change nothing more.
    """

    def __init__(self, allowed: AccessFlags) -> None:
        self._allowed = allowed
        self._ids = 0
        self.shared: dict[int, Region] = {}
        """Those that the peer may use, by id."""
        self.unreleased: tuple[int, ...] = ()
        """Those that were withdrawn, and that the peer may still use."""
        self.released = 0
        """How many the peer has released; modulo 2**32."""

    def look(
        self,
        addr: int,
        length: int,
        rkey: int,
        access: AccessFlags,
        most: int,
        array: tuple[tuple[int, ...], str] = ((), ""),
    ) -> tuple[Region, int]:
        """The next region, and its number; ValueError when it cannot be, or the peer takes no more."""
        if len(self.shared) >= most:
            raise ValueError(f"share(): the peer takes {most} regions at a time")
        if not access or access & ~self._allowed:
            raise ValueError(f"share(): access {access!r}, the queue pair allows {self._allowed!r}")
        if addr < 0 or length < 0 or addr + length > 1 << 64 or not 0 <= rkey < 1 << 32:
            raise ValueError(f"share(): {length} bytes at {addr:#x} with rkey {rkey:#x} cannot be a region")
        number = self._ids + 1
        return Region(number & 0xFFFFFFFF, addr, length, rkey, access, *array), number

    def add(self, region: Region, number: int) -> None:
        """Make it so that it is shared."""
        self.shared[region.id] = region
        self._ids = number

    def look_withdrawn(self, region_id: int) -> tuple[int, ...]:
        """What is unreleased with it; ValueError when it is not shared."""
        if region_id not in self.shared:
            raise ValueError(f"withdraw(): no region {region_id} is shared")
        return (*self.unreleased, region_id)

    def withdraw(self, region_id: int, unreleased: tuple[int, ...]) -> None:
        """Make it so that it is withdrawn."""
        self.shared.pop(region_id, None)
        self.unreleased = unreleased

    def look_released(self, frame: Frame) -> tuple[int, tuple[int, ...]]:
        """Of a RELEASE: how many are released by then, and what is not."""
        number = frame.id - self.released & 0xFFFFFFFF
        if not 1 <= number <= len(self.unreleased):
            raise ProtocolError(
                f"RELEASE says {frame.id}, after {self.released} and with {len(self.unreleased)} to come",
                Reason.REGION,
            )
        return frame.id, self.unreleased[number:]

    def release(self, argument: tuple[int, tuple[int, ...]]) -> None:
        """Make it so."""
        self.released, self.unreleased = argument


class PeerRegions:
    """Regions of the peer, and of how many withdrawals it does not know yet that they were seen.

    look() and look_withdrawn() check a SHARE and a WITHDRAW; add() and drop() make it so, and again change
    nothing more.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.known: dict[int, Region] = {}
        """Those that may be used now, by id."""
        self.withdrawals = 0
        """How many were seen; modulo 2**32."""
        self.confirmed = 0
        """Of these, those that a RELEASE has told."""

    def look(self, frame: Frame) -> Region:
        """Of a SHARE: the region."""
        region = parse_region(frame)
        if region.id in self.known:
            raise ProtocolError(f"region {region.id} is shared twice", Reason.REGION)
        if len(self.known) >= self._most:
            raise ProtocolError(f"more than {self._most} regions are shared", Reason.REGION)
        return region

    def add(self, region: Region) -> None:
        """Make it so that it is known."""
        self.known[region.id] = region

    def look_withdrawn(self, frame: Frame) -> tuple[Region, int]:
        """Of a WITHDRAW: the region, and how many withdrawals were seen by then."""
        region = self.known.get(frame.id)
        if region is None:
            raise ProtocolError(f"region {frame.id} is withdrawn, and was not shared", Reason.REGION)
        return region, self.withdrawals + 1 & 0xFFFFFFFF

    def drop(self, argument: tuple[Region, int]) -> None:
        """Make it so."""
        region, withdrawals = argument
        self.known.pop(region.id, None)
        self.withdrawals = withdrawals

    def confirm(self, withdrawals: int) -> None:
        """A RELEASE tells the peer of so many."""
        self.confirmed = withdrawals
