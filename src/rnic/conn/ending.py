# SPDX-License-Identifier: Apache-2.0
"""The end of a connection: what it holds is given back, in whatever state it is."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from rnic.conn.device import LOOK_AGAIN, later, let_go, let_go_memory, run_all
from rnic.endpoint import ClosedError, State
from rnic.errors import VerbsError
from rnic.rdmacm.again import again
from rnic.rdmacm.qp_states import is_flushed, to_error

if TYPE_CHECKING:
    from rnic.conn.core import Core

GRACE = 1.0
"""Seconds for the ABORT of a close() that came to its limit."""


class Ending:
    """Disconnects and releases a connection; what the device does not take back yet goes later."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._said_disconnect = False
        self.hung_up = False
        """hang_up() was called."""
        self.flushed_by: float | None = None
        """When to look at the queue pair again; None: not."""
        self.linger_by: float | None = None
        """iWARP: until when the peer's end of the stream is waited for; None: it is not."""
        self.lingers = core.has_streams  # until a pump has looked
        self._steps: deque[Callable[[], object]] | None = None  # what release() has to do yet

    def wind_up(self, now: float) -> None:
        """When the machine has finished: disconnect, and end the operations that are left."""
        if self._core.state not in (State.CLOSED, State.FAILED):
            return
        self._core.error = self._core.error or self._core.fault
        self.disconnect()
        self._linger(now)
        if is_flushed(self._core.qp) or not self._core.machine.operates:
            self._core.machine.fail_operations()
            self._core.finish_failed(now)
            self.flushed_by = None
        else:  # a READ may still be carried out, into a buffer that would be the user's again
            self.flushed_by = now + LOOK_AGAIN

    def _linger(self, now: float) -> None:
        """iWARP: keep the stream until the peer has closed it, too, as it may still ask for our last word."""
        waits = self._core.state is State.CLOSED and self._core.has_streams and not self._core.raw
        if waits and self.linger_by is None:
            self.linger_by = now + GRACE
        self.lingers = self.linger_by is not None and now < self.linger_by and not is_flushed(self._core.qp)

    def hang_up(self) -> None:
        """From any thread: move the queue pair to ERR; the next pump finds that out."""
        self.hung_up = True  # first: another thread's pump may find the queue pair in ERR at once
        if self._core.has_streams:  # whose disconnect waits for the peer
            to_error(self._core.qp)
        with contextlib.suppress(VerbsError):  # it has ended already
            self._core.cm_id.disconnect()

    def disconnect(self) -> None:
        """Disconnect, once, with this end's last word."""
        if self._core.machine.established and not self._said_disconnect:
            with contextlib.suppress(VerbsError):
                self._core.cm_id.disconnect(self._core.machine.farewell() if self.tells else b"")
            self._said_disconnect = True

    @property
    def tells(self) -> bool:
        """The disconnect carries this end's last word; not over iWARP."""
        return bool(self._core.cm_id.farewell_bytes)

    def forget(self) -> None:
        """Have another thread release the connection.  For finalisers, which may take no lock."""
        agent = self._core.cm_id.agent
        if agent is not None and not self.given_back:
            agent.later(self.release)

    @property
    def given_back(self) -> bool:
        """release() has done all."""
        return self._steps is not None and not self._steps

    def release(self) -> None:
        """Give everything back, in whatever state the connection is; the second time does nothing.

        All of it is done, also when an exception comes meanwhile: that is raised at the end. What the device
        does not take back yet goes later (let_go()).
        """
        if self._steps is None:
            self._steps = deque(
                [
                    self._say_the_last,
                    self._destroy_qp,
                    self._end_machine,
                    self._core.sharing.let_go,
                    self._core.pool.let_go,
                    self._core.cm_id.destroy,
                    self._core.channel.close,
                    self._core.channel.drop_fd,  # before the descriptor that it shares
                    self._core.memory.let_go,
                    *(partial(let_go, one) for one in (self._core.cq, self._core.comp)),
                    self._let_go_domain,
                ]
            )
        self._core.released = self._core.gone = True
        run_all(self._steps)

    def _say_the_last(self) -> None:
        self.disconnect()
        self._core.error = self._core.error or self._core.fault

    def _destroy_qp(self) -> None:
        """Destroy the queue pair; later, with its memory, if a stopped process uses it."""
        if is_flushed(self._core.qp) or not (self._said_disconnect and again.is_held_up):
            with contextlib.suppress(VerbsError):
                self._core.cm_id.destroy_qp()
        if not self._core.qp.closed:
            self._core.cm_id.qp = None
            later(self._core.qp)

    def _end_machine(self) -> None:
        stage = self._core.machine.release()
        error = self._core.error or ClosedError("the connection is closed")
        for one in self._core.machine.failures():
            one.finish(error)
        if stage is not None:
            let_go_memory(stage)
        if not self._core.machine.deregister():
            again.add(self._core.machine, self._core.machine.deregister)

    def _let_go_domain(self) -> None:
        if self._core.pool.awaited:
            self._core.pd.__exit__(VerbsError, None, None)  # now, or with the last array in its memory
        else:
            let_go(self._core.pd)
