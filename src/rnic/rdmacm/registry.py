# SPDX-License-Identifier: Apache-2.0
"""The devices that ids of this process use: opened on demand by address, shared, and closed after use."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from errno import EADDRNOTAVAIL, ENODEV

from rnic.errors import VerbsError
from rnic.rdmacm import reach, routes
from rnic.rdmacm.agent import Agent
from rnic.rdmacm.channel import channels
from rnic.verbs.context import Context
from rnic.verbs.device import Device, get_device_list, open_device


class Registry:
    """All agents of this process, under one lock."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._agents: dict[int, Agent] = {}  # by interface index

    def agents(self) -> list[Agent]:
        """The agents that run now."""
        return list(self._agents.values())

    def agent_of_address(self, ip: routes.IP, scope: int, verb: str) -> Agent:
        """The agent of the device with this address. Raises VerbsError: EADDRNOTAVAIL if no device of this
        host has it.
        """
        indices = routes.interfaces_of(ip)
        if not indices:
            raise VerbsError(EADDRNOTAVAIL, f"{ip} is not an address of this host", verb)
        if scope in indices:
            indices = [scope]
        if len(indices) == 1 and (known := self._agents.get(indices[0])):
            return known
        for device in self._devices():
            if device.index in indices:
                return self._agent(device)
        raise VerbsError(ENODEV, f"the network interface of {ip} has no device", verb)

    def every_agent(self, verb: str) -> list[Agent]:
        """The agents of all devices that can be opened, for ids that are bound to no address."""
        found: list[Agent] = []
        last: VerbsError | None = None
        for device in self._devices():
            try:
                found.append(self._agent(device))
            except VerbsError as error:
                last = error
        if not found:
            raise last or VerbsError(
                ENODEV, "there is no device, as no network interface has an address", verb
            )
        return found

    def _devices(self) -> list[Device]:
        """The devices, of each network interface the first: there is one for each provider."""
        first: dict[int, Device] = {}
        for device in get_device_list():
            first.setdefault(device.index, device)
        return list(first.values())

    def _agent(self, device: Device) -> Agent:
        agent = self._agents.get(device.index)
        if agent is None:
            agent = Agent(self.lock, open_device(device), device.index)
            agent.on_end = self._ended
            self._agents[device.index] = agent
        return agent

    def _ended(self, agent: Agent) -> None:
        if self._agents.get(agent.ifindex) is agent:
            del self._agents[agent.ifindex]

    def get_devices(self) -> list[Context]:
        """The contexts that ids use now (rdma_get_devices(3))."""
        with self.lock:
            return [agent.context for agent in self.agents()]

    def close(self) -> None:
        """End all agents; the peer of every connection is told, once."""
        with self.lock:
            agents = self.agents()
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
        for agent in self.agents():
            agent.forked()
            agent.lock = self.lock
        self._agents = {}
        reach.forked()
        for channel in channels():
            channel.lock = threading.RLock()
            channel.drop_fd()


registry = Registry()
atexit.register(registry.close)
os.register_at_fork(after_in_child=registry.forked)
