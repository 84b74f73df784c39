# SPDX-License-Identifier: Apache-2.0
"""Threads post, poll, register, connect and destroy at once, on one context."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from contextlib import ExitStack

import pytest

import rnic
from rnic import SGE, QPInitAttr, RecvWR, SendFlags, SendWR, VerbsError, WROpcode
from rnic._nic.nic import CQ
from rnic.testing import ALL_ACCESS, Options, Pair, connect

SIGNALED = SendFlags.SIGNALED


def together(*jobs: Callable[[], None]) -> None:
    """Runs the jobs in threads, from one start; the first exception of any is raised here."""
    failures: list[BaseException] = []
    gate = threading.Barrier(len(jobs))

    def guarded(job: Callable[[], None]) -> None:
        gate.wait()
        try:
            job()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=guarded, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "it hangs"
    if failures:
        raise failures[0]


def drain(cq: CQ, n: int) -> None:
    while n:
        for wc in cq.poll(16):
            assert wc.ok, wc.explain()
            n -= 1


@pytest.fixture
def rounds(soak: bool) -> int:
    return 5_000 if soak else 300


@pytest.mark.usefixtures("balanced")
def test_every_thread_does_everything_on_one_context(rounds: int) -> None:
    with rnic.open_device("roce_lo") as ctx, ctx.alloc_pd() as pd:

        def work() -> None:
            for _ in range(rounds // 10):
                with (
                    ctx.create_cq(64) as cq,
                    pd.alloc_mr(8192, ALL_ACCESS) as mr,
                    pd.create_qp(QPInitAttr(cq, cq)) as a,
                    pd.create_qp(QPInitAttr(cq, cq)) as b,
                ):
                    connect(a, b, Options(timeout=18))
                    b.post_recv(RecvWR(9, [SGE(mr, 4096, 64)]))
                    a.post_send(
                        [
                            SendWR(1, WROpcode.RDMA_WRITE, SIGNALED, [SGE(mr, 0, 64)], mr.addr + 64, mr.rkey),
                            SendWR(2, WROpcode.RDMA_READ, SIGNALED, [SGE(mr, 0, 64)], mr.addr + 64, mr.rkey),
                            SendWR(3, WROpcode.SEND, SIGNALED, [SGE(mr, 0, 64)]),
                        ]
                    )
                    drain(cq, 4)

        together(*[work] * 4)


def test_threads_post_to_one_queue_pair_while_others_poll(rounds: int) -> None:
    with Pair(options=Options(timeout=18)) as pair:
        a = pair.a
        here, there = a.memory(4096), pair.b.memory(4096)
        total, lock = 2 * rounds, threading.Lock()
        seen: list[int] = []

        def post(first: int) -> Callable[[], None]:
            def job() -> None:
                for i in range(first, first + rounds):
                    wr = SendWR(i, WROpcode.RDMA_WRITE, SIGNALED, [SGE(here, 0, 8)], there.addr, there.rkey)
                    while True:
                        try:
                            a.qp.post_send(wr)
                            break
                        except VerbsError as error:
                            if error.errno != errno.ENOMEM:
                                raise

            return job

        def poll() -> None:
            while len(seen) < total:
                found = a.cq.poll(8)
                assert all(wc.ok for wc in found)
                with lock:
                    seen.extend(wc.wr_id for wc in found)

        together(post(0), post(rounds), poll, poll)
        assert sorted(seen) == list(range(total)), "each completes once"


def test_memory_is_registered_and_closed_while_the_peer_writes_elsewhere(rounds: int) -> None:
    with Pair(options=Options(timeout=18)) as pair:
        here, there = pair.a.memory(65536), pair.b.memory(65536)

        def write() -> None:
            wr = SendWR(1, WROpcode.RDMA_WRITE, SIGNALED, [SGE(here)], there.addr, there.rkey)
            for _ in range(rounds):
                pair.a.qp.post_send([wr])
                drain(pair.a.cq, 1)

        def register() -> None:
            for _ in range(rounds):
                with ExitStack() as stack:
                    for _ in range(8):
                        stack.enter_context(pair.b.pd.reg_mr(bytearray(100), ALL_ACCESS))

        together(write, register, register)


def test_queue_pairs_are_destroyed_under_traffic(rounds: int) -> None:
    with rnic.open_device("roce_lo") as ctx, ctx.alloc_pd() as pd, pd.alloc_mr(1 << 16, ALL_ACCESS) as mr:

        def work() -> None:
            for _ in range(rounds // 10):
                with ctx.create_cq(64) as cq:
                    init = QPInitAttr(cq, cq)
                    with pd.create_qp(init) as a, pd.create_qp(init) as b:
                        connect(a, b, Options(timeout=18))
                        write = SendWR(1, WROpcode.RDMA_WRITE, SIGNALED, [SGE(mr)], mr.addr, mr.rkey)
                        a.post_send([write])
                        b.post_send([SendWR(2, WROpcode.RDMA_READ, SIGNALED, [SGE(mr)], mr.addr, mr.rkey)])

        together(*[work] * 3)


def test_an_object_in_use_by_a_call_of_another_thread_is_not_closed_under_it() -> None:
    with rnic.open_device("roce_lo") as ctx, ctx.create_comp_channel() as channel:
        waiting = threading.Event()
        ended: list[str] = []
        refusals: list[str] = []

        def wait() -> None:
            waiting.set()
            try:
                channel.get_cq_event(0.5)
            except (TimeoutError, VerbsError) as error:
                ended.append(type(error).__name__)

        def close() -> None:
            waiting.wait()
            while not ended:
                try:
                    channel.close()
                    break
                except VerbsError as error:
                    refusals.append(str(error))

        together(wait, close)
        assert ended
        assert all("a call in another thread uses CompChannel" in text for text in refusals)
