# SPDX-License-Identifier: Apache-2.0
"""The regions of a connection: this end's, which the peer may use, and the peer's."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from rnic._nic.nic import MR
from rnic.conn.arrays import describe
from rnic.conn.device import let_go_memory, revoke_memory
from rnic.conn.parts import LOOK_AGAIN, Parts
from rnic.endpoint import ClosedError, Region
from rnic.endpoint.buffers import flat, view_of
from rnic.enums import AccessFlags

if TYPE_CHECKING:
    from rnic.endpoint.buffers import AnyBuffer


class Sharing(Parts):
    """What the program shares, withdraws and revokes, and what the peer has shared."""

    # ------------------------------------------------------------ this end's

    def share(self, buffer: AnyBuffer, access: AccessFlags | None) -> Region:
        """Register memory and tell the peer."""
        self._go_long()
        self.check()
        view = view_of(buffer, "share()")
        data = flat(view, "share()")
        if access is None:
            access = self.config.access
            if data.readonly:
                access &= AccessFlags.REMOTE_READ
        elif not isinstance(access, int):
            cure = "such as AccessFlags.REMOTE_READ | AccessFlags.REMOTE_WRITE"
            raise TypeError(f"share(): access is AccessFlags, {cure}, not {type(access).__name__}")
        writes = access & (AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_ATOMIC)
        mr = self.pd.reg_mr(data, access | (AccessFlags.LOCAL_WRITE if writes else AccessFlags(0)))
        before = set(self.protocol.shared)
        try:
            region = self.protocol.share(mr.addr, mr.length, mr.rkey, access, *describe(view))
            self._shared[region.id] = mr
            self._ours[region.id] = region
        except BaseException:
            self._unshare(mr, before)
            raise
        return region

    def _unshare(self, mr: MR, before: set[int]) -> None:
        """Undo share() after an exception; if the peer has been told of the region, withdraw it."""
        self.protocol.settle()
        for key in set(self.protocol.shared) - before:
            self._shared[key] = mr
            self.protocol.withdraw(key)
            return
        mr.close()

    def withdraw(self, region: Region) -> None:
        """Tell the peer that it may no longer use a region; pump() deregisters it when the peer agrees."""
        self._go_long()
        self.check()
        self._check_ours(region, "withdraw")
        if region.id in self.protocol.shared:
            self.protocol.withdraw(region.id)

    def _check_ours(self, region: Region, what: str) -> None:
        if not isinstance(region, Region):
            raise TypeError(f"{what}() takes the Region that share() returned, not {type(region).__name__}")
        if self._ours.get(region.id) is not region:
            raise ValueError(
                f"{what}(): no region {region.id} is shared here: give what share() has returned"
            )

    def shared_memory(self, region: Region) -> memoryview:
        """The buffer that share() was given."""
        if region in self.protocol.regions.values():
            raise ValueError("asarray(): the memory is the peer's: read_array() reads it")
        self._check_ours(region, "asarray")
        mr = self._shared.get(region.id)
        if mr is None or region.id not in self.protocol.shared:
            raise ValueError(f"asarray(): region {region.id} was withdrawn")
        return mr.buf

    def is_withdrawn(self, region: Region) -> bool:
        """The peer has confirmed the withdrawal, and the memory is deregistered."""
        mr = self._shared.get(region.id)
        return mr is None or mr.closed

    def revoke(self, region: Region) -> None:
        """Deregister a region at once, and tell the peer."""
        self._go_long()
        self._check_ours(region, "revoke")
        if (mr := self._shared.get(region.id)) is None:
            return
        try:
            revoke_memory(mr)
        finally:
            if not self.ended and region.id in self.protocol.shared:
                with contextlib.suppress(ClosedError):  # the goodbye is queued
                    self.protocol.withdraw(region.id)
        self._shared.pop(region.id, None)

    def _close_released(self, now: float) -> None:
        """Deregister memory that no request of the peer can reach any more."""
        due = self._again_at is not None and now >= self._again_at
        released = self.protocol.released
        if not due and released == self._released_seen and not (self.ended and self.protocol.unreleased):
            return
        kept = set(self.protocol.shared).union(() if self.ended else self.protocol.unreleased)
        gone = [key for key in self._shared if key not in kept]
        for key in gone:
            if let_go_memory(self._shared[key]):
                del self._shared[key]
        self._again_at = now + LOOK_AGAIN if any(key in self._shared for key in gone) else None
        self._released_seen = released

    # ------------------------------------------------------------ the peer's

    def next_region(self) -> Region | None:
        """A region of the peer that the program has not got yet; None: there is none."""
        if (region := self._new_region()) is not None:
            self._given[region.id] = region
            return region
        self.check()
        return None

    def has_region(self) -> bool:
        """next_region() has something to say."""
        return self._new_region() is not None or self.ended

    def next_withdrawn(self) -> Region | None:
        """A region that next_region() returned and the peer has withdrawn, each once; None: there is none."""
        self._look_at_regions()
        for key, region in list(self._withdrawn.items()):
            del self._withdrawn[key]
            return region
        self.check()
        return None

    def has_withdrawn(self) -> bool:
        """next_withdrawn() has something to say."""
        self._look_at_regions()
        return bool(self._withdrawn) or self.ended

    def _look_at_regions(self) -> None:
        """Find the regions that the peer has withdrawn.  The end of the connection withdraws none."""
        regions = self.protocol.regions
        for key, region in list(self._given.items()):
            if regions.get(key) is not region:
                if not self.ended:
                    self._withdrawn[id(region)] = region
                self._given.pop(key, None)

    def _new_region(self) -> Region | None:
        self._look_at_regions()
        return next((one for key, one in self.protocol.regions.items() if key not in self._given), None)
