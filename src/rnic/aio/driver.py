# SPDX-License-Identifier: Apache-2.0
"""A loop does the work of a device for its connections: a packet wakes the loop's thread first."""

from __future__ import annotations

import asyncio
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rnic.aio.pump import Pump

FEW = 4
"""So many connections are asked at once whether something has come; more hear by their descriptors."""

_Of = weakref.WeakValueDictionary[int, "Driver"]
_drivers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Of] = weakref.WeakKeyDictionary()
"""Loops and connections that are dropped are not kept: a Driver is its connections'."""


class Driver:
    """What a loop does for one device while connections of it are there."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fd: int) -> None:
        self._loop = weakref.ref(loop)
        self._fd = fd
        self._pumps: dict[Pump, None] = {}

    def add(self, pump: Pump) -> None:
        """A connection has come: watch the device, if it is the first."""
        loop = self._loop()
        if not self._pumps and loop is not None:
            loop.add_reader(self._fd, self._run)
        self._pumps[pump] = None

    def remove(self, pump: Pump) -> None:
        """A connection goes; the last one is the end of it."""
        loop = self._loop()
        if self._pumps.pop(pump, pump) is None and not self._pumps and loop is not None:
            loop.remove_reader(self._fd)

    def _run(self) -> None:
        """Take what has come for the device, and let the connections go on that have got something."""
        loop = self._loop()
        for pump in self._pumps:
            pump.core.machine.look_at_device()
            break
        try:
            if len(self._pumps) <= FEW:
                for pump in list(self._pumps):
                    if pump in self._pumps and pump.core.machine.ready:
                        pump.on_news()
        finally:
            if loop is not None:
                # Behind the tasks that have been woken, whose answers take ACKs along.
                loop.call_soon(self._settle)

    def _settle(self) -> None:
        loop = self._loop()
        for pump in self._pumps:
            if not pump.core.machine.settle() and loop is not None:
                loop.call_soon(self._run)
            break


def driver_of(loop: asyncio.AbstractEventLoop, fd: int) -> Driver:
    """The Driver of a device, which is known by its descriptor, in a loop."""
    of = _drivers.setdefault(loop, weakref.WeakValueDictionary())
    if (found := of.get(fd)) is None:
        found = of[fd] = Driver(loop, fd)
    return found
