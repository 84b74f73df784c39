# SPDX-License-Identifier: Apache-2.0
"""The processes of this host that an agent talks with: a descriptor for each, which hangs up when it dies."""

from __future__ import annotations

import os
import select

from rnic.verbs.ah import GID
from rnic.verbs.context import Context

Name = int | tuple[int, GID]
"""A slot; or a service at an address."""


class Process:
    """Whoever had a slot, or a service, when we looked: not who has it afterwards."""

    def __init__(self, name: Name, fd: int = -1) -> None:
        self.name = name
        self.fd = fd  # -1: it was dead when we looked


class Processes:
    """One watch for each slot and service, however many connections there are."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._own = context.cm_slot()
        self._epoll = select.epoll()
        self._known: dict[Name, Process] = {}

    def fileno(self) -> int:
        """Readable when dead() has something."""
        return self._epoll.fileno()

    def dead(self) -> list[Process]:
        """Those that have died, until forget() is called for them."""
        gone = {fd for fd, _ in self._epoll.poll(0)} if self._known else set()
        return [one for one in self._known.values() if one.fd in gone]

    def forget(self, one: Process) -> None:
        """Watch it no more."""
        del self._known[one.name]
        os.close(one.fd)

    def of_slot(self, slot: int) -> Process | None:
        """The owner of a slot, as of now; None: ourselves. OSError: ECONNREFUSED when it is dead.

        dead() goes before, or the owner may be the one that has just died.
        """
        return None if slot == self._own else self._find(slot)

    def of_service(self, service_id: int, gid: GID) -> Process:
        """Whoever would get a request for a service, likewise. EMFILE: it cannot be watched now."""
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
        """Watch nobody any more; also in a forked child, whose descriptors are copies."""
        for one in self._known.values():
            os.close(one.fd)
        self._known.clear()
        self._epoll.close()
