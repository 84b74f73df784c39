# SPDX-License-Identifier: Apache-2.0
"""Import: contexts, domains, regions and device memory, within a process and from another one."""

from __future__ import annotations

import errno
import fcntl
import gc
import mmap
import os
import random
import signal
import struct
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

import rnic
from rnic import (
    SGE,
    AccessFlags,
    AllocDMAttr,
    EventType,
    ParentDomainInitAttr,
    QPInitAttr,
    ReregMRFlags,
    SendFlags,
    SendWR,
    WCStatus,
    WROpcode,
)
from rnic.testing import ALL_ACCESS, End, Options, connect
from transport.scene import arrive

PAGE = mmap.PAGESIZE
TABLE, RECORD = 65536 * 72, 72

# -- within a process


@pytest.fixture
def end() -> Iterator[End]:
    with End() as made:
        yield made


def run(end: End, qp: rnic.QP, opcode: WROpcode, sge: SGE, at: int, rkey: int) -> WCStatus:
    qp.post_send(SendWR(1, opcode, SendFlags.SIGNALED, [sge], at, rkey))
    return end.wait()[0].status


def test_the_imported_context_is_the_same_one(end: End) -> None:
    with rnic.import_device(end.ctx.cmd_fd) as ctx:
        assert ctx.device == end.ctx.device
        pd = ctx.import_pd(end.pd.handle)
        assert (pd.handle, pd.imported, end.pd.imported) == (end.pd.handle, True, False)
        with (
            pd.reg_mr(bytearray(b"12345678"), ALL_ACCESS) as mr,
            pd.create_qp(QPInitAttr(end.cq, end.cq)) as qp,
        ):
            connect(end.qp, qp)
            target = end.memory(8)  # regions and queue pairs of either serve both
            assert run(end, end.qp, WROpcode.RDMA_READ, SGE(target), mr.addr, mr.rkey) is WCStatus.SUCCESS
            assert bytes(target.buf) == b"12345678"
        with pytest.raises(rnic.VerbsError, match=r"in use by .*PD") as caught:
            end.pd.close()
        assert caught.value.errno == errno.EBUSY
        pd.unimport()
    end.ctx.query_device()


def test_either_context_can_go_first() -> None:
    for first in (0, 1):
        contexts = [rnic.open_device("roce_lo")]
        contexts.append(rnic.import_device(contexts[0].cmd_fd))
        pds = [ctx.alloc_pd() for ctx in contexts]
        pds[first].close()
        contexts[first].close()
        with pds[1 - first].alloc_mr(64, ALL_ACCESS):
            pass
        pds[1 - first].close()
        contexts[1 - first].close()
        with pytest.raises(rnic.VerbsError, match="is closed"):
            _ = contexts[0].cmd_fd


def test_a_copy_of_the_descriptor_will_do(end: End) -> None:
    copy = os.dup(end.ctx.cmd_fd)
    with rnic.import_device(copy) as ctx:
        os.close(copy)
        with ctx.alloc_pd():
            pass


def test_any_region_can_be_imported(end: End) -> None:
    memory = bytearray(64)
    dm = end.ctx.alloc_dm(AllocDMAttr(64))
    kinds: list[Callable[[], rnic.MR]] = [
        lambda: end.pd.reg_mr(memory, ALL_ACCESS),
        lambda: end.pd.alloc_mr(64, ALL_ACCESS),
        lambda: end.pd.reg_dm_mr(dm, 0, 64, ALL_ACCESS | AccessFlags.ZERO_BASED),
        lambda: end.pd.alloc_null_mr(),
        lambda: end.pd.reg_mr_iova(memory, 5, ALL_ACCESS),
    ]
    with rnic.import_device(end.ctx.cmd_fd) as ctx, ctx.import_pd(end.pd.handle) as pd:
        for make in kinds:
            mr = make()
            twin = pd.import_mr(mr.handle)
            same = ("addr", "iova", "length", "lkey", "rkey", "handle")
            assert [getattr(twin, name) for name in same] == [getattr(mr, name) for name in same]
            with pytest.raises(rnic.VerbsError, match="in use by MR") as caught:
                mr.close()
            assert caught.value.errno == errno.EBUSY
            with pytest.raises(rnic.VerbsError, match=r"imported 1 times|cannot be re-registered"):
                mr.rereg(ReregMRFlags.CHANGE_ACCESS, access=1)
            twin.close()
            mr.close()
    dm.close()


def test_the_imported_region_keeps_the_buffer(end: End) -> None:
    memory = bytearray(b"keep me.")
    with end.pd.reg_mr(memory, ALL_ACCESS) as mr:
        twin = end.pd.import_mr(mr.handle)
        twin.buf[0] = ord("K")
        assert memory == b"Keep me."
        twin.close()
    mr = end.pd.reg_mr(memory, ALL_ACCESS)
    twin = end.pd.import_mr(mr.handle)
    del mr
    gc.collect()
    with pytest.raises(BufferError):
        memory.append(1)
    with pytest.warns(ResourceWarning, match="unclosed MR"):
        twin.close()
    memory.append(1)


def test_device_memory_is_imported_whole(end: End) -> None:
    with end.ctx.alloc_dm(AllocDMAttr(64)) as dm:
        twin = end.ctx.import_dm(dm.handle)
        twin.copy_to(0, b"abcd")
        assert (dm.copy_from(0, 4), len(twin), twin.handle) == (b"abcd", 64, dm.handle)
        with pytest.raises(rnic.VerbsError, match="in use by DM"):
            dm.close()
        twin.unimport()


@pytest.mark.roce
def test_events_find_their_object_whoever_asks(end: End) -> None:
    with rnic.import_device(end.ctx.cmd_fd) as ctx, End(ctx=ctx) as other, End() as far:
        connect(other.qp, far.qp)
        far.qp.post_send(SendWR(1, WROpcode.RDMA_WRITE, 0, [SGE(far.memory(8))], 0, 1))
        event = end.ctx.get_async_event(60)
        while event.event_type is EventType.COMM_EST:
            event.ack()
            event = end.ctx.get_async_event(60)
        assert (event.event_type, event.element) == (EventType.QP_ACCESS_ERR, other.qp)
        event.ack()
        far.wait(1)


def test_what_is_not_there_or_of_another_domain(end: End) -> None:
    with end.ctx.alloc_pd() as other, end.pd.alloc_mr(64, ALL_ACCESS) as mr:
        for call, number, words in (
            (lambda: end.ctx.import_pd(1), errno.ENOENT, "no protection domain with the handle 1"),
            (lambda: end.ctx.import_dm(1), errno.ENOENT, "no device memory with the handle 1"),
            (lambda: end.pd.import_mr(1), errno.ENOENT, "no memory region with the handle 1"),
            (lambda: other.import_mr(mr.handle), errno.EINVAL, "another protection domain"),
            (mr.unimport, errno.EINVAL, "was not imported"),
            (end.pd.unimport, errno.EINVAL, "was not imported"),
        ):
            with pytest.raises(rnic.VerbsError, match=words) as caught:
                call()
            assert caught.value.errno == number
        with end.ctx.alloc_parent_domain(ParentDomainInitAttr(end.pd)) as parent:
            parent.import_mr(mr.handle).close()
            assert parent.handle == end.pd.handle
            with end.ctx.import_pd(parent.handle) as pd:
                assert pd.pd is None


# -- from another process

OWNER = """
import array, os, socket, sys
import rnic
from rnic import *
from rnic.testing import ALL_ACCESS, loopback
way = socket.socket(fileno=int(sys.argv[1]))
def say(*numbers):
    way.send(repr(numbers).encode())
def hear():
    if not way.recv(100):
        sys.exit()
ctx = loopback().open()
pd = ctx.alloc_pd()
mr = pd.alloc_mr(20000, ALL_ACCESS)
plain = pd.reg_mr(bytearray(64), ALL_ACCESS)
dm = ctx.alloc_dm(AllocDMAttr(8192))
dmr = pd.reg_dm_mr(dm, 4, 5000, ALL_ACCESS | AccessFlags.ZERO_BASED)
other = ctx.alloc_pd()
mr.buf[:] = bytes(i * 7 & 255 for i in range(20000))
socket.send_fds(way, [b"fd"], [ctx.cmd_fd])
hear()
say(pd.handle, other.handle, mr.handle, plain.handle, dm.handle, dmr.handle,
    mr.lkey, mr.rkey, mr.addr, dmr.lkey, dmr.rkey)
"""


class Owner:
    """A process that has a context; its objects by their names."""

    def __init__(self, then: str) -> None:
        import socket

        self.way, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.way.settimeout(60)
        program = OWNER + textwrap.dedent(then)
        command = [sys.executable, "-W", "ignore", "-c", program, str(theirs.fileno())]
        self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        theirs.close()
        _, (self.cmd_fd,), _, _ = socket.recv_fds(self.way, 100, 1)
        names = ["pd", "other", "mr", "plain", "dm", "dmr", "lkey", "rkey", "addr", "dm_lkey", "dm_rkey"]
        self.way.send(b"go")
        self.handles = dict(zip(names, self.hear(), strict=True))

    def __getattr__(self, name: str) -> int:
        return self.handles[name]

    def hear(self) -> tuple[int, ...]:
        import ast

        found: tuple[int, ...] = ast.literal_eval(self.way.recv(1000).decode())
        return found

    def go_on(self) -> None:
        self.way.send(b"go")


@contextmanager
def owner(then: str = "hear()") -> Iterator[Owner]:
    made = Owner(then)
    try:
        yield made
    finally:
        made.way.close()
        os.close(made.cmd_fd)
        try:
            made.process.wait(60)
        finally:
            made.process.kill()


@contextmanager
def imported(who: Owner) -> Iterator[tuple[rnic.Context, rnic.PD, End, End]]:
    """The context, the domain, an end in it and one somewhere else, whose queue pairs are connected."""
    with ExitStack() as stack:
        ctx = stack.enter_context(rnic.import_device(who.cmd_fd))
        pd = stack.enter_context(ctx.import_pd(who.pd))
        here, far = stack.enter_context(End(ctx=ctx)), stack.enter_context(End())
        here.qp.close()
        here.qp = stack.enter_context(pd.create_qp(QPInitAttr(here.cq, here.cq)))
        connect(here.qp, far.qp, Options(timeout=14))
        yield ctx, pd, here, far


PATTERN = bytes(i * 7 & 255 for i in range(20000))


def test_memory_of_another_process_is_used_with_its_keys() -> None:
    with (
        owner("hear(); say(*mr.buf[100:104]); hear()") as who,
        imported(who) as (_ctx, pd, here, far),
        pd.import_mr(who.mr) as mr,
    ):
        assert (mr.lkey, mr.rkey, mr.iova, mr.length) == (who.lkey, who.rkey, who.addr, 20000)
        assert mr.access is None  # the owner knows
        assert bytes(mr.buf) == PATTERN
        target = far.memory(20000)
        # a peer of this process' queue pair, with the owner's key and address
        assert run(far, far.qp, WROpcode.RDMA_READ, SGE(target), who.addr, who.rkey) is WCStatus.SUCCESS
        assert bytes(target.buf) == PATTERN
        # this process' own work, with the owner's lkey
        target.buf[:] = bytes(20000)
        element = SGE(addr=who.addr + 5000, length=15000, lkey=who.lkey)
        assert run(here, here.qp, WROpcode.RDMA_WRITE, element, target.addr, target.rkey) is WCStatus.SUCCESS
        arrive(here)
        assert bytes(target.buf[:15000]) == PATTERN[5000:]
        # and the owner sees what is written
        target.buf[:4] = b"\1\2\3\4"
        assert (
            run(far, far.qp, WROpcode.RDMA_WRITE, SGE(target, 0, 4), who.addr + 100, who.rkey).name
            == "SUCCESS"
        )
        who.go_on()
        assert who.hear() == (1, 2, 3, 4)
        result = far.memory(8)
        status = run(far, far.qp, WROpcode.ATOMIC_FETCH_AND_ADD, SGE(result), who.addr + 8, who.rkey)
        assert status is WCStatus.SUCCESS
        part = mr.buf[4:8]
        with pytest.raises(rnic.VerbsError, match="still used"):
            mr.close()
        part.release()


def test_device_memory_of_another_process() -> None:
    with (
        owner("hear(); say(*dm.copy_from(0, 12)); hear()") as who,
        imported(who) as (ctx, pd, _here, far),
        ctx.import_dm(who.dm) as dm,
        pd.import_mr(who.dmr) as mr,
    ):
        assert (dm.length, mr.iova, mr.length, mr.rkey) == (8192, 0, 5000, who.dm_rkey)
        dm.copy_to(0, b"abcdefgh")
        source = far.memory(4)
        source.buf[:] = b"1234"
        assert run(far, far.qp, WROpcode.RDMA_WRITE, SGE(source), 4, mr.rkey) is WCStatus.SUCCESS
        arrive(far)
        assert dm.copy_from(4, 8) == b"efgh1234"
        who.go_on()
        assert bytes(who.hear()) == b"abcdefgh1234"
        with pd.reg_dm_mr(dm, 0, 8, ALL_ACCESS | AccessFlags.ZERO_BASED) as own:
            assert run(far, far.qp, WROpcode.RDMA_READ, SGE(source), 0, own.rkey) is WCStatus.SUCCESS
            assert bytes(source.buf) == b"abcd"


def test_what_cannot_be_shared_is_refused_in_words() -> None:
    with owner() as who, imported(who) as (ctx, pd, _, _):
        with ctx.import_pd(who.other) as other:
            for call, number, words in (
                (lambda: pd.import_mr(who.plain), errno.EOPNOTSUPP, "only memory of alloc_mr"),
                (lambda: ctx.import_pd(who.mr), errno.EOPNOTSUPP, "no protection domain"),
                (lambda: other.import_mr(who.mr), errno.EINVAL, "import that first"),
            ):
                with pytest.raises(rnic.VerbsError, match=words) as caught:
                    call()
                assert caught.value.errno == number
            with (
                ctx.alloc_pd() as mine,
                pytest.raises(rnic.VerbsError, match="import that first"),
            ):
                mine.import_mr(who.mr)
        with pd.import_mr(who.mr) as mr:
            with pytest.raises(rnic.VerbsError, match="in use by"):
                pd.close()
            with pytest.raises(rnic.VerbsError, match="import cannot be re-registered"):
                mr.rereg(ReregMRFlags.CHANGE_ACCESS, access=0)
            twin = pd.import_mr(who.mr)
            assert twin.addr == mr.addr
            twin.close()


@pytest.mark.roce
def test_when_the_owner_takes_it_back_work_fails() -> None:
    then = "hear(); mr.close(); dmr.close(); dm.close(); say(1); hear()"
    with (
        owner(then) as who,
        imported(who) as (ctx, pd, here, far),
        pd.import_mr(who.mr) as mr,
        ctx.import_dm(who.dm) as dm,
    ):
        source = far.memory(64)
        assert run(far, far.qp, WROpcode.RDMA_READ, SGE(source), who.addr, who.rkey) is WCStatus.SUCCESS
        who.go_on()
        who.hear()
        mr.buf[0] = 1  # still there, and of no consequence
        with pytest.raises(rnic.VerbsError, match="has freed it"):
            dm.copy_to(0, b"abcd")
        with pytest.raises(rnic.VerbsError, match="no memory region that another process could have"):
            pd.import_mr(who.dmr)
        assert run(here, here.qp, WROpcode.RDMA_WRITE, SGE(mr, 0, 8), 0, 0) is WCStatus.LOC_PROT_ERR
        far.ctx.query_device()
    with owner(then) as who, imported(who) as (_, pd, _, far), pd.import_mr(who.mr):
        who.go_on()
        who.hear()
        source = far.memory(64)
        status = run(far, far.qp, WROpcode.RDMA_WRITE, SGE(source), who.addr, who.rkey)
        assert status is WCStatus.REM_ACCESS_ERR


def test_the_memory_outlives_a_killed_owner() -> None:
    with owner() as who, imported(who) as (_, pd, _, far), pd.import_mr(who.mr) as mr:
        who.process.send_signal(signal.SIGKILL)
        who.process.wait(60)
        target = far.memory(20000)
        assert run(far, far.qp, WROpcode.RDMA_READ, SGE(target), who.addr, who.rkey) is WCStatus.SUCCESS
        assert bytes(target.buf) == PATTERN == bytes(mr.buf)


@pytest.mark.roce
def test_rights_are_the_owners() -> None:
    then = "hear(); mr.rereg(ReregMRFlags.CHANGE_ACCESS, access=AccessFlags.REMOTE_READ); say(1); hear()"
    with owner(then) as who, imported(who) as (_, pd, _, far):
        who.go_on()
        who.hear()
        with pd.import_mr(who.mr):
            source = far.memory(8)
            assert run(far, far.qp, WROpcode.RDMA_READ, SGE(source), who.addr, who.rkey) is WCStatus.SUCCESS
            status = run(far, far.qp, WROpcode.RDMA_WRITE, SGE(source), who.addr, who.rkey)
            assert status is WCStatus.REM_ACCESS_ERR


# -- descriptors that lie


@pytest.mark.parametrize("kind", ["closed", "negative", "pipe", "file", "memory", "sealed", "table"])
def test_descriptors_that_are_no_context(kind: str) -> None:
    fds = list(os.pipe())
    number = errno.EINVAL
    if kind in ("closed", "negative"):
        fd, number = (-1 if kind == "negative" else os.dup(0)), errno.EBADF
        if fd > 0:
            os.close(fd)
    elif kind == "pipe":
        fd = fds[0]
    else:
        fd = (
            os.open("/proc/self/exe", os.O_RDONLY)
            if kind == "file"
            else os.memfd_create("x", os.MFD_ALLOW_SEALING)
        )
        fds.append(fd)
    if kind in ("sealed", "table"):
        os.truncate(fd, TABLE if kind == "table" else 100)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    with pytest.raises(rnic.VerbsError) as caught:
        rnic.import_device(fd)
    assert (caught.value.errno, caught.value.verb) == (number, "import_device")
    for one in fds:
        os.close(one)


ODD = [
    0,
    1,
    3,
    4,
    64,
    PAGE - 1,
    PAGE,
    TABLE,
    TABLE + 4,
    2**31,
    2**32 - 1,
    2**47,
    2**63,
    2**64 - PAGE,
    2**64 - 1,
]
FIELDS = [*((at, "I") for at in range(8, 32, 4)), *((at, "Q") for at in (0, *range(32, 72, 8)))]


def lie(dice: random.Random, table: mmap.mmap, records: list[int]) -> None:
    """One number of one record is another."""
    offset, code = dice.choice(FIELDS)
    value = dice.choice(ODD) if dice.random() < 0.8 else dice.getrandbits(64)
    most = 2 ** (8 * struct.calcsize(code)) - 1
    struct.pack_into("<" + code, table, dice.choice(records) + offset, value & most)


def test_a_table_full_of_lies_harms_nobody() -> None:
    """Whatever the other process writes there: what is imported can be touched, or is refused in words."""
    dice = random.Random(int(os.environ.get("SEED", "1")))
    refusals = (errno.EINVAL, errno.EOPNOTSUPP, errno.EEXIST, errno.ENOMEM)
    seen = {"refused": 0, "imported": 0}
    with owner() as who, rnic.import_device(who.cmd_fd) as ctx, mmap.mmap(who.cmd_fd, TABLE) as table:
        places = {struct.unpack_from("<II", table, at + 8): at for at in range(RECORD, 20 * RECORD, RECORD)}
        records = [0, places[1, who.pd], places[2, who.mr], places[3, who.dm]]
        whole = table[: 20 * RECORD]
        for _ in range(3000 if os.environ.get("RNIC_SOAK") else 400):
            table[: 20 * RECORD] = whole
            for _ in range(dice.randrange(3)):
                lie(dice, table, records)
            with ExitStack() as stack, suppress(MemoryError, BufferError):
                try:
                    pd = stack.enter_context(ctx.import_pd(who.pd))
                    mr = stack.enter_context(pd.import_mr(who.mr))
                    sum(mr.buf[:: PAGE // 2])
                    dm = stack.enter_context(ctx.import_dm(who.dm))
                    dm.copy_from(0, dm.length)
                    seen["imported"] += 1
                except rnic.VerbsError as error:
                    seen["refused"] += error.errno in refusals
        assert min(seen.values()) > 20
        table[: 20 * RECORD] = whole


def test_the_file_cannot_be_shortened() -> None:
    with End() as end, pytest.raises(PermissionError):
        os.truncate(end.ctx.cmd_fd, PAGE)
