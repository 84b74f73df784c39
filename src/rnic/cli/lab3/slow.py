# SPDX-License-Identifier: Apache-2.0
"""Runs a student's program on a slow RNIC: `python slow.py GATE held|late SCRIPT ARGUMENT...`

Some mistakes show only if the peer is fast enough, or the RNIC slow enough.  Here they always show:

- A receive is posted after the SEND.  "held": post_send() returns when the judge has answered that SEND, and
  has written a byte to the socket GATE.  When the judge has shut it down, it returns at once.
- Memory is changed or released before the WRITE has completed.  After a WRITE the device loses all that it
  sends, until the program waits for a completion or posts other work.  Then it sends the WRITE again.
  "late": it does the same with SENDs, and post_send() does not wait for the judge.

iWARP sends nothing again.  There the WRITE is posted when the program waits, not before.  When post_send()
returns, the answer has come or the connection has ended.  And a byte goes to the judge when the program ends
its connection: the judge cannot tell that from the end of the process.

A program that follows the rules notices nothing.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

import rnic
from rnic.cli.endpoint import is_iwarp
from rnic.rdmacm import CmId

SENDS = {rnic.WROpcode.SEND, rnic.WROpcode.SEND_WITH_IMM, rnic.WROpcode.SEND_WITH_INV}
WRITES = {rnic.WROpcode.RDMA_WRITE, rnic.WROpcode.RDMA_WRITE_WITH_IMM}
MOST_LOST = 16  # work requests: a program may have thousands
MOST_RETRIES = 7  # of a queue pair: with fewer, a loss could end the connection
LOST_SECONDS = 0.2  # for programs that wait in a way that is not seen here: fewer than it takes to give up
LOOK_SECONDS = 0.001  # between two looks whether an answer has come


Chain = tuple[rnic.SendWR, ...]


class Delay(Protocol):
    """Work that is late."""

    def mend(self) -> None:
        """From now on it is not."""


class Wire:
    """Loses what a device sends, for a while."""

    def __init__(self, context: rnic.Context) -> None:
        self._context = context
        self._timer = threading.Timer(LOST_SECONDS, self.mend)
        self._timer.daemon = True
        context.set_faults(rnic.Faults(loss=1.0))
        self._timer.start()

    def mend(self) -> None:
        """From now on nothing is lost."""
        self._timer.cancel()
        if not self._context.closed:
            self._context.set_faults(None)


class Held:
    """Work that is posted later."""

    def __init__(self, post: Callable[[], None]) -> None:
        self._post: Callable[[], None] | None = post
        self._lock = threading.Lock()
        self._timer = threading.Timer(LOST_SECONDS, self.mend)
        self._timer.daemon = True
        self._timer.start()

    def mend(self) -> None:
        """Post it, unless that was done."""
        self._timer.cancel()
        with self._lock:
            post, self._post = self._post, None
            if post is not None:
                post()


class Slow:
    """A queue pair's work, as late as may be."""

    def __init__(self, gate: int, mode: str) -> None:
        self._gate = gate
        self._holds = mode == "held"
        self._lost = WRITES if self._holds else WRITES | SENDS
        self._delay: Delay | None = None
        self._left = MOST_LOST

    def post(self, qp: rnic.QP, chain: Chain, post: Callable[[Chain], None]) -> None:
        """The program posts work; `post` does it."""
        self.mend()
        opcodes = {wr.opcode for wr in chain}
        executed = _executed(qp)
        if not self._delays(qp, opcodes, chain, post):
            post(chain)
        if self._holds and opcodes <= SENDS and os.read(self._gate, 1) and _is_iwarp(qp):
            while _executed(qp) == executed and qp.state is rnic.QPState.RTS:
                time.sleep(LOOK_SECONDS)

    def _delays(
        self, qp: rnic.QP, opcodes: set[rnic.WROpcode], chain: Chain, post: Callable[[Chain], None]
    ) -> bool:
        """Make the work late, if its opcodes are among those; whether it is posted later."""
        if not opcodes & self._lost or not self._left:
            return False
        if not _is_iwarp(qp):
            if qp.query()[0].retry_cnt == MOST_RETRIES:
                self._left -= 1
                self._delay = Wire(_context(qp))
            return False
        if not opcodes <= SENDS | WRITES or any(wr.send_flags & rnic.SendFlags.INLINE for wr in chain):
            return False  # memory of work that goes INLINE is the program's again
        self._left -= 1
        held = tuple(map(_copy, chain))
        self._delay = Held(lambda: post(held))
        return True

    def wait(self, get: Callable[[float | None], rnic.WC], timeout: float | None) -> rnic.WC:
        """The program waits for a completion; one that is there already is not that of late work."""
        if isinstance(self._delay, Held):
            with contextlib.suppress(TimeoutError):
                return get(0)
        self.mend()
        return get(timeout)

    def mend(self) -> None:
        """Nothing is late any more."""
        delay, self._delay = self._delay, None
        if delay is not None:
            delay.mend()

    def hangs_up(self, cm_id: CmId) -> None:
        """The program ends a connection."""
        qp = cm_id.qp
        if qp is not None and not qp.closed and qp.state is rnic.QPState.RTS:
            with contextlib.suppress(OSError):  # the judge has gone, or the program has closed it
                os.write(self._gate, b".")


def _context(qp: rnic.QP) -> rnic.Context:
    assert isinstance(qp.context, rnic.Context)
    return qp.context


def _is_iwarp(qp: rnic.QP) -> bool:
    return is_iwarp(_context(qp).device)


def _executed(qp: rnic.QP) -> int:
    """How much of what the peer has sent was taken."""
    return qp.statistics().counters.requests_executed


def _copy(wr: rnic.SendWR) -> rnic.SendWR:
    """The program may change a work request as soon as it is posted."""
    pieces, rest = wr.sg_list, (wr.remote_addr, wr.rkey, wr.imm_data)
    key = wr.invalidate_rkey
    return rnic.SendWR(wr.wr_id, wr.opcode, wr.send_flags, pieces, *rest, invalidate_rkey=key)


def slow_down(slow: Slow) -> None:
    """From now on, all connected queue pairs."""
    post_send, get_send_comp, get_recv_comp = rnic.QP.post_send, CmId.get_send_comp, CmId.get_recv_comp
    disconnect, destroy = CmId.disconnect, CmId.destroy

    def slow_post_send(self: rnic.QP, wrs: rnic.SendWR | Iterable[rnic.SendWR]) -> None:
        chain = (wrs,) if isinstance(wrs, rnic.SendWR) else tuple(wrs)
        if self.qp_type is not rnic.QPType.RC:
            return post_send(self, chain)
        return slow.post(self, chain, lambda some: post_send(self, some))

    def slow_get_send_comp(self: CmId, timeout: float | None = None) -> rnic.WC:
        return slow.wait(partial(get_send_comp, self), timeout)

    def slow_get_recv_comp(self: CmId, timeout: float | None = None) -> rnic.WC:
        return slow.wait(partial(get_recv_comp, self), timeout)

    def slow_disconnect(self: CmId, private_data: bytes = b"") -> None:
        slow.hangs_up(self)
        disconnect(self, private_data)

    def slow_destroy(self: CmId) -> None:
        slow.hangs_up(self)
        destroy(self)

    for method in (slow_get_send_comp, slow_get_recv_comp, slow_disconnect, slow_destroy):
        setattr(CmId, method.__name__.removeprefix("slow_"), method)
    setattr(rnic.QP, "post_send", slow_post_send)  # noqa: B010


def main() -> None:
    """Become the script."""
    gate, mode, *sys.argv = sys.argv[1:]
    sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))  # noqa: PTH100, PTH120 - as Python does
    slow_down(Slow(int(gate), mode))
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
