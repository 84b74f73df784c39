# SPDX-License-Identifier: Apache-2.0
"""Random calls from four threads on shared objects, by the Python API.

tests/c/test_hammer.c is the same on nic.h.  Every call may fail with a VerbsError, as objects are busy,
closed or in another state; nothing else may come, nothing hangs, and at the end all can be closed.
"""

from __future__ import annotations

import os
import random
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import pytest

import rnic
from rnic import (
    SGE,
    AccessFlags,
    QPAttr,
    QPCap,
    QPInitAttr,
    QPState,
    RecvWR,
    ReregMRFlags,
    SendFlags,
    SendWR,
    VerbsError,
    WROpcode,
)
from rnic._nic.nic import MR
from rnic.testing import ALL_ACCESS, Options, connect

THREADS, PLACES, SIZE = 4, 3, 4096
CAP = QPCap(max_send_wr=16, max_recv_wr=16, max_send_sge=1, max_recv_sge=1, max_inline_data=64)
ORDINARY = (VerbsError, ValueError, BufferError, TimeoutError)


class Shared:
    """What the threads have in common, and what each of them does to it."""

    def __init__(self) -> None:
        self.ctx = rnic.open_device("roce_lo")
        self.pd = self.ctx.alloc_pd()
        self.cq = self.ctx.create_cq(4096)
        self.qps: list[rnic.QP] = [self.make_qp() for _ in range(PLACES)]
        self.mrs: list[MR] = [self.make_mr() for _ in range(PLACES)]
        self.send = SendWR(1, WROpcode.SEND, SendFlags.SIGNALED)
        self.recv = RecvWR(2)
        self.done: Counter[str] = Counter()

    def make_qp(self) -> rnic.QP:
        return self.pd.create_qp(QPInitAttr(self.cq, self.cq, cap=CAP))

    def make_mr(self) -> MR:
        return self.pd.reg_mr(bytearray(SIZE), ALL_ACCESS)

    def replace_qp(self, dice: random.Random) -> None:
        place = dice.randrange(PLACES)
        self.qps[place].close()
        self.qps[place] = self.make_qp()

    def replace_mr(self, dice: random.Random) -> None:
        place = dice.randrange(PLACES)
        self.mrs[place].close()
        self.mrs[place] = self.make_mr()

    def move(self, dice: random.Random) -> None:
        state = dice.choice([QPState.RESET, QPState.ERR, QPState.SQD, QPState.RTS])
        dice.choice(self.qps).modify(QPAttr(qp_state=state))

    def join(self, dice: random.Random) -> None:
        connect(dice.choice(self.qps), dice.choice(self.qps), Options(timeout=10))

    def post_send(self, dice: random.Random) -> None:
        mr = dice.choice(self.mrs)
        opcode = dice.choice([WROpcode.SEND, WROpcode.RDMA_WRITE, WROpcode.RDMA_READ])
        own = SendWR(3, opcode, SendFlags.SIGNALED, [SGE(mr, 0, 64)], mr.iova, mr.rkey)
        self.send.send_flags = dice.choice([SendFlags.SIGNALED, SendFlags.SIGNALED | SendFlags.INLINE])
        self.send.sg_list = [SGE(mr, 64, dice.choice([8, 64, 65]))]
        dice.choice(self.qps).post_send(dice.choice([[own, self.send], [self.send], [own]]))

    def post_recv(self, dice: random.Random) -> None:
        self.recv.sg_list = [SGE(dice.choice(self.mrs))]
        dice.choice(self.qps).post_recv(dice.choice([[self.recv], [self.recv, RecvWR(4)]]))

    def poll(self, _dice: random.Random) -> None:
        self.cq.poll(16)

    def rereg(self, dice: random.Random) -> None:
        dice.choice(self.mrs).rereg(
            ReregMRFlags.CHANGE_TRANSLATION | ReregMRFlags.CHANGE_ACCESS,
            buffer=bytearray(SIZE),
            access=dice.choice([ALL_ACCESS, AccessFlags.LOCAL_WRITE]),
        )

    def look(self, dice: random.Random) -> None:
        with memoryview(dice.choice(self.mrs)) as view:
            assert len(view) == SIZE
        dice.choice(self.qps).statistics()

    def fork(self, dice: random.Random) -> None:
        if dice.randrange(20):
            return
        pid = os.fork()
        if not pid:
            os._exit(0)
        os.waitpid(pid, 0)

    def close(self) -> None:
        # A region that lost its place is dropped, but not while one of these requests names it.
        self.send.sg_list = self.recv.sg_list = []
        for thing in (*self.qps, *self.mrs, self.cq, self.pd, self.ctx):
            thing.close()


def enough(shared: Shared, does: list[Callable[[random.Random], None]]) -> bool:
    """Every call has succeeded, and many have."""
    return all(shared.done[call.__name__] for call in does) and shared.done.total() > 200


@pytest.mark.usefixtures("balanced")
@pytest.mark.parametrize("seed", [1, 2])
def test_random_calls_of_four_threads_leave_nothing_behind(seed: int, soak: bool) -> None:
    shared, stop = Shared(), threading.Event()
    problems: list[BaseException] = []
    does: list[Callable[[random.Random], None]] = [
        shared.replace_qp, shared.replace_mr, shared.move, shared.join, shared.post_send, shared.post_send,
        shared.post_recv, shared.poll, shared.poll, shared.rereg, shared.look, shared.fork,
    ]  # fmt: skip

    def hammer(dice: random.Random) -> None:
        while not stop.is_set():
            try:
                call = dice.choice(does)
                with suppress(*ORDINARY):
                    call(dice)
                    shared.done[call.__name__] += 1  # and was not refused
            except BaseException as problem:
                problems.append(problem)
                stop.set()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # two threads put into one place: the loser's object is dropped
        threads = [
            threading.Thread(target=hammer, args=(random.Random(seed * THREADS + i),)) for i in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        limit = time.monotonic() + 60
        while not stop.wait(60 if soak else 0.5) and not enough(shared, does) and time.monotonic() < limit:
            pass
        stop.set()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive(), "it hangs"
        if problems:
            raise problems[0]
        shared.close()
