# SPDX-License-Identifier: Apache-2.0
"""Calls beside each other: a request that is being posted, a region that is copied from or changes."""

from __future__ import annotations

import ast
import errno
import mmap
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import rnic
from rnic import (
    SGE,
    AccessFlags,
    AllocDMAttr,
    MWType,
    OpsWR,
    QPCap,
    RecvWR,
    ReregMRFlags,
    SendFlags,
    SendWR,
    VerbsError,
    WROpcode,
)
from rnic._nic.nic import MR
from rnic.testing import ALL_ACCESS, Pair

INLINE = SendFlags.SIGNALED | SendFlags.INLINE
CAP = QPCap(max_send_wr=64, max_recv_wr=16, max_send_sge=2, max_recv_sge=2, max_inline_data=64)


@pytest.fixture
def pair() -> Iterator[Pair]:
    with Pair(cap=CAP) as pair:
        yield pair


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads change places often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


# What INLINE copies


@pytest.mark.parametrize("chained", [False, True])
def test_inline_copies_the_bytes_of_a_region_that_names_them_otherwise(pair: Pair, chained: bool) -> None:
    sink = pair.b.memory(64)
    with pair.a.pd.alloc_mr(64, AccessFlags.LOCAL_WRITE | AccessFlags.ZERO_BASED) as zero:
        zero.buf[8:12] = b"five"
        wr = SendWR(1, WROpcode.SEND, INLINE, [SGE(zero, 8, 4)])
        for turn in range(3):  # the first takes another way than those that are known
            pair.b.qp.post_recv(RecvWR(turn, [SGE(sink)]))
            pair.a.qp.post_send([wr] if chained else wr)
            assert pair.a.wait()[0].ok
            assert pair.b.wait()[0].byte_len == 4
            assert bytes(sink.buf[:4]) == b"five"
        wr.send_flags = SendFlags.SIGNALED  # from now on by its key
        pair.b.qp.post_recv(RecvWR(9, [SGE(sink)]))
        pair.a.qp.post_send(wr)
        assert pair.a.wait()[0].ok
        assert pair.b.wait()[0].ok


def test_inline_of_a_region_without_bytes_of_this_process_is_refused(pair: Pair) -> None:
    with (
        pair.a.ctx.alloc_dm(AllocDMAttr(64)) as dm,
        pair.a.pd.reg_dm_mr(dm, 0, 64, AccessFlags.LOCAL_WRITE | AccessFlags.ZERO_BASED) as device,
        pair.a.pd.alloc_null_mr() as null,
    ):
        for mr in (device, null):
            with pytest.raises(VerbsError, match="INLINE copies bytes that this process can reach") as caught:
                pair.a.qp.post_send(SendWR(1, WROpcode.SEND, INLINE, [SGE(mr, 0, 8)]))
            assert caught.value.errno == errno.EINVAL


def test_inline_of_a_closed_region_is_refused(pair: Pair) -> None:
    mr = pair.a.pd.alloc_mr(4096, AccessFlags.LOCAL_WRITE)
    sge, empty = SGE(mr, 0, 16), SGE(mr, 0, 0)
    wr = SendWR(1, WROpcode.RDMA_WRITE, INLINE, [sge])
    mr.close()
    for wrs in (wr, [wr]):
        with pytest.raises(VerbsError, match="is closed"):
            pair.a.qp.post_send(wrs)
    pair.a.qp.post_send(SendWR(2, WROpcode.RDMA_WRITE, INLINE, [empty]))  # of 0 bytes nothing is copied
    assert pair.a.wait()[0].ok


def test_inline_by_an_element_of_before_a_rereg_is_refused(pair: Pair) -> None:
    old, new = bytearray(4096), bytearray(16)
    with pair.a.pd.reg_mr(old, AccessFlags.LOCAL_WRITE) as mr:
        wr = SendWR(1, WROpcode.RDMA_WRITE, INLINE, [SGE(mr, 100, 16)])
        mr.rereg(ReregMRFlags.CHANGE_TRANSLATION, buffer=new)
        with pytest.raises(VerbsError, match="make it anew after rereg"):
            pair.a.qp.post_send(wr)


@pytest.mark.usefixtures("restless")
def test_a_region_is_not_closed_while_inline_copies_from_it() -> None:
    depth, size = 2048, 256
    cap = QPCap(max_send_wr=depth, max_recv_wr=1, max_send_sge=1, max_recv_sge=1, max_inline_data=size)
    with Pair(cap=cap) as pair:
        there = pair.b.memory(4096)
        key = there.rkey
        for turn in range(20):
            mr = pair.a.pd.alloc_mr(depth * size, AccessFlags.LOCAL_WRITE)
            wrs = [
                SendWR(k, WROpcode.RDMA_WRITE, SendFlags.INLINE, [SGE(mr, k * size, size)], there.addr, key)
                for k in range(depth)
            ]
            wrs[-1].send_flags = INLINE
            closer = threading.Timer(turn * 1e-4, close_at_last, (mr,))
            closer.start()
            try:
                pair.a.qp.post_send(wrs)
                assert pair.a.wait()[0].ok
            except VerbsError as error:
                if "is closed" not in str(error):  # before the post
                    raise
            closer.join(60)


def close_at_last(mr: MR) -> None:
    while not mr.closed:
        try:
            mr.close()
        except VerbsError as error:
            if "a call in another thread" not in str(error):
                raise


# A request is not changed while it is posted


FIELDS = ("send_flags", "opcode", "sg_list", "wr_id", "ah")


class Meddler:
    """Stands for the record that a bind is posted with, and does something while the chain is made."""

    addr = length = mw_access_flags = 0

    def __init__(self, requests: list[SendWR]) -> None:
        self.requests = requests
        self.refusals: list[str] = []

    @property
    def mr(self) -> None:
        for wr in self.requests:
            for field in FIELDS:
                try:
                    setattr(wr, field, getattr(wr, field))
                except ValueError as error:
                    self.refusals.append(str(error))


def test_no_field_of_a_request_can_be_set_while_it_is_posted(pair: Pair) -> None:
    there = pair.b.memory(64)
    with pair.a.pd.alloc_mw(MWType.TYPE_1) as mw:
        write = SendWR(7, WROpcode.RDMA_WRITE, INLINE, [SGE.inline(b"x")], there.addr, there.rkey)
        meddler = Meddler([write])
        bind = SendWR(6, WROpcode.BIND_MW, mw=mw, bind_info=meddler, rkey=mw.rkey)
        pair.a.qp.post_send([bind, write])
        assert pair.a.wait()[0].wr_id == 7
        assert len(meddler.refusals) == len(FIELDS)
        assert all("is being posted by another thread" in text for text in meddler.refusals)
    write.wr_id = 8
    write.send_flags = SendFlags.SIGNALED
    assert (write.wr_id, write.send_flags) == (8, SendFlags.SIGNALED)


def test_requests_take_what_they_are_given_and_nothing_else() -> None:
    for wr in (SendWR(), RecvWR(), OpsWR()):
        wr.wr_id = 3
        assert wr.wr_id == 3
        with pytest.raises(AttributeError):
            wr.unknown = 1  # type: ignore[union-attr]


# A fork beside open and close


def descriptors_of_a_child() -> list[str]:
    """What a forked child has of sockets, memory files and the like."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        links = []
        for name in Path("/proc/self/fd").iterdir():
            with suppress(OSError):
                links.append(str(name.readlink()))
        found = [one for one in links if one.startswith(("socket:", "anon_inode:", "/memfd:"))]
        os.write(writer, repr(found).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        text = pipe.read().decode()
    os.waitpid(pid, 0)
    found: list[str] = ast.literal_eval(text)
    return found


@pytest.mark.usefixtures("balanced")
def test_a_child_keeps_nothing_of_a_device_that_opens_or_closes_meanwhile() -> None:
    before = descriptors_of_a_child()
    stop = threading.Event()

    def open_and_close() -> None:
        while not stop.is_set():
            with rnic.open_device("roce_lo") as ctx, ctx.create_comp_channel():
                pass

    threads = [threading.Thread(target=open_and_close) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(60):
            assert descriptors_of_a_child() == before
            time.sleep(0.001)
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)


# A region that changes


class Looker:
    """A thread that looks into a region all the time, and keeps what it sees."""

    def __init__(self, mr: MR) -> None:
        self.mr = mr
        self.views: list[memoryview] = []
        self.looked, self.done = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self.look)
        self.thread.start()
        assert self.looked.wait(60)
        self.views.clear()

    def look(self) -> None:
        while not self.done.is_set():
            with suppress(BufferError):
                self.views.append(memoryview(self.mr))
            self.looked.set()

    def sizes(self) -> set[int]:
        """Of the views that it has got."""
        self.done.set()
        self.thread.join(60)
        sizes = {len(view) for view in self.views}
        self.views.clear()
        return sizes


def test_a_view_of_a_region_is_never_one_of_memory_that_was_let_go() -> None:
    with rnic.open_device("roce_lo") as ctx, ctx.alloc_pd() as pd:
        for _ in range(10):
            old = bytearray(1 << 20)
            new = mmap.mmap(-1, 16 << 20)
            mr = pd.reg_mr(old, AccessFlags.LOCAL_WRITE)
            looker = Looker(mr)
            size = len(new)
            try:
                mr.rereg(ReregMRFlags.CHANGE_TRANSLATION, buffer=new)
            except VerbsError as error:
                if error.errno != errno.EBUSY:
                    raise
                size = len(old)  # somebody looked just then
            assert looker.sizes() <= {size}
            mr.close()
            old.clear()


def test_two_threads_do_not_re_register_a_region_at_once() -> None:
    with rnic.open_device("roce_lo") as ctx, ctx.alloc_pd() as pd, pd.alloc_mr(64, ALL_ACCESS) as mr:
        buffers = [mmap.mmap(-1, 8 << 20) for _ in range(2)]
        region = pd.reg_mr(bytearray(64), AccessFlags.LOCAL_WRITE)
        gate = threading.Barrier(2)
        problems: list[BaseException] = []

        def change(buffer: mmap.mmap) -> None:
            gate.wait()
            for _ in range(50):
                try:
                    region.rereg(ReregMRFlags.CHANGE_TRANSLATION, buffer=buffer)
                except VerbsError as error:
                    if error.errno != errno.EBUSY:
                        problems.append(error)

        threads = [threading.Thread(target=change, args=(buffer,)) for buffer in buffers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not problems
        assert len(region) == 8 << 20
        assert not mr.closed
        region.close()
        for buffer in buffers:
            buffer.close()  # nobody has it any more
