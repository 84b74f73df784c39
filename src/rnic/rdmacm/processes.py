# SPDX-License-Identifier: Apache-2.0
"""The processes of this host that an agent talks with: a descriptor for each, which hangs up when it dies."""

from __future__ import annotations

import os
import select
from errno import ECONNREFUSED

from rnic.errors import VerbsError
from rnic.verbs.ah import GID
from rnic.verbs.context import Context


class Process:
    """Whoever had a slot, or a service, when we looked: not who has it afterwards."""

    def __init__(self, fd: int = -1) -> None:
        self.fd = fd  # -1: it was dead when we looked


class Processes:
    """One watch for each slot and service, however many connections there are."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._own = context.cm_slot()
        self._epoll = select.epoll()
        self._known: dict[int | tuple[int, GID], Process] = {}

    def fileno(self) -> int:
        """Readable when take_dead() has something."""
        return self._epoll.fileno()

    def take_dead(self) -> list[Process]:
        """Those that have died since the last call."""
        gone = {fd for fd, _ in self._epoll.poll(0)} if self._known else set()
        dead = [(name, one) for name, one in self._known.items() if one.fd in gone]
        for name, one in dead:
            del self._known[name]
            os.close(one.fd)
        return [one for _, one in dead]

    def of_slot(self, slot: int) -> Process | None:
        """The owner of a slot, as of now; None: ourselves, or it cannot be watched. ECONNREFUSED: it is dead.

        take_dead() goes before, or the owner may be the one that has just died.
        """
        return None if slot == self._own else self._find(slot)

    def of_service(self, service_id: int, gid: GID) -> Process | None:
        """Whoever would get a request for a service, likewise."""
        return self._find((service_id, gid))

    def _find(self, name: int | tuple[int, GID]) -> Process | None:
        found = self._known.get(name)
        if found is None:
            try:
                found = Process(self._watch(name))
            except VerbsError as error:
                if error.errno == ECONNREFUSED:
                    raise
                return None  # too many descriptors, or not permitted: then time decides
            try:
                self._epoll.register(found.fd, 0)
            except OSError:
                os.close(found.fd)
                return None
            self._known[name] = found
        return found

    def _watch(self, name: int | tuple[int, GID]) -> int:
        if isinstance(name, int):
            return self._context.cm_watch(name)
        return self._context.cm_watch_service(*name)

    def close(self) -> None:
        """Watch nobody any more; also in a forked child, whose descriptors are copies."""
        for one in self._known.values():
            os.close(one.fd)
        self._known.clear()
        self._epoll.close()
