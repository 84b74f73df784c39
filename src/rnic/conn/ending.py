# SPDX-License-Identifier: Apache-2.0
"""The end of a connection: what it holds is given back, in whatever state it is."""

from __future__ import annotations

import contextlib
from collections import deque
from functools import partial

from rnic.conn.device import later, let_go, let_go_memory, run_all
from rnic.conn.operating import Operating
from rnic.endpoint import LostError
from rnic.errors import VerbsError
from rnic.rdmacm.again import again
from rnic.rdmacm.qp_states import is_flushed, to_error


class Ending(Operating):
    """Disconnect and release.  What the device does not take back yet goes later (let_go())."""

    def give_up(self, mistake: BaseException) -> None:
        """End the connection after a mistake in rnic; the peer is told by a disconnect."""
        self.broken = LostError(f"a mistake in rnic ended the connection, please report it: {mistake!r}")
        self.broken.__cause__ = mistake
        self.hang_up()

    def hang_up(self) -> None:
        """From any thread: move the queue pair to ERR; the next pump finds that out."""
        if self._has_streams:  # whose disconnect waits for the peer
            to_error(self.qp)
        with contextlib.suppress(VerbsError):  # it has ended already
            self.cm_id.disconnect()

    def _disconnect(self) -> None:
        if self.established and not self._said_disconnect:
            with contextlib.suppress(VerbsError):
                self.cm_id.disconnect(self.protocol.farewell if self.disconnect_tells else b"")
            self._said_disconnect = True

    @property
    def disconnect_tells(self) -> bool:
        """The disconnect carries this end's last word; not over iWARP."""
        return bool(self.cm_id.farewell_bytes)

    # ------------------------------------------------------------ release

    def forget(self) -> None:
        """Have another thread release the connection.  For finalisers, which may take no lock."""
        agent = self.cm_id.agent
        if agent is not None and not self.given_back:
            agent.later(self.release)

    @property
    def given_back(self) -> bool:
        """release() has done all."""
        return self._end_steps is not None and not self._end_steps

    def release(self) -> None:
        """Give everything back, in whatever state the connection is; the second time does nothing.

        All of it is done, also when an exception comes meanwhile: that is raised at the end. What the device
        does not take back yet goes later (let_go()).
        """
        self.courier.shut()
        if self._end_steps is None:
            self._end_steps = deque(
                [
                    self._say_the_last,
                    self._destroy_qp,
                    self._fail_ops,
                    self._let_go_memory,
                    self.pool.let_go,
                    self.cm_id.destroy,
                    self.channel.close,
                    self.channel.drop_fd,  # before the descriptor that it shares
                    self.memory.let_go,
                    *(partial(let_go, one) for one in (self.cq, self.comp)),
                    self._let_go_domain,
                ]
            )
        self.released = True
        run_all(self._end_steps)

    def _say_the_last(self) -> None:
        self._disconnect()
        self._note_error()

    def _destroy_qp(self) -> None:
        """Destroy the queue pair; later, with its memory, if a stopped process uses it."""
        if is_flushed(self.qp) or not (self._said_disconnect and again.is_held_up):
            with contextlib.suppress(VerbsError):
                self.cm_id.destroy_qp()
        if not self.qp.closed:
            self.cm_id.qp = None
            later(self.qp)

    def _let_go_domain(self) -> None:
        if self.pool.awaited:
            self.pd.__exit__(VerbsError, None, None)  # now, or with the last array in its memory
        else:
            let_go(self.pd)

    def _let_go_memory(self) -> None:
        self._outgoing.clear()
        self.courier.let_part_go()
        self._announced.close_all()
        self.fetching.close()
        for mr in self._shared.values():
            let_go_memory(mr)
