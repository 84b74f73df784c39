# SPDX-License-Identifier: Apache-2.0
"""Devices that are removed on purpose, as if somebody had pulled them out: ids have DEVICE_REMOVAL then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from rnic.rdmacm.registry import registry
from rnic.ucma.files import Handle


class Removal(NamedTuple):
    """A device that goes a time after a program has opened its first device file of RDMA-CM."""

    device: str
    """Its name; "": every device."""
    after_ns: int


class Removals:
    """What is to be removed from which process, and when; one thread uses it."""

    def __init__(self, rules: Iterable[Removal] = ()) -> None:
        self._rules = tuple(rules)
        self._files: Counter[int] = Counter()  # open ones, by process
        self._due: list[tuple[int, int, str]] = []  # ns, process, device

    def opened(self, pid: int, now: int) -> None:
        """A process has opened a device file."""
        if self._rules:
            if not self._files[pid]:
                self._due += [(now + rule.after_ns, pid, rule.device) for rule in self._rules]
            self._files[pid] += 1

    def closed(self, pid: int) -> None:
        """A process has closed one: with the last one it begins anew."""
        if self._rules:
            self._files[pid] -= 1
            if not self._files[pid]:
                del self._files[pid]
                self._due = [due for due in self._due if due[1] != pid]

    @property
    def deadline(self) -> int | None:
        """When to call take()."""
        return min(due[0] for due in self._due) if self._due else None

    def take(self, now: int) -> list[tuple[int, str]]:
        """The processes and devices whose time has come."""
        found = [due for due in self._due if due[0] <= now]
        self._due = [due for due in self._due if due[0] > now]
        return [(pid, device) for _, pid, device in found]


def remove(pid: int, name: str) -> None:
    """A process loses a device, "": all of them, for its ids of this moment. One at any address has no device
    of its own, and listens on this one again at once: it is there anew.
    """
    with registry.lock:
        for agent in registry.agents():
            for one in list(agent.ids) if name in ("", agent.context.name) else []:
                if one.agent is agent and isinstance(one.context, Handle) and one.context.file.pid == pid:
                    one.device_removed(agent)
