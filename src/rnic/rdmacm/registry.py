# SPDX-License-Identifier: Apache-2.0
"""The devices that ids of this process use: opened on demand by address, shared, and closed after use."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections.abc import Sequence
from errno import EADDRNOTAVAIL, ENODEV
from functools import partial
from typing import TYPE_CHECKING

from rnic.enums import Transport
from rnic.errors import VerbsError
from rnic.rdmacm import reach, routes
from rnic.rdmacm.agent import Agent, Loop
from rnic.rdmacm.channel import channels
from rnic.rdmacm.everywhere import Everywhere
from rnic.rdmacm.transports import has_door, serves
from rnic.verbs.context import Context
from rnic.verbs.device import Device, get_device_list, open_device
from rnic.wording import WHY_NO_DEVICE

if TYPE_CHECKING:
    from rnic.rdmacm.cm_id import CmId


class Registry:
    """All agents of this process, under one lock."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._agents: dict[str, Agent] = {}  # by the name of the device
        self._everywhere: Everywhere | None = None

    def agents(self) -> list[Agent]:
        """The agents that run now."""
        return list(self._agents.values())

    def _loops(self) -> list[Loop]:
        door = [] if self._everywhere is None else [self._everywhere]
        return [*door, *self.agents()]

    def agent_of_address(self, one: CmId, ip: routes.IP, scope: int, verb: str) -> Agent:
        """The agent of the device with this address: the id's, or the first of the list that serves it.

        Raises VerbsError: EADDRNOTAVAIL if the device, or any of this host, does not have the address;
        ENODEV if none can be opened for it.
        """
        indices = routes.interfaces_of(ip)
        if not indices:
            raise VerbsError(EADDRNOTAVAIL, f"{ip} is not an address of this host", verb)
        if scope in indices:
            indices = [scope]
        if one.device is not None and one.device.index not in indices:
            text = f"{ip} is not an address of {one.device.name}, but of another network interface"
            raise VerbsError(EADDRNOTAVAIL, text, verb)
        found = [device for device in self._devices(one) if device.index in indices]
        if not found:
            raise VerbsError(ENODEV, f"the network interface of {ip} has no device", verb)
        return self._agent(next((device for device in found if serves(device, one)), found[0]))

    def every_agent(self, one: CmId, verb: str) -> Sequence[Loop]:
        """What listens for an id that is bound to no address: the agent of its device, if it has one. Else
        the door, and the agents of devices whose services have none.
        """
        found: list[Loop] = []
        last: VerbsError | None = None
        devices = self._serving(one)
        if one.device is None and self._transports_of(one):
            found.append(self._door())
            devices = [device for device in devices if not has_door(device)]
        for device in devices:
            try:
                found.append(self._agent(device))
            except VerbsError as error:
                last = error
        if not found:
            raise last or VerbsError(ENODEV, f"there is no device, {WHY_NO_DEVICE}", verb)
        return found

    def _serving(self, one: CmId) -> list[Device]:
        """The devices that serve an id; if none does, those that say why."""
        devices = self._devices(one)
        return [device for device in devices if serves(device, one)] or devices

    def _transports_of(self, one: CmId) -> list[Transport]:
        """The transports by which an id can listen at any address, in the order of the devices."""
        return list(dict.fromkeys(each.transport for each in self._serving(one) if has_door(each)))

    def _door(self) -> Everywhere:
        if self._everywhere is None:
            door = Everywhere(self.lock, self._open_at, self.agents, self._transports_of)
            door.on_end = self._door_ended
            self._everywhere = door
        return self._everywhere

    def _door_ended(self) -> None:
        self._everywhere = None

    def _open_at(self, transport: Transport, ip: routes.IP, scope: int) -> Agent:
        """The agent of the device at an address, for a request that has come to it."""
        indices = routes.interfaces_of(ip)
        if scope in indices:
            indices = [scope]
        for device in get_device_list():
            if device.transport is transport and device.index in indices and has_door(device):
                return self._agent(device)
        raise VerbsError(ENODEV, f"there is no {transport.name} device at {ip}", "listen")

    def _devices(self, one: CmId) -> list[Device]:
        """The id's device, or else of each network interface and transport the first: there is one for each
        provider.
        """
        if one.device is not None:
            return [one.device]
        first: dict[tuple[int, Transport], Device] = {}
        for device in get_device_list():
            first.setdefault((device.index, device.transport), device)
        return list(first.values())

    def _agent(self, device: Device) -> Agent:
        agent = self._agents.get(device.name)
        if agent is None or agent.ifindex != device.index:  # the interface before has gone
            agent = Agent(self.lock, open_device(device), device.index)
            agent.on_end = partial(self._ended, agent)
            self._agents[device.name] = agent
        return agent

    def _ended(self, agent: Agent) -> None:
        if self._agents.get(agent.context.name) is agent:
            del self._agents[agent.context.name]

    def get_devices(self) -> list[Context]:
        """The contexts that ids use now (rdma_get_devices(3))."""
        with self.lock:
            return [agent.context for agent in self.agents()]

    def close(self) -> None:
        """End all agents; the peer of every connection is told, once."""
        with self.lock:
            agents = self._loops()
            for agent in agents:
                for one in list(agent.ids):
                    one.abandon()
                with contextlib.suppress(VerbsError, OSError):
                    agent.flush()
                agent.end()
        for agent in agents:
            agent.join_thread(2)

    def forked(self) -> None:
        """In a forked child: forget everything, and touch nothing of the parent's."""
        self.lock = threading.RLock()
        for agent in self._loops():
            agent.forked()
            agent.lock = self.lock
        self._agents, self._everywhere = {}, None
        reach.forked()
        for channel in channels():
            channel.lock = threading.RLock()
            channel.drop_fd()


registry = Registry()
atexit.register(registry.close)
os.register_at_fork(after_in_child=registry.forked)
