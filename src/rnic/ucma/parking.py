# SPDX-License-Identifier: Apache-2.0
"""Listeners that programs have destroyed a moment ago, kept for those that listen at the same port again.

Some programs take one connection, destroy the listener, and listen again for the next one, while the peer
calls already (perftest). A kernel is quick enough for that; this server shares its processor with both
programs. So a listener stays for a moment. Requests wait there, for the next listener or to be refused.
"""

from __future__ import annotations

from time import monotonic_ns
from typing import TYPE_CHECKING

from rnic.rdmacm import CmId, EventChannel
from rnic.records import Record

if TYPE_CHECKING:
    from rnic.rdmacm import PortSpace
    from rnic.rdmacm.sockaddr import SockAddr
    from rnic.ucma.files import File

STAY_NS = 100 * 10**6


class _Parked(Record):
    one: CmId
    file: File
    until: int


class Parking:
    """The listeners of all programs that were destroyed a moment ago."""

    def __init__(self) -> None:
        self._channel = EventChannel()
        self._parked: list[_Parked] = []

    def park(self, one: CmId, file: File) -> None:
        """Keep a listener, with the requests that its program has not fetched."""
        one.migrate_id(self._channel)
        self._parked.append(_Parked(one, file, monotonic_ns() + STAY_NS))

    def take(self, ps: PortSpace, addr: SockAddr) -> CmId | None:
        """The listener at an address, for another one."""
        for parked in self._parked:
            if parked.one.ps is ps and parked.one.get_local_addr() == addr:
                self._parked.remove(parked)
                return parked.one
        return None

    @property
    def deadline(self) -> int | None:
        """When to call expire()."""
        return min((parked.until for parked in self._parked), default=None)

    def expire(self, now: int) -> None:
        """Destroy those whose time is over."""
        self._destroy([parked for parked in self._parked if parked.until <= now])

    def clear(self, file: File | None = None) -> None:
        """Destroy all, or those of a file: its program has gone."""
        self._destroy([parked for parked in self._parked if file in (None, parked.file)])

    def __bool__(self) -> bool:
        return bool(self._parked)

    def _destroy(self, those: list[_Parked]) -> None:
        for parked in those:
            self._parked.remove(parked)
            parked.one.destroy()

    def close(self) -> None:
        """Destroy all, and the channel."""
        self.clear()
        self._channel.close()
