# SPDX-License-Identifier: Apache-2.0
"""Memory regions: what can be registered, and what stays valid how long."""

import array
import ctypes
import errno
import gc
import mmap
import sys

import pytest

import rnic
from api.conftest import Objects
from rnic import AccessFlags

WRITABLE = AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE


@pytest.mark.parametrize(
    "buffer",
    [bytearray(64), array.array("q", range(8)), (ctypes.c_double * 8)(), memoryview(bytearray(80))[8:72]],
    ids=lambda buffer: type(buffer).__name__,
)
def test_any_writable_buffer(objects: Objects, buffer: bytearray) -> None:
    with objects.pd.reg_mr(buffer, WRITABLE) as mr:
        assert (mr.length, len(mr), mr.buf.nbytes) == (64, 64, 64)
        assert mr.addr == ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        mr.buf[:4] = b"abcd"
        assert bytes(memoryview(buffer).cast("B")[:4]) == b"abcd"


def test_mmap(objects: Objects) -> None:
    with mmap.mmap(-1, 4096) as memory:
        with objects.pd.reg_mr(memory, WRITABLE) as mr:
            mr.buf[0] = 7
            with pytest.raises(BufferError):
                memory.close()
        assert memory[0] == 7


def test_read_only_memory_without_write_access(objects: Objects) -> None:
    with objects.pd.reg_mr(b"constant", AccessFlags.REMOTE_READ) as mr:
        assert mr.buf.readonly
        assert bytes(mr.buf) == b"constant"


@pytest.mark.parametrize("right", ["LOCAL_WRITE", "REMOTE_WRITE", "REMOTE_ATOMIC"])
def test_read_only_memory_with_write_access(objects: Objects, right: str) -> None:
    with pytest.raises(rnic.VerbsError, match="is read-only: give memory that can be written") as caught:
        objects.pd.reg_mr(b"constant", AccessFlags[right])
    assert caught.value.errno == errno.EINVAL
    assert objects.recorder.take() == []


def test_memory_in_pieces_is_refused(objects: Objects) -> None:
    with pytest.raises(rnic.VerbsError, match="in one piece"):
        objects.pd.reg_mr(memoryview(bytearray(64))[::2], WRITABLE)


def test_what_is_no_memory(objects: Objects) -> None:
    with pytest.raises(TypeError):
        objects.pd.reg_mr("text", WRITABLE)
    for arguments in ({}, {"addr": 1}, {"length": 1}, {"buffer": bytearray(1), "addr": 1}):
        with pytest.raises(TypeError, match="a buffer, or addr and length"):
            objects.pd.reg_mr(**arguments)


def test_a_failed_registration_keeps_nothing(objects: Objects) -> None:
    memory = bytearray(8)
    objects.recorder.fail("reg_mr", errno.ENOMEM)
    with pytest.raises(rnic.VerbsError):
        objects.pd.reg_mr(memory, WRITABLE)
    memory.clear()


def test_registered_memory_cannot_be_resized_until_closed(objects: Objects) -> None:
    memory = bytearray(8)
    count = sys.getrefcount(memory)
    mr = objects.pd.reg_mr(memory, WRITABLE)
    with pytest.raises(BufferError):
        memory.append(1)
    mr.close()
    memory.append(1)
    assert sys.getrefcount(memory) == count


def test_dropped_regions_are_deregistered_first(objects: Objects) -> None:
    memory = bytearray(8)
    mr = objects.pd.reg_mr(memory, WRITABLE)
    objects.recorder.take()
    with pytest.warns(ResourceWarning, match="unclosed MR"):
        del mr
    assert objects.recorder.take() == ["dereg_mr lkey=768"]
    memory.clear()


def test_raw_addresses(objects: Objects) -> None:
    memory = ctypes.create_string_buffer(b"hello")
    with objects.pd.reg_mr(addr=ctypes.addressof(memory), length=5) as mr:
        assert bytes(mr.buf) == b"hello"
        kept = mr.buf[1:3]
    assert bytes(kept) == b"el"


def test_buf_is_one_view_that_close_releases(objects: Objects) -> None:
    with objects.pd.alloc_mr(64, WRITABLE) as mr:
        view = mr.buf
        assert mr.buf is view
        view[0] = 1
        view.release()
        assert mr.buf[0] == 1
        last = mr.buf
    with pytest.raises(ValueError, match="released"):
        last[0]


def test_memory_of_the_device_outlives_its_views(objects: Objects) -> None:
    mr = objects.pd.alloc_mr(64, WRITABLE)
    part = mr.buf[8:16]
    with pytest.raises(rnic.VerbsError, match=r"\.buf is still used") as caught:
        mr.close()
    assert caught.value.errno == errno.EBUSY
    part[0] = 5
    assert mr.buf[8] == 5
    del part
    mr.close()


def test_views_of_other_memory_keep_it_exported(objects: Objects) -> None:
    memory = bytearray(64)
    mr = objects.pd.reg_mr(memory, WRITABLE)
    part = mr.buf[8:16]
    mr.close()
    part[0] = 5
    assert memory[8] == 5
    with pytest.raises(BufferError):
        memory.clear()
    part.release()
    memory.clear()


def test_views_keep_the_region_alive(objects: Objects) -> None:
    view = objects.pd.alloc_mr(64, WRITABLE).buf
    gc.collect()
    view[63] = 1
    with pytest.warns(ResourceWarning, match="unclosed MR"):
        del view


def test_a_closed_region_exports_nothing(objects: Objects) -> None:
    mr = objects.pd.reg_mr(bytearray(8))
    mr.close()
    with pytest.raises(BufferError):
        memoryview(mr)
    assert mr.length == 8


def test_a_region_tells_what_it_allows() -> None:
    both = AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_READ
    with rnic.open_device("roce_lo") as ctx, ctx.alloc_pd() as pd:
        with pd.reg_mr(bytearray(8), both) as mr:
            assert mr.access == both
            mr.rereg(rnic.ReregMRFlags.CHANGE_TRANSLATION, buffer=bytearray(9))
            assert mr.access == both
            mr.rereg(rnic.ReregMRFlags.CHANGE_ACCESS, access=AccessFlags.REMOTE_READ)
            assert mr.access is AccessFlags.REMOTE_READ
        with pd.alloc_mr(8, both) as mr, pd.import_mr(mr.handle) as imported:
            assert mr.access == imported.access == both
        with pd.alloc_null_mr() as null:
            assert null.access is AccessFlags.LOCAL_WRITE
            with pytest.raises(OverflowError, match=r"take its \.length"):
                len(null)
