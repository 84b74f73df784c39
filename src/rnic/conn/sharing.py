# SPDX-License-Identifier: Apache-2.0
"""The regions of a connection: this end's, which the peer may use, and the peer's."""

from __future__ import annotations

import contextlib
from collections import deque
from errno import ENOMEM
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from rnic._nic.nic import MR
from rnic.conn.arrays import describe
from rnic.conn.device import LOOK_AGAIN, let_go_memory, revoke_memory
from rnic.endpoint import ClosedError, Region
from rnic.endpoint.buffers import flat, view_of
from rnic.endpoint.regions import array_bytes, region_of
from rnic.enums import AccessFlags

if TYPE_CHECKING:
    from rnic.conn.core import Core
    from rnic.endpoint.buffers import AnyBuffer


class Sharing:
    """What the program shares, withdraws and revokes, and what the peer has shared."""

    def __init__(self, core: Core) -> None:
        self._core, self._machine = core, core.machine
        self._shared: dict[int, MR] = core.machine.shared  # also those that were withdrawn
        self._ours: WeakValueDictionary[int, Region] = WeakValueDictionary()  # all that were shared
        self.again_at: float | None = None
        """When to look again at memory that a stopped process holds; None: there is none."""
        self._changes = 0
        self._known: dict[int, Region] = {}  # the peer's, by number
        self._given: dict[int, Region] = {}  # those that the program has got
        self._new: deque[int] = deque()  # those that it has not got, in their order; some in front it has got
        self._gone: WeakValueDictionary[int, Region] = (
            WeakValueDictionary()
        )  # of these, those withdrawn since

    # ------------------------------------------------------------ this end's

    def share(self, buffer: AnyBuffer, access: AccessFlags | None) -> Region:
        """Register memory and tell the peer."""
        core = self._core
        core.check()
        view = view_of(buffer, "share()")
        data = flat(view, "share()")
        access = self._access(data, access)
        writes = access & (AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_ATOMIC)
        mr = core.pd.reg_mr(data, access | (AccessFlags.LOCAL_WRITE if writes else AccessFlags(0)))
        array = describe(view)
        try:
            number = self._machine.share(mr, int(access), array_bytes(*array))
            if number < 0:
                raise MemoryError if number == -ENOMEM else ClosedError("share() after close()")
            region = self._ours[number] = Region(number, mr.addr, mr.length, mr.rkey, access, *array)
            return region
        except BaseException:  # the caller does not get it
            self._take_back(mr)
            raise

    def _take_back(self, mr: MR) -> None:
        """Withdraw memory that share() was perhaps called for."""
        number = next((number for number, one in self._shared.items() if one is mr), None)
        if number is None:
            mr.close()
        else:
            self._machine.withdraw(number)

    def _access(self, data: memoryview, access: AccessFlags | None) -> AccessFlags:
        core = self._core
        if core.peer is None:
            raise ValueError("share(): a raw peer is told of no regions")
        if len(self._shared) - len(self._machine.withdrawn) >= core.peer.max_regions:
            raise ValueError(f"share(): the peer takes {core.peer.max_regions} regions at a time")
        if access is None:
            return core.config.access & AccessFlags.REMOTE_READ if data.readonly else core.config.access
        if not isinstance(access, int):
            cure = "such as AccessFlags.REMOTE_READ | AccessFlags.REMOTE_WRITE"
            raise TypeError(f"share(): access is AccessFlags, {cure}, not {type(access).__name__}")
        if not access or access & ~core.config.access:
            allowed = core.config.access.name or "nothing"
            raise ValueError(f"share(): access is {access!r}, and Config.access allows {allowed} or a part")
        return access

    def withdraw(self, region: Region) -> None:
        """Tell the peer that it may no longer use a region; look() deregisters it when the peer agrees."""
        self._core.check()
        self._check_ours(region, "withdraw")
        if self.is_shared(region):
            self._machine.withdraw(region.id)

    def is_shared(self, region: Region) -> bool:
        """It has not been withdrawn."""
        return region.id in self._shared and region.id not in self._machine.withdrawn

    def _check_ours(self, region: Region, what: str) -> None:
        if not isinstance(region, Region):
            raise TypeError(f"{what}() takes the Region that share() returned, not {type(region).__name__}")
        if self._ours.get(region.id) is not region:
            raise ValueError(
                f"{what}(): no region {region.id} is shared here: give what share() has returned"
            )

    def memory(self, region: Region) -> memoryview:
        """The buffer that share() was given."""
        if region in self.peers().values():
            raise ValueError("asarray(): the memory is the peer's: read_array() reads it")
        self._check_ours(region, "asarray")
        if not self.is_shared(region):
            raise ValueError(f"asarray(): region {region.id} was withdrawn")
        return self._shared[region.id].buf

    def is_withdrawn(self, region: Region) -> bool:
        """The peer has confirmed the withdrawal, and the memory is deregistered."""
        mr = self._shared.get(region.id)
        return mr is None or mr.closed

    def revoke(self, region: Region) -> None:
        """Deregister a region at once, and tell the peer."""
        self._check_ours(region, "revoke")
        if (mr := self._shared.get(region.id)) is None:
            return
        try:
            revoke_memory(mr)
        finally:
            if not self._core.ended and self.is_shared(region):
                with contextlib.suppress(ClosedError):  # the goodbye is queued
                    self.withdraw(region)
        if self._core.ended:
            self._shared.pop(region.id, None)

    def look(self, now: float) -> None:
        """Deregister memory that no request of the peer can reach any more."""
        machine, ended, released = self._machine, self._core.ended, self._machine.released
        due = self.again_at is not None and now >= self.again_at
        if not due and released == machine.told and not (ended and machine.withdrawn):
            return
        gone = machine.gone(ended)
        for number in gone:
            if (mr := self._shared.get(number)) is None or let_go_memory(mr):
                self._shared.pop(number, None)
                machine.withdrawn.pop(number, None)
        self.again_at = now + LOOK_AGAIN if any(number in self._shared for number in gone) else None
        machine.told = released

    def let_go(self) -> None:
        """The connection has ended: deregister everything."""
        for mr in self._shared.values():
            let_go_memory(mr)

    # ------------------------------------------------------------ the peer's

    def peers(self) -> dict[int, Region]:
        """The regions of the peer that may be used now, by id."""
        self._learn()
        return {region.id: region for region in self._known.values()}

    def _learn(self) -> None:
        """Find what the peer has shared and withdrawn.  The end of the connection withdraws none."""
        changes = self._machine.changes
        if changes == self._changes:
            return
        known = {one[0]: self._known.get(one[0]) or region_of(one) for one in self._machine.regions()}
        gone = [number for number in self._given if number not in known]
        for number in gone:
            if not self._core.ended:
                self._gone[number] = self._given[number]
            self._given.pop(number, None)
        self._known = known
        self._new = deque(sorted(known.keys() - self._given.keys()))
        self._changes = changes  # after all: what was interrupted is done again

    def next_region(self) -> Region | None:
        """A region of the peer that the program has not got yet; None: there is none."""
        if (number := self._first_new()) is not None:
            self._given[number] = self._known[number]
            return self._known[number]
        self._core.check()
        return None

    def _first_new(self) -> int | None:
        """The number of the region that next_region() returns; None: there is none."""
        self._learn()
        new = self._new
        while new and new[0] in self._given:
            new.popleft()
        return new[0] if new else None

    def has_region(self) -> bool:
        """next_region() has something to say."""
        return self._first_new() is not None or self._core.ended

    def next_withdrawn(self) -> Region | None:
        """A region that next_region() returned and the peer has withdrawn, each once; None: there is none."""
        self._learn()
        for number, region in list(self._gone.items()):
            del self._gone[number]
            return region
        self._core.check()
        return None

    def has_withdrawn(self) -> bool:
        """next_withdrawn() has something to say."""
        self._learn()
        return bool(self._gone) or self._core.ended
