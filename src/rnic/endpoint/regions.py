# SPDX-License-Identifier: Apache-2.0
"""A region and the array in it, as a SHARE carries them."""

from struct import Struct, pack, unpack_from

from rnic.endpoint.events import Region
from rnic.enums import AccessFlags

_ARRAY = Struct(">BB6x")


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
