# SPDX-License-Identifier: Apache-2.0
"""Arrays in shared memory: a region says what it holds, whoever made the array."""

from __future__ import annotations

import array
import asyncio
import ctypes
import gc
from collections.abc import Callable
from typing import Any

import numpy
import pytest

import rnic
from conn.peers import WAIT, ends
from conn.test_buffers import shared
from conn.test_ends import pair
from rnic.conn.arrays import Layout, describe
from rnic.endpoint import Region
from rnic.enums import AccessFlags

np: Any = numpy
ALL = AccessFlags.REMOTE_READ | AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_ATOMIC
ARRAYS: dict[str, Callable[[], Any]] = {
    "float32": lambda: np.arange(6, dtype="<f4").reshape(2, 3),
    "big-endian": lambda: np.arange(5, dtype=">i8"),
    "complex": lambda: np.arange(4, dtype="c16").reshape(2, 2),
    "half": lambda: np.arange(4, dtype="f2"),
    "bool": lambda: np.array([[True], [False]]),
    "one": lambda: np.array(7.5),
    "bytes": lambda: np.arange(9, dtype="u1"),
    "array": lambda: array.array("d", [1, 2, 3]),
    "ctypes": lambda: (ctypes.c_int * 4)(1, 2, 3, 4),
    "bytearray": lambda: bytearray(b"abc"),
}


def met(a: rnic.Connection, b: rnic.Connection, one: Any) -> tuple[Region, Region]:
    """An array that b shares, as b and as a see it."""
    a.send(b"ready?")
    assert b.recv(WAIT) == b"ready?"
    mine = b.share(one)
    return mine, a.next_region(WAIT)


@pytest.mark.parametrize("make", ARRAYS.values(), ids=ARRAYS)
def test_the_peer_reads_the_array_that_was_shared(make: Callable[[], Any]) -> None:
    one = make()
    expected = np.asarray(one)
    with pair() as (a, b):
        mine, theirs = met(a, b, one)
        assert mine.shape == theirs.shape == expected.shape
        assert np.dtype(theirs.dtype) == np.dtype(mine.dtype) == expected.dtype
        got: Any = a.read_array(theirs, timeout=WAIT)
        assert (got == expected).all()
        assert got.shape == expected.shape
        assert got.dtype == expected.dtype
        there: Any = b.asarray(mine)
        assert (there == expected).all()
        there.reshape(-1).view("u1")[0] ^= 1
        assert memoryview(one).tobytes() == there.tobytes()
        a.write(got, theirs, timeout=WAIT)
        assert (there == got).all()


def test_an_array_without_a_short_name_for_its_type_is_a_region_of_bytes() -> None:
    records = np.zeros(3, dtype=[("a", "i2"), ("b", "f8")])
    records["b"] = 1, 2, 3
    with pair() as (a, b):
        mine, theirs = met(a, b, records)
        assert (theirs.shape, theirs.dtype) == ((), "")
        for shape in (None, 3):
            with pytest.raises(ValueError, match="does not say what array it holds"):
                a.read_array(theirs, shape=shape)
        with pytest.raises(ValueError, match=r"does not say what array it holds: pass dtype=, and shape="):
            b.asarray(mine)
        got: Any = a.read_array(theirs, shape=3, dtype=records.dtype, timeout=WAIT)
        assert (got == records).all()
        assert (b.asarray(mine, shape=(3, 1), dtype=records.dtype)[:, 0] == records).all()


def test_with_a_type_alone_the_length_follows_from_the_bytes() -> None:
    with pair() as (a, b):
        mine, theirs = met(a, b, bytearray(range(64)))
        assert a.read_array(theirs, dtype="u1", timeout=WAIT).shape == (64,)
        got: Any = a.read_array(theirs, dtype=">u8", timeout=WAIT)
        assert (got.shape, int(got[0])) == ((8,), 0x0001020304050607)
        assert b.asarray(mine, dtype="<u4").shape == (16,)
        with pytest.raises(ValueError, match=r"region 1 has 64 bytes, which is no multiple of the 24 of an"):
            a.read_array(theirs, dtype="S24")
        records = np.ones(3, dtype=[("a", "i2"), ("b", "f8")])  # no short name: a region of bytes
        mine = b.share(records)
        assert (b.asarray(mine, dtype=records.dtype) == records).all()


def test_the_caller_can_say_another_shape_or_type() -> None:
    with pair() as (a, b):
        mine, theirs = met(a, b, np.arange(12, dtype="<i4").reshape(3, 4))
        assert a.read_array(theirs, shape=(2, 6), timeout=WAIT).tolist() == [
            [0, 1, 2, 3, 4, 5],
            [6, 7, 8, 9, 10, 11],
        ]
        assert a.read_array(theirs, dtype="<u4", timeout=WAIT).shape == (3, 4)
        assert a.read_array(theirs, shape=48, dtype="u1", timeout=WAIT).shape == (48,)
        assert b.asarray(mine, shape=6, dtype="<i8").shape == (6,)
        with pytest.raises(ValueError, match="does not fit region 1 of 48 bytes"):
            a.read_array(theirs, dtype="f8")
        with pytest.raises(ValueError, match="holds Python objects"):
            a.read_array(theirs, shape=6, dtype=object)
        with pytest.raises(TypeError, match=r"read_array\(\) takes a Region, not int"):
            a.read_array(5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((5,), "<f4"),
        ((1 << 63, 2), "<f4"),
        ((-2, -3), "<f4"),
        ((-1,), "<f4"),
        ((0,), "<f4"),
        ((3,), "|O"),
        ((3,), "O"),
        ((1,), "<V24O"),
        ((24,), "(24,)u1"),
        ((1,), "24u1"),
        ((3,), "f4,f4"),
        ((6,), "float32"),
        ((6,), "<q4"),
        ((2,), "S999999999"),
        ((1 << 40,) * 200, "|u1"),
        ((1,) * 200, "|S24"),
        ((6,), "<f4\n"),
        ((1,), "<U999999999"),
    ],
)
def test_what_a_peer_says_is_not_believed(shape: tuple[int, ...], dtype: str) -> None:
    region = Region(1, 4096, 24, 7, ALL, shape, dtype)
    with pytest.raises(ValueError, match=r"read_array\(\): |dimension"):
        Layout(region, None, None, "read_array()").empty()


def test_regions_that_are_not_ones_own_have_no_array() -> None:
    with pair() as (a, b):
        mine, theirs = met(a, b, np.zeros(4))
        with pytest.raises(ValueError, match=r"the memory is the peer's: read_array\(\)"):
            a.asarray(theirs)
        kept = b.asarray(mine)
        b.revoke(mine)
        with pytest.raises(ValueError, match="region 1 was withdrawn"):
            b.asarray(mine)
        assert kept.sum() == 0
        with pytest.raises(TypeError, match=r"asarray\(\) takes the Region"):
            b.asarray("x")  # type: ignore[arg-type]


def test_read_only_memory_makes_a_read_only_array() -> None:
    with pair() as (a, b):
        mine, theirs = met(a, b, b"stable")
        assert not b.asarray(mine).flags.writeable
        assert a.read_array(theirs, timeout=WAIT).tobytes() == b"stable"


def test_an_array_longer_than_one_read_comes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rnic.conn.face.LONGEST", 1000)
    with pair() as (a, b):
        one = np.random.default_rng(1).integers(0, 99, (50, 77))
        _, theirs = met(a, b, one)
        assert (a.read_array(theirs, timeout=WAIT) == one).all()


def test_the_asyncio_face_has_the_same() -> None:
    async def main() -> None:
        async with ends() as (a, b):
            one = np.arange(12.0).reshape(3, 4)
            mine = await b.share(one)
            theirs = await a.next_region()
            assert (await a.read_array(theirs) == one).all()
            assert b.asarray(mine).base is not None
            with pytest.raises(ValueError, match="does not fit"):
                await a.read_array(theirs, shape=5)

    asyncio.run(asyncio.wait_for(main(), WAIT))


def test_formats_of_buffers_are_named_as_numpy_names_them() -> None:
    for text in "bhilqnBHILQNefdg?":
        kind = np.dtype(text) if text not in "nN" else np.dtype({"n": "i8", "N": "u8"}[text])
        assert describe(memoryview(np.zeros(3, kind))) == ((3,), kind.str)
    assert describe(memoryview(np.zeros(3, "S5"))) == ((), "")
    assert describe(memoryview(b"")) == ((0,), "|u1")


# ---------------------------------------------------------------- DLPack


class Only:
    """An array that speaks nothing but DLPack."""

    def __init__(self, one: Any, **given: Any) -> None:
        self._one, self._given = one, given

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._one.__dlpack_device__()  # type: ignore[no-any-return]

    def __dlpack__(self, **asked: Any) -> Any:
        return self._one.__dlpack__(**{**asked, **self._given})


class Old(Only):
    """And only as it was before there were versions."""

    def __dlpack__(self) -> Any:  # type: ignore[override]
        return self._one.__dlpack__()


@pytest.mark.parametrize("kind", [Only, Old])
@pytest.mark.parametrize("dtype", ["f4", "f8", "i1", "i8", "u2", "?", "c8", "c16", "f2"])
def test_dlpack_is_taken_wherever_a_buffer_is(kind: Any, dtype: str) -> None:
    source, target = np.arange(24).astype(dtype).reshape(2, 3, 4), np.zeros((2, 3, 4), dtype)
    with pair() as (a, b):
        mine, theirs = met(a, b, kind(target))
        assert (theirs.shape, np.dtype(theirs.dtype)) == ((2, 3, 4), source.dtype)
        a.write(kind(source), theirs, timeout=WAIT)
        assert (target == source).all()
        assert (b.asarray(mine) == source).all()
        back = np.zeros_like(source)
        a.read(kind(back), theirs, timeout=WAIT)
        assert (back == source).all()
        with a.register(kind(back)):
            back[:] = 0
            a.read(back, theirs, timeout=WAIT)
            assert (back == source).all()
        a.send(kind(source))
        back[:] = 0
        assert b.recv_into(kind(back), WAIT) == source.nbytes
        assert (back == source).all()
        b.revoke(mine)
    gc.collect()
    target.resize(1, refcheck=True)  # nobody holds it


def test_long_tensors_take_the_short_way_too() -> None:
    with pair() as (a, b):
        one = np.random.default_rng(1).random((300, 300))
        theirs = shared(a, b, bytearray(one.tobytes()))
        back = np.zeros_like(one)
        a.read(Only(back), theirs, timeout=WAIT)
        a.read(Only(back), theirs, timeout=WAIT)
        assert (back == one).all()


def test_memory_of_the_connection_is_given_on_by_dlpack() -> None:
    with pair() as (a, _):
        one = a.empty((3, 4))
        one[:] = 5
        other = np.from_dlpack(Only(one))
        assert np.shares_memory(one, other)


def test_dlpack_that_is_not_in_order_or_cannot_be_written_is_refused() -> None:
    with pair() as (a, b):
        theirs = shared(a, b, bytearray(1 << 10))
        for wrong in (np.zeros((3, 4)).T, np.zeros((4, 4))[:, :2], np.arange(8.0)[::-1]):
            for call in (
                a.send,
                a.share,
                a.register,
                lambda one: a.read(one, theirs),
                lambda one: a.write(one, theirs),
            ):
                with pytest.raises(ValueError, match="contiguous in C order"):
                    call(Only(wrong))
        fixed = np.arange(4.0)
        fixed.flags.writeable = False
        a.write(Only(fixed), theirs, timeout=WAIT)
        with pytest.raises(ValueError, match="read-only"):
            a.read(Only(fixed), theirs)
        assert a.share(Only(fixed)).access == AccessFlags.REMOTE_READ
        a.send(Only(np.zeros((0, 3))[:, ::2]))
        assert b.recv(WAIT) == b""
        a.send(Only(np.zeros((1, 4))[::-1]))  # of one row the step is of no interest
        assert b.recv(WAIT) == bytes(32)


class Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Managed(ctypes.Structure):
    _fields_ = (("tensor", Tensor), ("manager", ctypes.c_void_p), ("deleter", Deleter))


class Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", Deleter),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    )


new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype, new_capsule.argtypes = (
    ctypes.py_object,
    (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p),
)
Destructor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Handmade:
    """Says of eight bytes what it is told to, and counts how often they are given back."""

    def __init__(
        self,
        shape: tuple[int, ...] = (8,),
        strides: tuple[int, ...] | None = None,
        versioned: bool = True,
        **given: int,
    ) -> None:
        self.memory = (ctypes.c_uint8 * 64)(*range(64))
        self.deleted = 0
        self.device = given.pop("device", 1)
        self.given, self.versioned = given, versioned
        self._shape = (ctypes.c_int64 * 80)(*shape)
        self._strides = None if strides is None else (ctypes.c_int64 * 80)(*strides)
        self.ndim = given.pop("ndim", len(shape))
        self._kept: list[Any] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0

    def __dlpack__(self, max_version: Any = None, copy: Any = None) -> Any:
        assert copy is False
        given = {"code": 1, "bits": 8, "lanes": 1, "major": 1, "flags": 0, "byte_offset": 0, **self.given}
        deleter = Deleter(self._delete)
        data = 0 if "null" in given else ctypes.addressof(self.memory)
        tensor = Tensor(data, 1, 0, self.ndim, given["code"], given["bits"], given["lanes"])
        tensor.shape = ctypes.cast(self._shape, ctypes.POINTER(ctypes.c_int64))
        tensor.byte_offset = given["byte_offset"]
        if self._strides is not None:
            tensor.strides = ctypes.cast(self._strides, ctypes.POINTER(ctypes.c_int64))
        name = b"dltensor_versioned" if self.versioned else b"dltensor"
        whole: Any = (
            Versioned(given["major"], 0, None, deleter, given["flags"], tensor)
            if self.versioned
            else Managed(tensor, None, deleter)
        )

        def destroy(capsule: int) -> None:
            # A capsule that nobody took.  No function of Python's: an exception may be on its way.
            pointer, its_name = (ctypes.c_void_p.from_address(capsule + at).value for at in (16, 24))
            if ctypes.string_at(its_name or 0) == name:
                self._delete(pointer or 0)

        destructor = Destructor(destroy)
        self._kept += [deleter, whole, destructor]
        return new_capsule(ctypes.addressof(whole), name, ctypes.cast(destructor, ctypes.c_void_p))

    def _delete(self, pointer: int) -> None:
        assert pointer == ctypes.addressof(self._kept[-2])
        self.deleted += 1


WRONG: dict[str, Handmade] = {
    "a GPU": Handmade(device=2),
    "a version from far away": Handmade(major=2),
    "half bytes": Handmade(bits=4, code=0),
    "no bits": Handmade(bits=0),
    "no lanes": Handmade(lanes=0),
    "a negative length": Handmade(shape=(-8,)),
    "more than there can be": Handmade(shape=(1 << 40, 1 << 40)),
    "more, with elements": Handmade(shape=(1 << 61,), bits=64),
    "too many dimensions": Handmade(shape=(1,) * 65),
    "fewer dimensions than none": Handmade(ndim=-1),
    "every second one": Handmade(shape=(4,), strides=(2,)),
    "the same one again": Handmade(shape=(4,), strides=(0,)),
    "columns": Handmade(shape=(2, 4), strides=(1, 2)),
    "memory nowhere": Handmade(null=1),
}


@pytest.mark.parametrize("versioned", [True, False])
@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_what_cannot_be_is_refused_and_given_back_once(wrong: Handmade, versioned: bool) -> None:
    if not versioned and "major" in wrong.given:
        pytest.skip("there is no version")
    wrong.versioned, wrong.deleted = versioned, 0
    with pair() as (a, _), pytest.raises(ValueError, match=r"memory of a device|DLPack|contiguous"):
        a.send(wrong)
    gc.collect()
    assert wrong.deleted == (0 if wrong.device == 2 else 1)


@pytest.mark.parametrize("versioned", [True, False])
def test_what_is_taken_is_given_back_once_and_not_before_its_last_use(versioned: bool) -> None:
    with pair() as (a, b):
        made = Handmade(versioned=versioned, byte_offset=4)
        a.send(made)
        assert b.recv(WAIT) == bytes(range(4, 12))
        gc.collect()
        assert made.deleted == 1
        a.send(Handmade(shape=(2, 1, 4), strides=(4, 77, 1), versioned=versioned))
        assert b.recv(WAIT) == bytes(range(8))
        a.send(Handmade(shape=(), bits=16, code=4, versioned=versioned))  # a bfloat16
        assert b.recv(WAIT) == bytes((0, 1))
        a.send(Handmade(shape=(0, 5), strides=(3, 3), null=1, versioned=versioned))
        assert b.recv(WAIT) == b""
        made = Handmade(versioned=versioned, shape=(64,))
        region = a.share(made)
        assert made.deleted == 0
        theirs = b.next_region(WAIT)
        b.write(b"by rdma", theirs, timeout=WAIT)
        assert bytes(made.memory)[:7] == b"by rdma"
        a.revoke(region)
        gc.collect()
        assert made.deleted == 1
        with a.register(made):
            assert made.deleted == 1
        assert made.deleted == 2


@pytest.mark.parametrize("flag", [1, 2])
def test_a_tensor_that_is_read_only_or_a_copy_is_not_read_into(flag: int) -> None:
    with pair() as (a, b):
        theirs = shared(a, b, bytearray(8))
        made = Handmade(flags=flag)
        with pytest.raises(ValueError, match="read-only"):
            a.read(made, theirs)
        a.write(made, theirs, timeout=WAIT)
        gc.collect()
        assert made.deleted >= 2


class Broken(Handmade):
    def __dlpack__(self, max_version: Any = None, copy: Any = None) -> Any:
        return "no capsule"


def test_an_exporter_that_breaks_its_word_is_named() -> None:
    with pair() as (a, _), pytest.raises(TypeError, match=r"__dlpack__.* of Broken has returned no capsule"):
        a.send(Broken())
