# SPDX-License-Identifier: Apache-2.0
"""The processes of this host that an agent talks with: one descriptor for each, which hangs up when the
process dies.
"""

from __future__ import annotations

import os
import select

from rnic.verbs.ah import GID
from rnic.verbs.context import Context

Name = int | tuple[int, GID]
"""A slot; or a service at an address."""


class Process:
    """The process that had a slot, or a service, when we looked; not one that has it afterwards."""

    def __init__(self, name: Name, fd: int = -1) -> None:
        self.name = name
        self.fd = fd  # -1: it was dead when we looked


class Processes:
    """One watch for each slot and service, for any number of connections."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._own = context.cm_slot()
        self._epoll = select.epoll()
        self._known: dict[Name, Process] = {}

    def fileno(self) -> int:
        """A descriptor that is readable when dead() has something."""
        return self._epoll.fileno()

    def dead(self) -> list[Process]:
        """The processes that have died, until forget() is called for them."""
        gone = {fd for fd, _ in self._epoll.poll(0)} if self._known else set()
        return [one for one in self._known.values() if one.fd in gone]

    def forget(self, one: Process) -> None:
        """End the watch of a process."""
        del self._known[one.name]
        os.close(one.fd)

    def of_slot(self, slot: int) -> Process | None:
        """The current owner of a slot; None: this process. Raises OSError: ECONNREFUSED if the owner is dead.

        Call dead() before, or the owner may be the one that has just died.
        """
        return None if slot == self._own else self._find(slot)

    def of_service(self, service_id: int, gid: GID) -> Process:
        """The process that would get a request for a service, as of_slot(). EMFILE: it cannot be watched
        now.
        """
        return self._find((service_id, gid))

    def _find(self, name: Name) -> Process:
        found = self._known.get(name)
        if found is None:
            found = Process(name, self._watch(name))
            try:
                self._epoll.register(found.fd, 0)
                self._known[name] = found
            except BaseException:
                os.close(found.fd)
                raise
        return found

    def _watch(self, name: Name) -> int:
        if isinstance(name, int):
            return self._context.cm_watch(name)
        return self._context.cm_watch_service(*name)

    def close(self) -> None:
        """End all watches; also in a forked child, whose descriptors are copies."""
        for one in self._known.values():
            os.close(one.fd)
        self._known.clear()
        self._epoll.close()
