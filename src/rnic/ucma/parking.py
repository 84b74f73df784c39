# SPDX-License-Identifier: Apache-2.0
"""Listeners that programs have destroyed a moment ago, kept for those that listen at the same port again.

Some programs take one connection, destroy the listener, and listen again for the next one, while the peer
calls already (perftest). A kernel is quick enough for that; this server shares its processor with both
programs. So a listener stays for two seconds. Requests wait there, for the next listener or to be refused.
An id that is bound to its port takes it over, and has a second to listen: it is on its way. Each keeps a port
and descriptors, so there are few: the oldest one goes for a new one.
"""

from __future__ import annotations

from time import monotonic_ns
from typing import TYPE_CHECKING

from rnic.rdmacm import CmId, EventChannel
from rnic.records import Record

if TYPE_CHECKING:
    from rnic.rdmacm.sockaddr import SockAddr
    from rnic.ucma.files import File, Handle

STAY_NS = 2 * 10**9  # perftest sleeps for a second in between
TAKEN_NS = 10**9  # on a busy machine a program takes its time from bind to listen
MOST = 64


class _Parked(Record):
    one: CmId
    file: File
    until: int


class Parking:
    """The listeners of all programs that were destroyed a moment ago."""

    def __init__(self) -> None:
        self._channel = EventChannel()
        self._parked: list[_Parked] = []
        self._taken: dict[Handle, int] = {}  # who has taken one over and does not listen yet, and until when

    def park(self, one: CmId, file: File) -> None:
        """Keep a listener, with the requests that its program has not fetched."""
        self._destroy(self._parked[: 1 - MOST])
        parked = _Parked(one, file, monotonic_ns() + STAY_NS)
        self._parked.append(parked)
        try:
            one.migrate_id(self._channel)
        except BaseException:  # it is its program's yet
            self._parked.remove(parked)
            raise

    def take(self, addr: SockAddr, by: Handle) -> CmId | None:
        """The listener at an address, for an id of its kind that is bound to it."""
        for parked in self._parked:
            one = parked.one
            if (one.ps, one.qp_type, one.get_local_addr()) == (by.one.ps, by.one.qp_type, addr):
                self._taken[by] = monotonic_ns() + TAKEN_NS
                self._parked.remove(parked)
                return one
        return None

    def has_taken(self, by: Handle) -> bool:
        """Whether an id has taken over a listener, and does not listen yet."""
        return by in self._taken

    def settle(self, by: Handle) -> bool:
        """An id listens, or does something else. Returns whether it had taken over a listener."""
        return self._taken.pop(by, None) is not None

    @property
    def deadline(self) -> int | None:
        """When to call expire()."""
        if not self._parked and not self._taken:
            return None
        return min((*(parked.until for parked in self._parked), *self._taken.values()))

    def expire(self, now: int) -> list[Handle]:
        """Destroy those whose time is over. Returns the ids that have taken one over and do not listen."""
        self._destroy([parked for parked in self._parked if parked.until <= now])
        return [by for by, until in self._taken.items() if until <= now]

    def clear(self, file: File | None = None) -> None:
        """Destroy all, or those of a file: its program has gone."""
        self._destroy([parked for parked in self._parked if file in (None, parked.file)])
        if file is not None:
            self._taken = {by: until for by, until in self._taken.items() if by.file is not file}

    def __bool__(self) -> bool:
        return bool(self._parked)

    def _destroy(self, those: list[_Parked]) -> None:
        for parked in those:
            parked.one.destroy()
            self._parked.remove(parked)

    def close(self) -> None:
        """Destroy all, and the channel."""
        self.clear()
        self._channel.close()
