# SPDX-License-Identifier: Apache-2.0
"""Connections that came to listeners and that no program has accepted: how many there may be."""

from __future__ import annotations

import os
import resource
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rnic.rdmacm.iwcm.arrivals import Arrival
    from rnic.rdmacm.iwcm.line import Line

_LEAST = 8  # however few descriptors there are


class Guests:
    """Those of all listeners of this process; protected by the registry's lock.

    Any host can connect, and has a descriptor of this process then. A quarter of all is for such connections.
    If there are more, the oldest of those that have sent no request gives way; a request that is one too many
    is refused. So what one sends who only connects takes nothing from the requests that wait for the program.
    """

    def __init__(self) -> None:
        self._silent: dict[Line, Arrival] = {}  # the oldest first
        self._asked: set[Line] = set()

    def came(self, arrival: Arrival) -> None:
        """One has connected. Beside requests that have the whole share, one at a time may be here."""
        if self._silent and len(self._silent) + len(self._asked) >= _share():
            next(iter(self._silent.values())).give_way()
        self._silent[arrival.line] = arrival

    def may_ask(self, line: Line) -> bool:
        """One has sent its request: whether that may wait for the program. A second call says the same."""
        if line not in self._asked and len(self._asked) >= _share():
            return False
        self._asked.add(line)
        self._silent.pop(line, None)
        return True

    def forget(self, line: Line) -> None:
        """Its socket is closed, or a queue pair's. A second call does nothing."""
        self._silent.pop(line, None)
        self._asked.discard(line)

    def forked(self) -> None:
        """In a forked child: they are the parent's."""
        self._silent, self._asked = {}, set()


def _share() -> int:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if limit == resource.RLIM_INFINITY else max(_LEAST, limit // 4)


guests = Guests()
os.register_at_fork(after_in_child=guests.forked)
