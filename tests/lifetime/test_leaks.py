# SPDX-License-Identifier: Apache-2.0
"""Round after round of create and destroy leaves nothing behind: no memory, descriptor, thread or number."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import rnic
from lifetime.conftest import native_threads, open_files
from rnic import SGE, QPCap, QPInitAttr, RecvWR, SendFlags, SendWR, WROpcode
from rnic.testing import ALL_ACCESS, Pair, connect

PAGE = os.sysconf("SC_PAGESIZE")
SMALL = QPCap(max_send_wr=4, max_recv_wr=4, max_send_sge=1, max_recv_sge=1, max_inline_data=0)
# A queue pair's number rests for a second after use; who makes more of them in that time claims further
# slots, each a socket, 16 at most.
FURTHER_SLOTS = 15
ALLOWED = 4 << 20  # bytes that the process may grow in all rounds together: allocators keep reserves


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def assert_steady(rounds: int, one: Callable[[], None]) -> None:
    """After a tenth of the rounds, in which caches fill, the rest leaves the process as it is."""
    for _ in range(rounds // 10):
        one()
    gc.collect()  # what earlier tests dropped is not counted
    memory, files, threads = resident(), open_files(), native_threads()
    for _ in range(rounds):
        one()
    assert open_files() <= files + FURTHER_SLOTS
    assert native_threads() <= threads  # those of earlier tests may end meanwhile
    assert resident() - memory < ALLOWED


def test_objects_of_a_context(soak: bool) -> None:
    with rnic.open_device("roce_lo") as ctx:

        def one() -> None:
            with (
                ctx.alloc_pd() as pd,
                ctx.create_comp_channel() as channel,
                ctx.create_cq(8, channel) as cq,
                pd.alloc_mr(4096, ALL_ACCESS) as mr,
                pd.reg_mr(bytearray(64), ALL_ACCESS),
                pd.create_qp(QPInitAttr(cq, cq, cap=SMALL)),
            ):
                mr.buf[0] = 1

        assert_steady(100_000 if soak else 5_000, one)


def test_connections_with_work_that_is_left_behind(soak: bool) -> None:
    with (
        rnic.open_device("roce_lo") as ctx,
        ctx.alloc_pd() as pd,
        ctx.create_cq(64) as cq,
        pd.alloc_mr(4096, ALL_ACCESS) as mr,
    ):
        sge = SGE(mr, 0, 64)
        wrs = [SendWR(i, WROpcode.RDMA_WRITE, SendFlags.SIGNALED, [sge], mr.addr, mr.rkey) for i in range(4)]

        def one() -> None:
            init = QPInitAttr(cq, cq, cap=SMALL)
            with pd.create_qp(init) as a, pd.create_qp(init) as b:
                connect(a, b)
                b.post_recv(RecvWR(1, [sge]))
                a.post_send(wrs)
            while cq.poll(64):
                pass

        assert_steady(20_000 if soak else 1_000, one)


def test_contexts(soak: bool) -> None:
    def one() -> None:
        rnic.open_device("roce_lo").close()

    assert_steady(2_000 if soak else 100, one)


def test_pairs_that_have_talked(soak: bool) -> None:
    def one() -> None:
        with Pair() as pair:
            here, there = pair.a.memory(4096), pair.b.memory(4096)
            pair.a.qp.post_send(
                SendWR(1, WROpcode.RDMA_READ, SendFlags.SIGNALED, [SGE(here)], there.addr, there.rkey)
            )
            pair.a.wait_ok()

    assert_steady(1_000 if soak else 60, one)


def test_work_requests_and_completions_that_are_made_and_dropped(soak: bool) -> None:
    with Pair() as pair:
        here, there = pair.a.memory(4096), pair.b.memory(4096)

        def one() -> None:
            with pair.a.pd.reg_mr(bytearray(64), ALL_ACCESS) as mr:
                wr = SendWR(1, WROpcode.RDMA_WRITE, SendFlags.SIGNALED, [SGE(mr)], there.addr, there.rkey)
                pair.a.qp.post_send([wr])
                assert pair.a.wait_ok()[0].explain()

        assert here.length
        assert_steady(50_000 if soak else 2_000, one)


def test_failed_creations_leave_nothing(soak: bool) -> None:
    with rnic.open_device("roce_lo") as ctx, ctx.alloc_pd() as pd, ctx.create_cq(8) as cq:
        attempts: list[Callable[[], object]] = [
            lambda: pd.create_qp(QPInitAttr(cq, cq, cap=QPCap(max_send_wr=1 << 20))),
            lambda: pd.reg_mr(bytearray(8), rnic.AccessFlags.REMOTE_WRITE),
            lambda: pd.reg_mr(addr=8, length=8, access=rnic.AccessFlags.LOCAL_WRITE),
            lambda: pd.alloc_mr(0, 0),
            lambda: ctx.create_cq(0),
            lambda: rnic.open_device("roce_none"),
        ]

        def one() -> None:
            for attempt in attempts:
                with pytest.raises(rnic.VerbsError):
                    attempt()

        assert_steady(5_000 if soak else 300, one)
