# SPDX-License-Identifier: Apache-2.0
"""Memory that two ends share, and the array in it, as a SHARE carries them."""

from struct import Struct, pack, unpack_from

from rnic.enums import AccessFlags
from rnic.records import Record

_ARRAY = Struct(">BB6x")


class Region(Record, weakref_slot=True):
    """Memory of one end that the peer may read, write or add to."""

    id: int
    """Its number in this connection, unique among the regions of the end that shares it."""
    addr: int
    """The address of its first byte, as the owner's device knows it."""
    length: int
    """Its length in bytes."""
    rkey: int
    """The key for requests."""
    access: AccessFlags
    """What the peer may do: REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC."""
    shape: tuple[int, ...] = ()
    """The lengths of the array that it holds; with `dtype`."""
    dtype: str = ""
    """The type of an element, as NumPy writes it ("<f4").  Empty: nobody said that it holds an array."""


def array_bytes(shape: tuple[int, ...], dtype: str) -> bytes:
    """The description of an array; empty when there is none, or it is too long for one."""
    kind = dtype.encode("ascii")
    if not kind or len(kind) > 255 or len(shape) > 255:
        return b""
    return _ARRAY.pack(len(shape), len(kind)) + pack(f">{len(shape)}Q", *shape) + kind


def region_of(found: tuple[int, int, int, int, int, int, bytes]) -> Region:
    """A region of the peer, as Machine.regions() has it; nothing says that the array fits it."""
    _, ident, addr, length, rkey, access, array = found
    if not array:
        return Region(ident, addr, length, rkey, AccessFlags(access))
    dimensions, _ = _ARRAY.unpack_from(array)
    shape = unpack_from(f">{dimensions}Q", array, _ARRAY.size)
    dtype = array[_ARRAY.size + 8 * dimensions :].decode("ascii")
    return Region(ident, addr, length, rkey, AccessFlags(access), shape, dtype)
