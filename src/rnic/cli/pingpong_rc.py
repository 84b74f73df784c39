# SPDX-License-Identifier: Apache-2.0
"""What ibv_rc_pingpong can do beside its messages: kinds of memory, timestamps, the ibv_wr_* interface."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from contextlib import ExitStack

import rnic
from rnic.cli.params import Failure
from rnic.records import MutableRecord, Record, field

EVERYTHING = (1 << 64) - 1  # bytes of an implicit on-demand region


class Features(Record):
    """Options of the command line, by the original's names."""

    odp: bool = False
    iodp: bool = False
    prefetch: bool = False
    ts: bool = False
    dm: bool = False
    new_send: bool = False

    def access(self) -> rnic.AccessFlags:
        """Of memory of the host's: what a region is registered with."""
        return rnic.AccessFlags.LOCAL_WRITE | (rnic.AccessFlags.ON_DEMAND if self.odp else 0)

    def check(self) -> None:
        """Refuses what does not go together, as the original does."""
        if self.dm and (self.odp or self.iodp):
            raise Failure("--dm: device memory cannot be on demand")
        if self.prefetch and not self.odp:
            raise Failure("--prefetch: only an on-demand region (--odp) can be prefetched")


class Memory:
    """The buffer of one end, and how work requests name it."""

    def __init__(
        self, features: Features, ctx: rnic.Context, pd: rnic.PD, nbytes: int, stack: ExitStack
    ) -> None:
        self._dm: rnic.DM | None = None
        if features.dm:
            self._dm, self.sge = _device_memory(ctx, pd, nbytes, stack)
            return
        self.buf = mmap.mmap(-1, nbytes)
        if features.iodp:
            self.sge = _implicit(pd, self.buf, stack)
            return
        mr = stack.enter_context(pd.reg_mr(self.buf, features.access()))
        self.sge = lambda offset, length: rnic.SGE(mr, offset, length)
        if features.prefetch:
            advice = rnic.AdviseMRAdvice.PREFETCH_WRITE
            pd.advise_mr(advice, rnic.AdviseMRFlags.FLUSH, [self.sge(0, nbytes)])

    def write(self, data: bytes) -> None:
        """Put these bytes at its start."""
        if self._dm is None:
            self.buf[: len(data)] = data
        else:
            self._dm.copy_to(0, data + bytes(-len(data) % 4))

    def read(self, nbytes: int) -> bytes:
        """Its first bytes."""
        if self._dm is None:
            return self.buf[:nbytes]
        return self._dm.copy_from(0, nbytes + -nbytes % 4)[:nbytes]


_Piece = Callable[[int, int], rnic.SGE]


def _device_memory(ctx: rnic.Context, pd: rnic.PD, nbytes: int, stack: ExitStack) -> tuple[rnic.DM, _Piece]:
    length = nbytes + -nbytes % 4
    dm = stack.enter_context(ctx.alloc_dm(rnic.AllocDMAttr(length)))
    access = rnic.AccessFlags.LOCAL_WRITE | rnic.AccessFlags.ZERO_BASED
    mr = stack.enter_context(pd.reg_dm_mr(dm, 0, length, access))
    return dm, lambda offset, n: rnic.SGE(mr, offset, n)


def _implicit(pd: rnic.PD, buf: mmap.mmap, stack: ExitStack) -> _Piece:
    """A region of the whole address space; what is sent and received lies in buf."""
    start = ctypes.addressof(ctypes.c_char.from_buffer(buf))
    access = rnic.AccessFlags.LOCAL_WRITE | rnic.AccessFlags.ON_DEMAND
    mr = stack.enter_context(pd.reg_mr(addr=0, length=EVERYTHING, access=access))
    return lambda offset, n: rnic.SGE(addr=start + offset, length=n, lkey=mr.lkey)


def post(qp: rnic.QP, wr: rnic.SendWR) -> None:
    """Post a SEND: as a work request, or, on an extended queue pair, by its builders."""
    if not isinstance(qp, rnic.QPEx):
        qp.post_send(wr)
        return
    with qp.wr_start():
        qp.wr_id, qp.wr_flags = wr.wr_id, wr.send_flags & ~rnic.SendFlags.INLINE
        qp.wr_send()
        qp.wr_set_sge_list(wr.sg_list)
        qp.wr_complete()


class Timed(MutableRecord):
    """A completion of an extended queue, as far as the loop looks at it."""

    wr_id: int
    ok: bool
    words: str

    def explain(self) -> str:
        """Why it failed."""
        return self.words


class Clock(MutableRecord):
    """How far apart receive completions are, in cycles of the device's clock."""

    wanted: int
    """The wr_id of those that are looked at."""
    last: int | None = None
    apart: list[int] = field(default_factory=list)

    def poll(self, cq: rnic.CQEX, most: int) -> list[Timed]:
        """Completions that are there, at most so many; their times are noted."""
        found: list[Timed] = []
        more = cq.start_poll()
        while more:
            ok = cq.status is rnic.WCStatus.SUCCESS
            found.append(Timed(cq.wr_id, ok, "" if ok else cq.explain()))
            if cq.wr_id == self.wanted:
                self._note(cq.read_completion_ts())
            more = len(found) < most and cq.next_poll()
        cq.end_poll()
        return found

    def _note(self, now: int) -> None:
        if self.last is not None:
            self.apart.append(now - self.last)
        self.last = now

    def report(self, khz: int) -> str:
        """What was seen, in words."""
        if not self.apart:
            return "receive completions: fewer than two"
        mean = sum(self.apart) / len(self.apart)
        return (
            f"receive completions: {min(self.apart)} to {max(self.apart)} clock cycles apart, {mean:.1f} on "
            f"average, at {khz} kHz"
        )
