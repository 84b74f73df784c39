# SPDX-License-Identifier: Apache-2.0
"""A base class for structures whose fields are not whole bytes: each field is described once.

    class Thing(BitStruct, kw_only=True):
        SIZE: ClassVar[int] = 4
        number: int = at(0, 24)             # bytes 0..2
        kind: int = at(3, 2, bit=5)         # the last bits but one of byte 3
        resv: int = 0                       # BitStruct's own: bits that no field covers

Bits are counted as the specification draws them: bit 0 is the highest of its byte. Bits that no field covers
are kept in `resv`, so that emit() returns the parsed bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv6Address
from typing import Any, ClassVar, Self

from rnic.records import Record, field, fields
from rnic.wire.error import WireError
from rnic.wire.header import fit, need

_KEY = "rnic.wire.bits"


def at(byte: int, bits: int, *, bit: int = 0, default: int = 0) -> Any:
    """An unsigned number of `bits` bits that starts at a byte, `bit` bits into it."""
    return _described(((byte * 8 + bit, bits),), _Number(), default)


def split_at(*pieces: tuple[int, int]) -> Any:
    """A number in (byte, bits) pieces, the highest first."""
    return _described(tuple((byte * 8, bits) for byte, bits in pieces), _Number(), 0)


def flag_at(byte: int, bit: int, *, default: bool = False) -> Any:
    """One bit."""
    return _described(((byte * 8 + bit, 1),), _Flag(), default)


def gid_at(byte: int) -> Any:
    """Sixteen bytes of GID; with RoCEv2 an IP address, an IPv4 address as ::ffff:a.b.c.d (annex A17)."""
    return _described(((byte * 8, 128),), _Gid(), IPv6Address(0))


def bytes_at(byte: int, size: int) -> Any:
    """Bytes. Shorter values are filled up with zeros; parsing returns all of them."""
    return _described(((byte * 8, size * 8),), _Bytes(size), b"")


def struct_at(byte: int, cls: type[BitStruct]) -> Any:
    """A structure inside the structure."""
    return _described(((byte * 8, cls.SIZE * 8),), _Nested(cls), None, default_factory=cls)


class BitStruct(Record, kw_only=True):
    """Parse and emit by the fields' descriptions."""

    SIZE: ClassVar[int] = 0

    resv: int = 0  # all bits that no field covers, where they lie

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Read the structure at the start of `data`. `WireError` when it is cut short."""
        need(cls.__name__, data, cls.SIZE)
        return cls.from_word(int.from_bytes(data[: cls.SIZE], "big"))

    @classmethod
    def from_word(cls, word: int) -> Self:
        """Read the structure from a number that holds its bytes."""
        layout = _layout(cls)
        values = {place.name: place.kind.read(place.take(word)) for place in layout.places}
        return cls(resv=word & ~layout.covered, **values)

    def emit(self) -> bytes:
        """The bytes. Raises `WireError` with the name of a field that does not fit."""
        return self.to_word().to_bytes(self.SIZE, "big")

    def to_word(self) -> int:
        """The bytes as a number."""
        layout = _layout(type(self))
        if self.resv & layout.covered or not 0 <= self.resv < 1 << self.SIZE * 8:
            raise WireError(f"resv of {type(self).__name__} holds bits that belong to a field")
        word = self.resv
        for place in layout.places:
            value = getattr(self, place.name)
            if value or value is None:  # most are 0; None is refused
                word |= place.put(place.kind.write(place.name, value, place.bits))
        return word


class _Number:
    """How the bits of a field become its value, and back; here the value is the number itself."""

    def read(self, word: int) -> Any:
        return word

    def write(self, name: str, value: Any, bits: int) -> int:
        return fit(name, value, bits)


class _Flag(_Number):
    def read(self, word: int) -> Any:
        return bool(word)


class _Gid(_Number):
    def read(self, word: int) -> Any:
        return IPv6Address(word)

    def write(self, name: str, value: Any, bits: int) -> int:
        return fit(name, int(value), bits)


class _Bytes(_Number):
    def __init__(self, size: int) -> None:
        self.size = size

    def read(self, word: int) -> Any:
        return word.to_bytes(self.size, "big")

    def write(self, name: str, value: Any, bits: int) -> int:
        if len(value) * 8 > bits:
            raise WireError(f"{name} of {len(value)} bytes, there is room for {self.size}")
        return int.from_bytes(value, "big") << bits - len(value) * 8


class _Nested(_Number):
    def __init__(self, cls: type[BitStruct]) -> None:
        self.cls = cls

    def read(self, word: int) -> Any:
        return self.cls.from_word(word)

    def write(self, name: str, value: Any, bits: int) -> int:  # noqa: ARG002 - it has its own names
        return int(value.to_word())


class _Place(Record):
    """Where a field of a structure lies."""

    name: str
    kind: _Number
    pieces: tuple[tuple[int, int], ...]  # (shift from the structure's lowest bit, bits), the highest first
    bits: int  # of all pieces

    def take(self, word: int) -> int:
        value = 0
        for shift, bits in self.pieces:
            value = value << bits | word >> shift & (1 << bits) - 1
        return value

    def put(self, value: int) -> int:
        if len(self.pieces) == 1:
            return value << self.pieces[0][0]
        word = 0
        for shift, bits in reversed(self.pieces):
            word |= (value & (1 << bits) - 1) << shift
            value >>= bits
        return word


class _Layout(Record):
    """The fields of a structure, and the bits that they cover."""

    places: tuple[_Place, ...]
    covered: int


def _described(
    pieces: tuple[tuple[int, int], ...],
    kind: _Number,
    default: object,
    default_factory: Callable[[], object] | None = None,
) -> Any:
    metadata = {_KEY: (pieces, kind)}
    if default_factory is not None:
        return field(default_factory=default_factory, metadata=metadata)
    return field(default=default, metadata=metadata)


_LAYOUTS: dict[Any, _Layout] = {}  # by structure: worked out at its first use, the same ever after


def _layout(cls: type[BitStruct]) -> _Layout:
    found = _LAYOUTS.get(cls)
    if found is None:
        found = _LAYOUTS[cls] = _make_layout(cls)
    return found


def _make_layout(cls: type[BitStruct]) -> _Layout:
    places, covered = [], 0
    for one in fields(cls):
        if _KEY not in one.metadata:
            continue
        pieces, kind = one.metadata[_KEY]
        shifts = tuple((cls.SIZE * 8 - start - bits, bits) for start, bits in pieces)
        place = _Place(one.name, kind, shifts, sum(bits for _, bits in pieces))
        mask = place.put((1 << place.bits) - 1)
        assert not covered & mask, f"{cls.__name__}.{one.name} overlaps another field"
        covered |= mask
        places.append(place)
    return _Layout(tuple(places), covered)
