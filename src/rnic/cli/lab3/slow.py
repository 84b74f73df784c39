# SPDX-License-Identifier: Apache-2.0
"""Runs a student's program on a slow RNIC: `python slow.py GATE SCRIPT ARGUMENT...`

Some mistakes show only if the peer is fast enough, or the RNIC slow enough.  Here they always show:

- A receive is posted after the SEND.  post_send() returns when the judge has answered that SEND, and has
  written a byte to the pipe GATE.  When the judge has closed the pipe, it returns at once.
- Memory is changed or released before the WRITE has completed.  After a WRITE the device loses all that it
  sends, until the program waits for a completion or posts other work.  Then it sends the WRITE again.
  If GATE is "late", it does the same with SENDs, and there is no pipe.

A program that follows the rules notices nothing.
"""

from __future__ import annotations

import os
import runpy
import sys
import threading
from collections.abc import Iterable

import rnic
from rnic.rdmacm import CmId

SENDS = {rnic.WROpcode.SEND, rnic.WROpcode.SEND_WITH_IMM, rnic.WROpcode.SEND_WITH_INV}
WRITES = {rnic.WROpcode.RDMA_WRITE, rnic.WROpcode.RDMA_WRITE_WITH_IMM}
MOST_LOST = 16  # work requests: a program may have thousands
MOST_RETRIES = 7  # of a queue pair: with fewer, a loss could end the connection
LOST_SECONDS = 0.2  # for programs that wait in a way that is not seen here: fewer than it takes to give up


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


class Slow:
    """A queue pair's work, as late as may be."""

    def __init__(self, gate: int | None) -> None:
        self._gate = gate
        self._lost = WRITES if gate is not None else WRITES | SENDS
        self._wire: Wire | None = None
        self._left = MOST_LOST

    def before(self, qp: rnic.QP, opcodes: set[rnic.WROpcode]) -> None:
        """The program posts work."""
        self.mend()
        if opcodes & self._lost and self._left and qp.query()[0].retry_cnt == MOST_RETRIES:
            self._left -= 1
            assert isinstance(qp.context, rnic.Context)
            self._wire = Wire(qp.context)

    def after(self, opcodes: set[rnic.WROpcode]) -> None:
        """It is posted."""
        if self._gate is not None and opcodes <= SENDS:
            os.read(self._gate, 1)

    def mend(self) -> None:
        """The program waits."""
        if self._wire is not None:
            self._wire.mend()
        self._wire = None


def slow_down(slow: Slow) -> None:
    """From now on, all connected queue pairs."""
    post_send, get_send_comp, get_recv_comp = rnic.QP.post_send, CmId.get_send_comp, CmId.get_recv_comp

    def slow_post_send(self: rnic.QP, wrs: rnic.SendWR | Iterable[rnic.SendWR]) -> None:
        chain = (wrs,) if isinstance(wrs, rnic.SendWR) else tuple(wrs)
        if self.qp_type is not rnic.QPType.RC:
            return post_send(self, chain)
        opcodes = {wr.opcode for wr in chain}
        slow.before(self, opcodes)
        post_send(self, chain)
        return slow.after(opcodes)

    def slow_get_send_comp(self: CmId, timeout: float | None = None) -> rnic.WC:
        slow.mend()
        return get_send_comp(self, timeout)

    def slow_get_recv_comp(self: CmId, timeout: float | None = None) -> rnic.WC:
        slow.mend()
        return get_recv_comp(self, timeout)

    for cls, method in (rnic.QP, slow_post_send), (CmId, slow_get_send_comp), (CmId, slow_get_recv_comp):
        setattr(cls, method.__name__.removeprefix("slow_"), method)


def main() -> None:
    """Become the script."""
    gate, sys.argv = sys.argv[1], sys.argv[2:]
    sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))  # noqa: PTH100, PTH120 - as Python does
    slow_down(Slow(None if gate == "late" else int(gate)))
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
