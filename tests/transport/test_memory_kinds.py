# SPDX-License-Identifier: Apache-2.0
"""Regions of every kind over sockets: what peers and the device itself reach, and what fails how."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import random
import signal
import struct
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import rnic
from rnic import (
    SGE,
    AccessFlags,
    AdviseMRAdvice,
    AdviseMRFlags,
    AHAttr,
    AllocDMAttr,
    Faults,
    ODPGeneralCap,
    ODPTransportCap,
    ParentDomainInitAttr,
    QPAttr,
    QPInitAttr,
    QPState,
    QPType,
    RecvWR,
    ReregMRFlags,
    SendFlags,
    SendWR,
    WCStatus,
    WROpcode,
)
from rnic.testing import ALL_ACCESS, End, Options, Pair, connect
from transport.scene import arrive

PAGE = mmap.PAGESIZE
UDMABUF, UDMABUF_CREATE = Path("/dev/udmabuf"), 0x40187542
RIGHTS = ALL_ACCESS & ~AccessFlags.REMOTE_ATOMIC
EVERYTHING = 2**64 - 1
SIGNALED_INLINE = SendFlags.SIGNALED | SendFlags.INLINE
SIZES = (1, 8, PAGE, 3 * PAGE + 5)


@pytest.fixture
def pair() -> Iterator[Pair]:
    with Pair() as made:
        yield made


def noise(n: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(n)


def do(end: End, opcode: WROpcode, sge: SGE | list[SGE], at: int = 0, rkey: int = 0, **more: int) -> WCStatus:
    """One operation; its status."""
    sges = sge if isinstance(sge, list) else [sge]
    end.qp.post_send(SendWR(1, opcode, SendFlags.SIGNALED, sges, at, rkey, **more))
    (wc,) = end.wait()
    if opcode is WROpcode.RDMA_WRITE and wc.ok:
        arrive(end)
    return wc.status


def write_then_read(pair: Pair, source: bytes, at: int, rkey: int) -> None:
    """WRITEs to (at, rkey) of b and READs it back, every byte."""
    with pair.a.pd.alloc_mr(2 * len(source), ALL_ACCESS) as mr:
        mr.buf[: len(source)] = source
        assert do(pair.a, WROpcode.RDMA_WRITE, SGE(mr, 0, len(source)), at, rkey) is WCStatus.SUCCESS
        assert do(pair.a, WROpcode.RDMA_READ, SGE(mr, len(source)), at, rkey) is WCStatus.SUCCESS
        assert bytes(mr.buf[len(source) :]) == source


def send_from(pair: Pair, sges: list[SGE], nbytes: int) -> bytes:
    """What arrives at b of a SEND out of these elements."""
    with pair.b.pd.alloc_mr(nbytes, ALL_ACCESS) as target:
        pair.b.qp.post_recv(RecvWR(7, [SGE(target)]))
        assert do(pair.a, WROpcode.SEND, sges) is WCStatus.SUCCESS
        (wc,) = pair.b.wait_ok()
        return bytes(target.buf[: wc.byte_len])


# -- other addresses


@pytest.mark.parametrize("iova", [0, 0x1234_5678_9000, 2**64 - 3 * PAGE, 3])
def test_work_requests_name_a_region_by_its_iova(pair: Pair, iova: int) -> None:
    memory = bytearray(2 * PAGE)
    with pair.b.pd.reg_mr_iova(memory, iova, ALL_ACCESS) as mr:
        assert mr.iova == iova
        assert mr.addr == ctypes.addressof(ctypes.c_char.from_buffer(memory))
        write_then_read(pair, noise(PAGE), iova + 5, mr.rkey)
        assert memory == bytes(5) + noise(PAGE) + bytes(PAGE - 5)
        mr.buf[:4] = b"look"
        assert memory[:4] == b"look"


def test_the_own_side_names_it_so_too(pair: Pair) -> None:
    memory = bytearray(noise(9000))
    with (
        pair.a.pd.reg_mr_iova(memory, 77, AccessFlags.LOCAL_WRITE) as mr,
        pair.b.pd.alloc_mr(9000, ALL_ACCESS) as there,
    ):
        assert SGE(mr, 10, 5).addr == 87
        assert send_from(pair, [SGE(mr, 0, 4000), SGE(mr, 6000)], 9000) == memory[:4000] + memory[6000:]
        there.buf[:] = noise(9000, 2)
        assert do(pair.a, WROpcode.RDMA_READ, SGE(mr), there.addr, there.rkey) is WCStatus.SUCCESS
        assert memory == noise(9000, 2)


@pytest.mark.roce
def test_an_iova_is_held_against_its_own_bounds(pair: Pair) -> None:
    with (
        pair.b.pd.reg_mr_iova(bytearray(64), 1000, ALL_ACCESS) as mr,
        pair.a.pd.alloc_mr(64, ALL_ACCESS) as source,
    ):
        assert do(pair.a, WROpcode.RDMA_WRITE, SGE(source), 1001, mr.rkey) is WCStatus.REM_ACCESS_ERR


@pytest.mark.roce
def test_atomics_ask_both_the_name_and_the_place_to_be_aligned() -> None:
    memory = mmap.mmap(-1, PAGE)
    for iova, offset, status in (
        (8, 0, WCStatus.SUCCESS),
        (8, 4, WCStatus.REM_INV_REQ_ERR),
        (4, 0, WCStatus.REM_INV_REQ_ERR),
        (4, 4, WCStatus.REM_INV_REQ_ERR),
    ):
        with (
            Pair() as pair,
            pair.a.pd.alloc_mr(8, ALL_ACCESS) as result,
            pair.b.pd.reg_mr_iova(memory, iova, ALL_ACCESS) as mr,
        ):
            found = do(
                pair.a, WROpcode.ATOMIC_FETCH_AND_ADD, SGE(result), iova + offset, mr.rkey, compare_add=1
            )
            assert found is status, (iova, offset)


def test_iova_that_cannot_be(pair: Pair) -> None:
    with pytest.raises(rnic.VerbsError, match="wraps around") as caught:
        pair.a.pd.reg_mr_iova(bytearray(64), 2**64 - 63)
    assert (caught.value.errno, caught.value.verb) == (errno.EINVAL, "reg_mr_iova")


# -- no memory at all


def test_a_null_region_gives_zeros_and_takes_anything(pair: Pair) -> None:
    with pair.a.pd.alloc_null_mr() as null, pair.b.pd.alloc_null_mr() as sink:
        assert (null.rkey, null.length, null.addr) == (0, EVERYTHING, 0)
        mine = pair.a.memory(100)
        mine.buf[:] = noise(100)
        sges = [SGE(mine, 0, 50), SGE(null, 12345, 5000), SGE(mine, 50)]
        assert send_from(pair, sges, 5100) == noise(100)[:50] + bytes(5000) + noise(100)[50:]
        there = pair.b.memory(10)
        pair.b.qp.post_recv(RecvWR(1, [SGE(sink, 0, 90), SGE(there)]))
        assert do(pair.a, WROpcode.SEND, SGE(mine)) is WCStatus.SUCCESS
        assert pair.b.wait_ok()[0].byte_len == 100
        assert bytes(there.buf) == noise(100)[90:]
        assert do(pair.a, WROpcode.RDMA_READ, [SGE(null, 0, 10)], there.addr, there.rkey) is WCStatus.SUCCESS
        with pytest.raises(BufferError, match="not this process' memory"):
            _ = null.buf
        with pytest.raises(rnic.VerbsError, match="null region cannot be re-registered"):
            null.rereg(ReregMRFlags.CHANGE_ACCESS)


@pytest.mark.roce
def test_a_null_region_is_not_for_peers(pair: Pair) -> None:
    with pair.b.pd.alloc_null_mr() as null:
        source = pair.a.memory(8)
        assert do(pair.a, WROpcode.RDMA_WRITE, SGE(source), 0, null.lkey) is WCStatus.REM_ACCESS_ERR


# -- device memory


def test_device_memory_is_copied_in_words(pair: Pair) -> None:
    with pair.a.ctx.alloc_dm(AllocDMAttr(4096, log_align_req=6)) as dm:
        assert (dm.length, len(dm)) == (4096, 4096)
        assert dm.copy_from(0, 4096) == bytes(4096)
        dm.copy_to(8, b"abcdefgh")
        assert dm.copy_from(4, 16) == b"\0\0\0\0abcdefgh\0\0\0\0"
        dm.copy_to(4096, b"")
        for offset, data in ((2, b"abcd"), (0, b"abc"), (4096, b"abcd"), (2**64 - 4, b"abcdefgh")):
            with pytest.raises(rnic.VerbsError, match=r"multiples of 4|has 4096") as caught:
                dm.copy_to(offset, data)
            assert (caught.value.errno, caught.value.verb) == (errno.EINVAL, "memcpy_to_dm")
            with pytest.raises(rnic.VerbsError, match=r"multiples of 4|has 4096") as caught:
                dm.copy_from(offset, len(data))
            assert (caught.value.errno, caught.value.verb) == (errno.EINVAL, "memcpy_from_dm")


def test_a_region_of_device_memory_begins_at_0(pair: Pair) -> None:
    flags = ALL_ACCESS | AccessFlags.ZERO_BASED
    with pair.b.ctx.alloc_dm(AllocDMAttr(4 * PAGE)) as dm, pair.b.pd.reg_dm_mr(dm, 8, 3 * PAGE, flags) as mr:
        assert (mr.addr, mr.iova, mr.length) == (0, 0, 3 * PAGE)
        write_then_read(pair, noise(2 * PAGE), 16, mr.rkey)
        assert dm.copy_from(24, 2 * PAGE) == noise(2 * PAGE)
        result = pair.a.memory(8)
        assert (
            do(pair.a, WROpcode.ATOMIC_FETCH_AND_ADD, SGE(result), 0, mr.rkey, compare_add=5)
            is WCStatus.SUCCESS
        )
        assert dm.copy_from(8, 8) == (5).to_bytes(8, "little")
        pair.b.qp.post_recv(RecvWR(1, [SGE(mr, 4, 100)]))
        source = pair.a.memory(100)
        source.buf[:] = noise(100, 3)
        assert do(pair.a, WROpcode.SEND, SGE(source)) is WCStatus.SUCCESS
        pair.b.wait_ok()
        assert dm.copy_from(12, 100) == noise(100, 3)
        with pytest.raises(rnic.VerbsError, match="in use by MR") as caught:
            dm.close()
        assert caught.value.errno == errno.EBUSY


def test_device_memory_that_cannot_be(pair: Pair) -> None:
    ctx, most = pair.a.ctx, pair.a.ctx.query_device_ex().max_dm_size
    assert most > 0
    for attr, number, words in (
        (AllocDMAttr(0), errno.EINVAL, "words of 4"),
        (AllocDMAttr(6), errno.EINVAL, "words of 4"),
        (AllocDMAttr(64, 13), errno.EINVAL, "log_align_req is 13"),
        (AllocDMAttr(most + 4), errno.ENOMEM, "left of max_dm_size"),
    ):
        with pytest.raises(rnic.VerbsError, match=words) as caught:
            ctx.alloc_dm(attr)
        assert caught.value.errno == number
    with ctx.alloc_dm(AllocDMAttr(most)) as dm:
        with pytest.raises(rnic.VerbsError, match="has 0 left"):
            ctx.alloc_dm(AllocDMAttr(4))
        for offset, length, access, words in (
            (0, 64, AccessFlags.LOCAL_WRITE, "ZERO_BASED as well"),
            (most - 4, 8, AccessFlags.ZERO_BASED, "8 bytes at offset"),
        ):
            with pytest.raises(rnic.VerbsError, match=words) as caught:
                pair.a.pd.reg_dm_mr(dm, offset, length, access)
            assert caught.value.errno == errno.EINVAL
        with pytest.raises(rnic.VerbsError, match="another device"):
            pair.b.pd.reg_dm_mr(dm, 0, 8, AccessFlags.ZERO_BASED)
    ctx.alloc_dm(AllocDMAttr(most)).close()


@pytest.mark.roce
def test_regions_without_bytes(pair: Pair) -> None:
    """They have keys, and nothing that a key could be used for."""
    a, b = pair.a, pair.b
    source = a.memory(8)
    with b.ctx.alloc_dm(AllocDMAttr(64)) as dm, a.pd.reg_mr(addr=PAGE, length=0, access=RIGHTS) as own:
        for mr in (
            b.pd.reg_dm_mr(dm, 0, 0, RIGHTS | AccessFlags.ZERO_BASED),
            b.pd.reg_mr(addr=0, length=0, access=RIGHTS),
            b.pd.reg_mr(addr=PAGE, length=0, access=RIGHTS | AccessFlags.ON_DEMAND),
        ):
            with mr:
                assert do(a, WROpcode.RDMA_WRITE, SGE(own, 0, 0), mr.iova, mr.rkey) is WCStatus.SUCCESS
        with b.pd.reg_mr(bytearray(8), RIGHTS) as mr:
            mr.rereg(ReregMRFlags.CHANGE_TRANSLATION, addr=PAGE, length=0)
            assert do(a, WROpcode.RDMA_WRITE, SGE(source), PAGE, mr.rkey) is WCStatus.REM_ACCESS_ERR
    for make in (lambda: b.pd.alloc_mr(0, RIGHTS), lambda: b.pd.reg_dmabuf_mr(0, 0, 0, 0, RIGHTS)):
        with pytest.raises(rnic.VerbsError, match="at least 1 byte"):
            make()


# -- descriptors


def test_the_memory_of_a_descriptor(pair: Pair) -> None:
    with os.fdopen(os.memfd_create("test"), "r+b") as file:
        file.truncate(4 * PAGE)
        with pair.b.pd.reg_dmabuf_mr(PAGE + 16, 2 * PAGE, 0x10010, file.fileno(), RIGHTS) as mr:
            assert mr.iova == 0x10010
            write_then_read(pair, noise(PAGE + 1), 0x10010 + 3, mr.rkey)
            file.seek(PAGE + 19)
            assert file.read(PAGE + 1) == noise(PAGE + 1)
            pair.b.qp.post_recv(RecvWR(1, [SGE(mr, 0, 50)]))
            source = pair.a.memory(50)
            source.buf[:] = noise(50, 4)
            assert do(pair.a, WROpcode.SEND, SGE(source)) is WCStatus.SUCCESS
            pair.b.wait_ok()
            assert os.pread(file.fileno(), 50, PAGE + 16) == noise(50, 4)
            with pytest.raises(BufferError):
                _ = mr.buf


def test_a_file_that_becomes_shorter_fails_the_request_not_the_process(pair: Pair) -> None:
    with os.fdopen(os.memfd_create("test"), "r+b") as file:
        file.truncate(2 * PAGE)
        with pair.b.pd.reg_dmabuf_mr(0, 2 * PAGE, 0, file.fileno(), RIGHTS) as mr:
            file.truncate(PAGE)
            source = pair.a.memory(2 * PAGE)
            assert do(pair.a, WROpcode.RDMA_WRITE, SGE(source, 0, PAGE), 0, mr.rkey) is WCStatus.SUCCESS
            assert do(pair.a, WROpcode.RDMA_READ, SGE(source), 0, mr.rkey) is WCStatus.REM_ACCESS_ERR


def test_descriptors_that_cannot_be_registered(pair: Pair) -> None:
    pd = pair.a.pd
    ours, theirs = os.pipe()
    memory, closed = os.memfd_create("test"), os.dup(0)
    os.truncate(memory, PAGE)
    readonly = os.open("/proc/self/exe", os.O_RDONLY)
    os.close(closed)
    for fd, offset, length, iova, access, number, words in (
        (ours, 0, PAGE, 0, RIGHTS, errno.ESPIPE, "is no memory"),
        (closed, 0, PAGE, 0, RIGHTS, errno.EBADF, "is no memory"),
        (memory, 0, PAGE + 1, 0, RIGHTS, errno.EINVAL, f"has {PAGE}"),
        (memory, 2**64 - PAGE, 2 * PAGE, 0, RIGHTS, errno.EINVAL, f"has {PAGE}"),
        (memory, 16, 100, 17, RIGHTS, errno.EINVAL, "different places of their pages"),
        (memory, 0, PAGE, 0, ALL_ACCESS, errno.EOPNOTSUPP, "REMOTE_ATOMIC"),
        (memory, 0, PAGE, 0, AccessFlags.ON_DEMAND, errno.EOPNOTSUPP, "not supported for this memory"),
        (memory, 0, PAGE, 0, AccessFlags.REMOTE_WRITE, errno.EINVAL, "need LOCAL_WRITE"),
        (readonly, 0, PAGE, 0, RIGHTS, errno.EACCES, "cannot be mapped for LOCAL_WRITE"),
    ):
        with pytest.raises(rnic.VerbsError, match=words) as caught:
            pd.reg_dmabuf_mr(offset, length, iova, fd, access)
        assert (caught.value.errno, caught.value.verb) == (number, "reg_dmabuf_mr")
    pd.reg_dmabuf_mr(0, 64, 0, readonly, AccessFlags.REMOTE_READ).close()
    for fd in (ours, theirs, memory, readonly):
        os.close(fd)


@pytest.mark.skipif(not UDMABUF.exists(), reason="no /dev/udmabuf here")
def test_a_dma_buf(pair: Pair) -> None:
    memory = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.truncate(memory, 2 * PAGE)
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    create = bytearray(struct.pack("IIQQ", memory, 1, 0, 2 * PAGE))
    with UDMABUF.open("r+b", buffering=0) as device:
        fd = fcntl.ioctl(device, UDMABUF_CREATE, create)
    with pair.b.pd.reg_dmabuf_mr(0, 2 * PAGE, 0, fd, RIGHTS) as mr:
        write_then_read(pair, noise(PAGE), 100, mr.rkey)
    assert os.pread(memory, PAGE, 100) == noise(PAGE)
    os.close(memory)
    os.close(fd)


# -- on demand


class Sparse:
    """An address range of which a part may be unmapped, with ctypes."""

    def __init__(self, pages: int = 4) -> None:
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.libc.mmap.restype = ctypes.c_void_p
        self.libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        self.libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self.libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        self.pages = pages
        self.addr: int = self.libc.mmap(None, pages * PAGE, 3, 0x22, -1, 0)

    def unmap(self, page: int) -> None:
        assert self.libc.munmap(self.addr + page * PAGE, PAGE) == 0

    def protect(self, page: int, prot: int) -> None:
        assert self.libc.mprotect(self.addr + page * PAGE, PAGE, prot) == 0

    def bytes(self, at: int, n: int) -> bytes:
        return ctypes.string_at(self.addr + at, n)

    def close(self) -> None:
        self.libc.munmap(self.addr, self.pages * PAGE)


@pytest.fixture
def sparse() -> Iterator[Sparse]:
    made = Sparse()
    yield made
    made.close()


@pytest.fixture(params=["explicit", "implicit"])
def regions(pair: Pair, sparse: Sparse, request: pytest.FixtureRequest) -> Iterator[tuple[rnic.MR, rnic.MR]]:
    """Both ends' regions ON_DEMAND over the same memory of this process."""
    flags = RIGHTS | AccessFlags.REMOTE_ATOMIC | AccessFlags.ON_DEMAND
    addr, length = (sparse.addr, 4 * PAGE) if request.param == "explicit" else (0, EVERYTHING)
    with (
        pair.a.pd.reg_mr(addr=addr, length=length, access=flags) as a,
        pair.b.pd.reg_mr(addr=addr, length=length, access=flags) as b,
    ):
        yield a, b


Regions = tuple[rnic.MR, rnic.MR]


def piece(mr: rnic.MR, addr: int, n: int) -> SGE:
    return SGE(addr=addr, length=n, lkey=mr.lkey)


@pytest.mark.parametrize("size", SIZES)
def test_on_demand_memory_is_read_and_written(
    pair: Pair, sparse: Sparse, regions: Regions, size: int
) -> None:
    a, b = regions
    write_then_read(pair, noise(size), sparse.addr + 9, b.rkey)
    assert sparse.bytes(9, size) == noise(size)
    assert send_from(pair, [piece(a, sparse.addr + 9, size)], size) == noise(size)
    there = pair.b.memory(size)
    there.buf[:] = noise(size, 2)
    assert (
        do(pair.a, WROpcode.RDMA_READ, piece(a, sparse.addr, size), there.addr, there.rkey)
        is WCStatus.SUCCESS
    )
    assert sparse.bytes(0, size) == noise(size, 2)


def test_inline_data_lie_in_on_demand_memory(pair: Pair, sparse: Sparse, regions: Regions) -> None:
    source, there = regions[0], pair.b.memory(32)
    ctypes.memmove(sparse.addr + 9, noise(32), 32)
    sges = [SGE(source, sparse.addr + 9 - source.iova, 32)]
    wr = SendWR(1, WROpcode.RDMA_WRITE, SIGNALED_INLINE, sges, there.addr, there.rkey)
    for _ in range(2):  # a request that was posted before may take another way
        there.buf[:] = bytes(32)
        pair.a.qp.post_send(wr)
        pair.a.wait_ok()
        arrive(pair.a)
        assert bytes(there.buf) == noise(32)


@pytest.mark.roce
@pytest.mark.parametrize("opcode", [WROpcode.RDMA_WRITE, WROpcode.RDMA_READ])
def test_a_peer_that_meets_a_missing_page_has_an_access_error(
    pair: Pair, sparse: Sparse, regions: Regions, opcode: WROpcode
) -> None:
    sparse.unmap(2)
    source = pair.a.memory(2 * PAGE)
    assert do(pair.a, opcode, SGE(source, 0, PAGE), sparse.addr + PAGE, regions[1].rkey) is WCStatus.SUCCESS
    at = sparse.addr + PAGE + 1
    assert do(pair.a, opcode, SGE(source, 0, PAGE), at, regions[1].rkey) is WCStatus.REM_ACCESS_ERR


WORDS = [WROpcode.ATOMIC_FETCH_AND_ADD, WROpcode.ATOMIC_CMP_AND_SWP, WROpcode.ATOMIC_WRITE]


def change(pair: Pair, opcode: WROpcode, addr: int, rkey: int, value: int, compare: int = 0) -> WCStatus:
    """An operation on a word of the peer's, by a queue pair that has one in hand at most."""
    source = pair.a.memory(8)
    source.buf[:] = value.to_bytes(8, sys.byteorder)
    adds = opcode is WROpcode.ATOMIC_FETCH_AND_ADD
    words = {"compare_add": value if adds else compare, "swap": value}
    more = {} if opcode is WROpcode.ATOMIC_WRITE else words
    wr = SendWR(1, opcode, SendFlags.SIGNALED, [SGE(source)], addr, rkey, **more)
    pair.a.qp.post_send(wr)
    (wc,) = pair.a.wait()
    return wc.status


@pytest.mark.roce
@pytest.mark.parametrize("opcode", WORDS)
def test_words_of_on_demand_memory_are_changed_at_once(
    pair: Pair, sparse: Sparse, regions: Regions, opcode: WROpcode
) -> None:
    at = sparse.addr + PAGE
    assert change(pair, opcode, at, regions[1].rkey, 2**40 + 5) is WCStatus.SUCCESS
    assert sparse.bytes(PAGE, 8) == (2**40 + 5).to_bytes(8, sys.byteorder)
    assert sparse.bytes(PAGE + 8, 8) == bytes(8)


@pytest.mark.roce
@pytest.mark.parametrize("opcode", WORDS)
def test_a_word_that_is_missing_or_may_not_be_written(
    pair: Pair, sparse: Sparse, regions: Regions, opcode: WROpcode
) -> None:
    before = signal.getsignal(signal.SIGSEGV)
    sparse.protect(1, 1)
    assert change(pair, opcode, sparse.addr + PAGE, regions[1].rkey, 1) is WCStatus.REM_ACCESS_ERR
    assert sparse.bytes(PAGE, 8) == bytes(8)
    assert signal.getsignal(signal.SIGSEGV) is before


@pytest.mark.roce
def test_memory_that_may_not_be_written(pair: Pair, sparse: Sparse, regions: Regions) -> None:
    sparse.protect(1, 1)
    source = pair.a.memory(8)
    at = sparse.addr + PAGE
    assert do(pair.a, WROpcode.RDMA_READ, SGE(source), at, regions[1].rkey) is WCStatus.SUCCESS
    assert do(pair.a, WROpcode.RDMA_WRITE, SGE(source), at, regions[1].rkey) is WCStatus.REM_ACCESS_ERR
    assert sparse.bytes(PAGE, 8) == bytes(8)


@pytest.mark.parametrize("opcode", [WROpcode.SEND, WROpcode.RDMA_WRITE, WROpcode.RDMA_READ])
def test_a_missing_page_of_ones_own_is_a_protection_error(
    pair: Pair, sparse: Sparse, regions: Regions, opcode: WROpcode
) -> None:
    sparse.unmap(1)
    there = pair.b.memory(100)
    pair.b.qp.post_recv(RecvWR(1, [SGE(there)]))
    status = do(pair.a, opcode, piece(regions[0], sparse.addr + PAGE - 50, 100), there.addr, there.rkey)
    assert status is WCStatus.LOC_PROT_ERR


@pytest.mark.roce
def test_a_receive_into_a_missing_page(pair: Pair, sparse: Sparse, regions: Regions) -> None:
    sparse.unmap(3)
    source = pair.a.memory(100)
    pair.b.qp.post_recv(RecvWR(1, [piece(regions[1], sparse.addr + 4 * PAGE - 100, 100)]))
    assert do(pair.a, WROpcode.SEND, SGE(source)) is WCStatus.REM_OP_ERR
    (wc,) = pair.b.wait()
    assert wc.status is WCStatus.LOC_PROT_ERR
    assert "not mapped" in wc.explain()


def test_inline_data_lie_where_a_region_becomes_everything(pair: Pair, sparse: Sparse) -> None:
    there = pair.b.memory(32)
    ctypes.memmove(sparse.addr, noise(32), 32)
    with pair.a.pd.reg_mr(addr=sparse.addr, length=PAGE, access=RIGHTS | AccessFlags.ON_DEMAND) as mr:
        mr.rereg(ReregMRFlags.CHANGE_TRANSLATION, addr=0, length=EVERYTHING)
        sges = [SGE(mr, sparse.addr, 32)]
        pair.a.qp.post_send(SendWR(1, WROpcode.RDMA_WRITE, SIGNALED_INLINE, sges, there.addr, there.rkey))
        pair.a.wait_ok()
        arrive(pair.a)
    assert bytes(there.buf) == noise(32)


def test_a_null_region_has_no_inline_data(pair: Pair) -> None:
    there = pair.b.memory(32)
    with pair.a.pd.alloc_null_mr() as mr:
        wr = SendWR(1, WROpcode.RDMA_WRITE, SIGNALED_INLINE, [SGE(mr, 0, 32)], there.addr, there.rkey)
        with pytest.raises(rnic.VerbsError, match="has none"):
            pair.a.qp.post_send(wr)


def test_a_page_that_comes_back_is_of_use_again(pair: Pair, sparse: Sparse, regions: Regions) -> None:
    sparse.unmap(0)
    assert sparse.libc.mmap(sparse.addr, PAGE, 3, 0x32, -1, 0) == sparse.addr
    write_then_read(pair, noise(100), sparse.addr, regions[1].rkey)


@pytest.mark.roce
def test_unreliable_writes_to_missing_pages_are_dropped(sparse: Sparse) -> None:
    with End() as a, End() as b:
        qps = [end.pd.create_qp(QPInitAttr(end.cq, end.cq, QPType.UC)) for end in (a, b)]
        connect(qps[0], qps[1], Options())
        sparse.unmap(1)
        flags = RIGHTS | AccessFlags.ON_DEMAND
        with b.pd.reg_mr(addr=sparse.addr, length=4 * PAGE, access=flags) as mr:
            source = a.memory(8)
            source.buf[:] = b"12345678"
            for at in (PAGE, 0):
                wr = SendWR(
                    1, WROpcode.RDMA_WRITE, SendFlags.SIGNALED, [SGE(source)], sparse.addr + at, mr.rkey
                )
                qps[0].post_send(wr)
                a.wait_ok()
            while sparse.bytes(0, 8) != b"12345678":
                b.cq.poll()
            assert b.ctx.counters().drop_access == 1
        for qp in qps:
            qp.close()


def test_what_cannot_be_on_demand(pair: Pair) -> None:
    flags = AccessFlags.LOCAL_WRITE | AccessFlags.ON_DEMAND
    for arguments, number, words in (
        ({"addr": PAGE, "length": EVERYTHING, "access": flags}, errno.EINVAL, "wraps around"),
        ({"buffer": bytearray(8), "access": flags, "lock": True}, errno.EINVAL, "choose one"),
        ({"addr": 0, "length": EVERYTHING, "access": 1}, errno.EINVAL, "wraps around"),
    ):
        with pytest.raises(rnic.VerbsError, match=words) as caught:
            pair.a.pd.reg_mr(**arguments)  # type: ignore[arg-type]
        assert caught.value.errno == number


@pytest.mark.roce
def test_the_capabilities_say_what_can(pair: Pair) -> None:
    caps = pair.a.ctx.query_device_ex().odp_caps
    assert caps.general_caps == ODPGeneralCap.SUPPORT | ODPGeneralCap.SUPPORT_IMPLICIT
    assert caps.rc_odp_caps == ~ODPTransportCap(0)
    assert ODPTransportCap.READ not in caps.uc_odp_caps
    assert caps.ud_odp_caps == ODPTransportCap.SEND | ODPTransportCap.RECV | ODPTransportCap.SRQ_RECV
    assert pair.a.ctx.query_device_ex().orig_attr == pair.a.ctx.query_device()


def test_advice_brings_pages_in(pair: Pair, sparse: Sparse, regions: Regions) -> None:
    advise, mr = pair.a.pd.advise_mr, regions[0]
    for advice in AdviseMRAdvice:
        advise(advice, AdviseMRFlags.FLUSH, [piece(mr, sparse.addr, PAGE), piece(mr, sparse.addr + PAGE, 5)])
    sparse.unmap(2)
    missing = [piece(mr, sparse.addr + 2 * PAGE, 8)]
    advise(AdviseMRAdvice.PREFETCH, 0, missing)
    with pytest.raises(rnic.VerbsError, match="not mapped") as caught:
        advise(AdviseMRAdvice.PREFETCH, AdviseMRFlags.FLUSH, missing)
    assert caught.value.errno == errno.EFAULT


def test_advice_that_is_wrong(pair: Pair, sparse: Sparse) -> None:
    pd = pair.a.pd
    with (
        pair.a.ctx.alloc_pd() as other,
        pd.reg_mr(addr=sparse.addr, length=PAGE, access=AccessFlags.ON_DEMAND) as mr,
        other.reg_mr(addr=sparse.addr, length=PAGE, access=AccessFlags.ON_DEMAND) as foreign,
    ):
        plain = pair.a.memory(64)
        advice = AdviseMRAdvice.PREFETCH
        for what, flags, sges, number in (
            (advice, 0, [SGE(addr=0, length=1, lkey=1)], errno.ENOENT),
            (advice, 0, [SGE(plain)], errno.EINVAL),
            (advice, 0, [SGE(foreign)], errno.EPERM),
            (AdviseMRAdvice.PREFETCH_WRITE, 0, [SGE(mr)], errno.EPERM),
            (advice, 0, [SGE(mr), piece(mr, sparse.addr + 1, PAGE)], errno.EFAULT),
            (advice, 2, [SGE(mr)], errno.EINVAL),
            (advice, 0, [], errno.EINVAL),
            (9, 0, [SGE(mr)], errno.EOPNOTSUPP),
        ):
            with pytest.raises(rnic.VerbsError) as caught:
                pd.advise_mr(what, flags, sges)
            assert (caught.value.errno, caught.value.verb) == (number, "advise_mr")


# -- re-registration


@pytest.mark.roce
def test_a_region_moves_to_other_memory_under_the_same_key(pair: Pair) -> None:
    old, new = bytearray(64), bytearray(2 * PAGE)
    with pair.b.pd.reg_mr(old, ALL_ACCESS) as mr:
        keys, was = (mr.lkey, mr.rkey), mr.addr
        mr.rereg(ReregMRFlags.CHANGE_TRANSLATION, buffer=new)
        assert (mr.lkey, mr.rkey) == keys
        assert (mr.length, mr.addr) == (2 * PAGE, ctypes.addressof(ctypes.c_char.from_buffer(new)))
        old.clear()  # it is let go
        write_then_read(pair, noise(PAGE), mr.addr, mr.rkey)
        assert new[:PAGE] == noise(PAGE)
        source = pair.a.memory(8)
        if not mr.addr <= was < mr.addr + len(new):
            assert do(pair.a, WROpcode.RDMA_WRITE, SGE(source), was, mr.rkey) is WCStatus.REM_ACCESS_ERR
    with pytest.raises(BufferError):
        raise BufferError if len(new) else AssertionError
    new.clear()


def test_a_region_moves_to_an_address(pair: Pair, sparse: Sparse) -> None:
    memory = bytearray(64)
    with pair.b.pd.reg_mr(memory, ALL_ACCESS) as mr:
        mr.rereg(ReregMRFlags.CHANGE_TRANSLATION, addr=sparse.addr, length=PAGE)
        memory.clear()
        write_then_read(pair, noise(PAGE), sparse.addr, mr.rkey)
        assert sparse.bytes(0, PAGE) == noise(PAGE)


@pytest.mark.roce
def test_rights_change(pair: Pair) -> None:
    mr, source = pair.b.memory(64), pair.a.memory(64)
    mr.rereg(ReregMRFlags.CHANGE_ACCESS, access=AccessFlags.REMOTE_READ)
    assert do(pair.a, WROpcode.RDMA_READ, SGE(source), mr.addr, mr.rkey) is WCStatus.SUCCESS
    mr.rereg(ReregMRFlags.CHANGE_ACCESS, access=ALL_ACCESS)
    assert do(pair.a, WROpcode.RDMA_WRITE, SGE(source), mr.addr, mr.rkey) is WCStatus.SUCCESS
    mr.rereg(ReregMRFlags.CHANGE_ACCESS, access=AccessFlags.REMOTE_READ)
    assert do(pair.a, WROpcode.RDMA_WRITE, SGE(source), mr.addr, mr.rkey) is WCStatus.REM_ACCESS_ERR


@pytest.mark.roce
def test_the_protection_domain_changes(pair: Pair) -> None:
    source = pair.a.memory(64)
    with pair.b.ctx.alloc_pd() as other, other.reg_mr(bytearray(64), ALL_ACCESS) as mr:
        mr.rereg(ReregMRFlags.CHANGE_PD, pair.b.pd)
        assert mr.pd is pair.b.pd
        other.close()
        assert do(pair.a, WROpcode.RDMA_WRITE, SGE(source), mr.addr, mr.rkey) is WCStatus.SUCCESS
        with pytest.raises(rnic.VerbsError, match=r"in use by .*MR"):
            pair.b.pd.close()
    with pair.b.ctx.alloc_pd() as other, pair.b.pd.reg_mr(bytearray(64), ALL_ACCESS) as mr:
        mr.rereg(ReregMRFlags.CHANGE_PD, other)
        assert do(pair.a, WROpcode.RDMA_WRITE, SGE(source), mr.addr, mr.rkey) is WCStatus.REM_ACCESS_ERR


@pytest.mark.roce
def test_a_region_becomes_on_demand_and_back(pair: Pair, sparse: Sparse) -> None:
    with pair.b.pd.reg_mr(addr=sparse.addr, length=4 * PAGE, access=RIGHTS) as mr:
        mr.rereg(ReregMRFlags.CHANGE_ACCESS, access=RIGHTS | AccessFlags.ON_DEMAND)
        sparse.unmap(3)
        write_then_read(pair, noise(PAGE), sparse.addr, mr.rkey)
        with pytest.raises(rnic.VerbsError, match="not mapped"):
            mr.rereg(ReregMRFlags.CHANGE_ACCESS, access=RIGHTS)
        source = pair.a.memory(8)
        at = sparse.addr + 3 * PAGE
        assert do(pair.a, WROpcode.RDMA_WRITE, SGE(source), at, mr.rkey) is WCStatus.REM_ACCESS_ERR


def test_a_change_that_fails_changes_nothing(pair: Pair, sparse: Sparse) -> None:
    flags, memory = ReregMRFlags, bytearray(64)
    sparse.unmap(1)
    with (
        pair.b.pd.reg_mr(memory, ALL_ACCESS) as mr,
        pair.b.pd.reg_mr(b"readonly", AccessFlags.REMOTE_READ) as readonly,
        pair.b.pd.alloc_mr(64, ALL_ACCESS) as own,
        pair.a.ctx.alloc_pd() as elsewhere,
    ):
        where = {"addr": sparse.addr, "length": 2 * PAGE}
        new = bytearray(8)
        for region, which, arguments, number, words in (
            (mr, 0, {}, errno.EINVAL, "what can change"),
            (mr, 8, {}, errno.EINVAL, "what can change"),
            (mr, flags.CHANGE_TRANSLATION, where, errno.EFAULT, "not mapped"),
            (mr, 3, {"pd": elsewhere, "buffer": new}, errno.EINVAL, "own device"),
            (mr, flags.CHANGE_PD, {}, errno.EINVAL, "needs a protection domain"),
            (mr, 5, {"buffer": new, "access": AccessFlags.REMOTE_WRITE}, errno.EINVAL, "need LOCAL_WRITE"),
            (mr, 4, {"access": 1 << 30}, errno.EOPNOTSUPP, "not supported"),
            (mr, flags.CHANGE_TRANSLATION, {"buffer": b"const"}, errno.EINVAL, "is read-only"),
            (readonly, flags.CHANGE_ACCESS, {"access": ALL_ACCESS}, errno.EINVAL, "read-only"),
            (own, flags.CHANGE_TRANSLATION, {"buffer": new}, errno.EINVAL, "not given by an address"),
        ):
            with pytest.raises(rnic.VerbsError, match=words) as caught:
                region.rereg(which, **arguments)  # type: ignore[arg-type]
            assert caught.value.errno == number
            new.append(1)  # nothing holds it
        with pytest.raises(BufferError):
            memory.clear()
        write_then_read(pair, noise(64), mr.addr, mr.rkey)
        assert bytes(memory) == noise(64)
        part = mr.buf[2:4]
        with pytest.raises(rnic.VerbsError, match="still used") as caught:
            mr.rereg(flags.CHANGE_TRANSLATION, buffer=new)
        assert caught.value.errno == errno.EBUSY
        part.release()
        for arguments in ({"buffer": new}, {"addr": 1, "length": 1}):
            with pytest.raises(TypeError, match="CHANGE_TRANSLATION"):
                mr.rereg(flags.CHANGE_ACCESS, **arguments)  # type: ignore[arg-type]


def test_reregistration_under_load_serves_the_old_or_the_new_and_nothing_else(pair: Pair) -> None:
    memories = [bytearray(b"\1" * 64), bytearray(b"\2" * 64)]
    target = pair.a.memory(64)
    with pair.b.pd.reg_mr(memories[0], ALL_ACCESS) as mr:
        for turn in range(200):
            read = SendWR(1, WROpcode.RDMA_READ, SendFlags.SIGNALED, [SGE(target)], mr.addr, mr.rkey)
            pair.a.qp.post_send(read)
            if pair.a.wait()[0].status is not WCStatus.SUCCESS:
                raise AssertionError(turn)
            assert bytes(target.buf) == bytes(memories[turn % 2])
            mr.rereg(ReregMRFlags.CHANGE_TRANSLATION, buffer=memories[(turn + 1) % 2])


# -- domains


def test_a_parent_domain_stands_for_its_protection_domain() -> None:
    with End() as a, End() as b:
        td = b.ctx.alloc_td()
        parent = b.ctx.alloc_parent_domain(ParentDomainInitAttr(b.pd, td))
        assert (parent.pd, parent.td, b.pd.pd) == (b.pd, td, None)
        qp = parent.create_qp(QPInitAttr(b.cq, b.cq))
        connect(a.qp, qp)
        source = a.memory(64)
        source.buf[:] = noise(64)
        for domain in (parent, b.pd):
            with domain.alloc_mr(64, ALL_ACCESS) as mr:
                assert do(a, WROpcode.RDMA_WRITE, SGE(source), mr.addr, mr.rkey) is WCStatus.SUCCESS
                assert bytes(mr.buf) == noise(64)
                qp.post_recv(RecvWR(1, [SGE(mr)]))
                assert do(a, WROpcode.SEND, SGE(source)) is WCStatus.SUCCESS
                b.wait_ok()
        for thing, words in ((parent, "in use by QP"), (td, "in use by PD"), (b.pd, "in use by .*PD")):
            with pytest.raises(rnic.VerbsError, match=words) as caught:
                thing.close()
            assert caught.value.errno == errno.EBUSY
        for thing in (qp, parent, td):
            thing.close()


def test_parent_domains_that_cannot_be() -> None:
    with End() as a, End() as b, a.ctx.alloc_td() as td:
        with a.ctx.alloc_parent_domain(ParentDomainInitAttr(a.pd)) as parent:
            with pytest.raises(rnic.VerbsError, match="not of another parent") as caught:
                a.ctx.alloc_parent_domain(ParentDomainInitAttr(parent))
            assert caught.value.errno == errno.EINVAL
        with pytest.raises(rnic.VerbsError, match="another device"):
            b.ctx.alloc_parent_domain(ParentDomainInitAttr(b.pd, td))
        with pytest.raises(rnic.VerbsError, match="allocators") as caught:
            a.ctx.alloc_parent_domain(ParentDomainInitAttr(a.pd, alloc=bytearray))
        assert caught.value.errno == errno.EOPNOTSUPP


def test_the_hints_change_nothing(pair: Pair) -> None:
    hints = AccessFlags.RELAXED_ORDERING | AccessFlags.HUGETLB
    with pair.b.pd.alloc_mr(PAGE, ALL_ACCESS | hints) as mr:
        write_then_read(pair, noise(PAGE), mr.addr, mr.rkey)


@pytest.mark.parametrize("right", [AccessFlags.REMOTE_WRITE, AccessFlags.REMOTE_ATOMIC])
def test_rights_to_change_memory_need_local_write(pair: Pair, right: AccessFlags) -> None:
    pd = pair.a.pd
    for call in (
        lambda: pd.reg_mr(bytearray(8), right),
        lambda: pd.alloc_mr(8, right),
        lambda: pd.reg_mr_iova(bytearray(8), 0, right),
        lambda: pd.reg_mr(bytearray(8), right, lock=True),
    ):
        with pytest.raises(rnic.VerbsError, match="need LOCAL_WRITE") as caught:
            call()
        assert caught.value.errno == errno.EINVAL


# -- every kind, under way


@contextmanager
def region(end: End, kind: str) -> Iterator[tuple[rnic.MR, int]]:
    """A region of that kind, 256 KiB, for peers; and what they name its first byte."""
    nbytes, flags = 1 << 18, RIGHTS
    with ExitStack() as stack:
        enter = stack.enter_context
        if kind == "device memory":
            dm = enter(end.ctx.alloc_dm(AllocDMAttr(nbytes)))
            yield enter(end.pd.reg_dm_mr(dm, 0, nbytes, flags | AccessFlags.ZERO_BASED)), 0
        elif kind == "descriptor":
            fd = os.memfd_create("test")
            stack.callback(os.close, fd)
            os.truncate(fd, nbytes)
            yield enter(end.pd.reg_dmabuf_mr(0, nbytes, 0, fd, flags)), 0
        elif kind == "iova":
            yield enter(end.pd.reg_mr_iova(bytearray(nbytes), 3, flags)), 3
        elif kind == "imported":
            ctx = enter(rnic.import_device(end.ctx.cmd_fd))
            pd = enter(ctx.import_pd(end.pd.handle))
            mr = enter(pd.import_mr(enter(end.pd.alloc_mr(nbytes, flags)).handle))
            yield mr, mr.iova
        else:
            more = AccessFlags.ON_DEMAND if kind == "on demand" else AccessFlags(0)
            mr = enter(end.pd.reg_mr(bytearray(nbytes), flags | more, lock=kind == "locked"))
            yield mr, mr.addr


KINDS = ("on demand", "device memory", "descriptor", "iova", "imported", "locked")


@pytest.mark.roce
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_survives_a_bad_wire(kind: str) -> None:
    options = Options(timeout=12, retry_cnt=7)
    with Pair(options=options) as pair, region(pair.b, kind) as (mr, at):
        faults = Faults(seed=5, loss=0.05, duplicate=0.05, reorder=0.05)
        pair.a.ctx.set_faults(faults)
        pair.b.ctx.set_faults(faults)
        write_then_read(pair, noise(200_001), at + 7, mr.rkey)


@pytest.mark.parametrize("kind", KINDS)
def test_closing_under_load_fails_the_work_and_nothing_else(kind: str) -> None:
    """close() frees the bytes at once: nobody may touch them any more."""
    for _ in range(5):
        with Pair() as pair:
            source = pair.a.memory(1 << 18)
            with region(pair.b, kind) as (mr, at):
                key = mr.rkey
                for opcode in (WROpcode.RDMA_WRITE, WROpcode.RDMA_READ) * 8:
                    pair.a.qp.post_send(SendWR(1, opcode, SendFlags.SIGNALED, [SGE(source)], at, key))
            statuses = {wc.status for wc in pair.a.wait(16)}
            assert statuses <= {WCStatus.SUCCESS, WCStatus.REM_ACCESS_ERR, WCStatus.WR_FLUSH_ERR}


def datagram_pair(stack: ExitStack, srq: bool = False) -> tuple[End, End, rnic.QP, rnic.QP, rnic.AH]:
    """Two UD queue pairs, and the way from the first to the second; that one may take from a shared queue."""
    a, b = (stack.enter_context(End()) for _ in range(2))
    shared = stack.enter_context(b.pd.create_srq()) if srq else None
    qps = [
        stack.enter_context(end.pd.create_qp(QPInitAttr(end.cq, end.cq, QPType.UD, srq=theirs)))
        for end, theirs in ((a, None), (b, shared))
    ]
    for qp in qps:
        qp.modify(QPAttr(qp_state=QPState.INIT, pkey_index=0, port_num=1, qkey=7))
        qp.modify(QPAttr(qp_state=QPState.RTR))
        qp.modify(QPAttr(qp_state=QPState.RTS, sq_psn=0))
    ah = stack.enter_context(a.pd.create_ah(AHAttr(dgid=b.ctx.query_gid(1, 0))))
    return a, b, qps[0], qps[1], ah


@pytest.mark.roce
def test_datagrams_use_on_demand_memory(sparse: Sparse) -> None:
    flags = AccessFlags.LOCAL_WRITE | AccessFlags.ON_DEMAND
    with ExitStack() as stack:
        a, b, ours, theirs, ah = datagram_pair(stack, srq=True)
        where = {"addr": sparse.addr, "length": 4 * PAGE, "access": flags}
        here, there = (stack.enter_context(end.pd.reg_mr(**where)) for end in (a, b))
        ctypes.memmove(sparse.addr, noise(100), 100)

        def send(at: int) -> WCStatus:
            sges = [piece(here, sparse.addr + at, 100)]
            more = {"ah": ah, "remote_qpn": theirs.qp_num, "remote_qkey": 7}
            ours.post_send(SendWR(1, WROpcode.SEND, SendFlags.SIGNALED, sges, **more))  # type: ignore[arg-type]
            return a.wait()[0].status

        assert theirs.srq is not None
        for page in (1, 2):
            theirs.srq.post_recv(RecvWR(page, [piece(there, sparse.addr + page * PAGE, 140)]))
        assert send(0) is WCStatus.SUCCESS
        b.wait_ok()
        assert sparse.bytes(PAGE + 40, 100) == noise(100)
        sparse.unmap(2)
        assert send(0) is WCStatus.SUCCESS
        assert b.wait()[0].status is WCStatus.LOC_PROT_ERR
        assert send(2 * PAGE - 50) is WCStatus.LOC_PROT_ERR
