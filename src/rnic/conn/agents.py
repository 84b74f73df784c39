# SPDX-License-Identifier: Apache-2.0
"""The threads of a server, one for each connection."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING

from rnic.conn.ending import GRACE
from rnic.endpoint import EndpointError
from rnic.errors import exhausted
from rnic.log import Log
from rnic.threads import Thread
from rnic.times import after, bounded

if TYPE_CHECKING:
    from rnic.conn.sync import Connection


_log = Log("rnic.conn")


class Agents:
    """Threads that serve one connection each."""

    def __init__(self, agent: Callable[[Connection], object]) -> None:
        self._agent = agent
        self._at_work: dict[threading.Thread, Connection] = {}

    def begin(self, conn: Connection) -> None:
        """Serve a connection in a new thread."""
        self._at_work = {thread: of for thread, of in self._at_work.items() if thread.is_alive()}
        thread = Thread(target=self._attend, args=(conn,), name="rnic-agent", daemon=True)
        self._at_work[thread] = conn
        try:
            thread.start()
        except (RuntimeError, MemoryError) as error:
            # There is no thread for it: this connection ends, the others go on.
            del self._at_work[thread]
            _log.warning("%r is not served: %s", conn, exhausted(error))
            conn._drop("there is no thread to serve the connection")

    def _attend(self, conn: Connection) -> None:
        try:
            with conn:
                self._agent(conn)
        except EndpointError as error:  # of this connection, mostly; a ConnectionError is of another
            _log.info("%r: %s", conn, error)
        except Exception as error:
            if not conn._core.messages.is_own_end(error):
                _log.error("the agent of %r has failed", conn, error=error)

    def call_back(self) -> None:
        """Have the agents end when they next wait for a message, or now if they do."""
        for conn in self._at_work.values():
            conn._core.leave()

    def dismiss(self, grace: float | None) -> None:
        """Wait for all agents; those that take longer lose their connections, which ends their waiting."""
        if self._join(grace):
            return
        for thread, conn in self._at_work.items():
            if thread.is_alive():
                conn.hang_up()
        if not self._join(GRACE):
            names = [repr(conn) for thread, conn in self._at_work.items() if thread.is_alive()]
            _log.warning("agents that do not end: %s", ", ".join(names))

    def _join(self, timeout: float | None) -> bool:
        until = after(timeout)
        for thread in self._at_work:
            thread.join(None if until is None else bounded(max(0.0, until - monotonic())))
        return not any(thread.is_alive() for thread in self._at_work)
