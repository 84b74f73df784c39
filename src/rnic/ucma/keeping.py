# SPDX-License-Identifier: Apache-2.0
"""Devices that ids of programs have used a moment ago, kept open for the next id.

libfabric makes an id for each fi_getinfo(3), resolves an address, and destroys it. The last id of a device
closes it, and to open one takes some 20 ms: its place among the processes of the host has to be found. A
kernel has its devices open always. So a device stays for two seconds.
"""

from __future__ import annotations

from time import monotonic_ns

from rnic.enums import QPType
from rnic.rdmacm import CmId, EventChannel, IdState, PortSpace, Timing
from rnic.rdmacm.agent import Agent
from rnic.rdmacm.registry import registry
from rnic.records import Record

STAY_NS = 2 * 10**9


class _Keeper(CmId):
    """An id that does nothing but use a device."""

    def device_removed(self, _agent: object, _status: int = 0) -> None:
        """Let it go at once."""
        self.destroy()


class _Kept(Record):
    keeper: _Keeper
    until: int


class Keeping:
    """The devices that are kept open."""

    def __init__(self) -> None:
        self._channel = EventChannel()
        self._kept: dict[Agent, _Kept] = {}

    def keep(self, one: CmId) -> None:
        """The id goes: keep its device, if it has one that works."""
        with registry.lock:
            agent = one.agent
            if agent is None or agent.failed or agent.ended or one.state is IdState.DEVICE_REMOVAL:
                return
            kept = self._kept.get(agent)
            if kept is None or kept.keeper.state is IdState.DESTROYING:
                keeper = _Keeper(self._channel, PortSpace.TCP, QPType.RC, None, Timing(), None)
                keeper.use(agent)
            else:
                keeper = kept.keeper
            self._kept[agent] = _Kept(keeper, monotonic_ns() + STAY_NS)

    @property
    def deadline(self) -> int | None:
        """When to call expire()."""
        return min((kept.until for kept in self._kept.values()), default=None)

    def expire(self, now: int) -> None:
        """Let go those whose time is over."""
        for agent, kept in list(self._kept.items()):
            if kept.until <= now:
                kept.keeper.destroy()
                del self._kept[agent]

    def close(self) -> None:
        """Let all go, and the channel."""
        for kept in self._kept.values():
            kept.keeper.destroy()
        self._kept.clear()
        self._channel.close()
