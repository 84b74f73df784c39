# SPDX-License-Identifier: Apache-2.0
"""Checks of header fields, and a base class for headers whose fields are whole bytes."""

from __future__ import annotations

from struct import Struct
from typing import Any, ClassVar, Self

from rnic.records import Record, fields
from rnic.wire.error import WireError


def fit(name: str, value: int, bits: int) -> int:
    """Return `value` when an unsigned field of `bits` bits holds it; `WireError` naming the field if not."""
    if not 0 <= value < 1 << bits:
        raise WireError(f"{name} {value:#x} does not fit {bits} bits")
    return value


def need(name: str, data: bytes, size: int) -> None:
    """`WireError` unless `data` has at least `size` bytes."""
    if len(data) < size:
        raise WireError(f"{name} needs {size} bytes, there are {len(data)}")


class FlatHeader(Record):
    """A record whose fields lie one after the other, in the order of `LAYOUT`."""

    SIZE: ClassVar[int]
    LAYOUT: ClassVar[Struct]

    def __init__(self, *values: Any) -> None:
        raise NotImplementedError  # those that derive from it have their own

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Read the header at the start of `data`. `WireError` when it is cut short."""
        need(cls.__name__, data, cls.SIZE)
        return cls(*cls.LAYOUT.unpack_from(data))

    def emit(self) -> bytes:
        """The bytes. `WireError` naming the field that does not fit."""
        codes = self.LAYOUT.format.lstrip(">")
        widths = (8 * Struct(code).size for code in (">" + code for code in codes))
        names = (field.name for field in fields(self))
        values = [fit(name, getattr(self, name), width) for name, width in zip(names, widths, strict=True)]
        return self.LAYOUT.pack(*values)
