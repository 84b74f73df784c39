# SPDX-License-Identifier: Apache-2.0
"""What all records share: text, equality and hash, by their fields.

    @dataclass(frozen=True, slots=True, eq=False, repr=False)
    class Thing(Record):
        number: int = 0

`dataclass` would write these three methods for each class and compile them at every start of a program.
"""

from dataclasses import dataclass, fields
from reprlib import recursive_repr
from typing import Any

__all__ = ["Record"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Record:
    """A frozen dataclass whose text, equality and hash are those that `dataclass` makes."""

    @recursive_repr()
    def __repr__(self) -> str:
        shown = (f"{one.name}={getattr(self, one.name)!r}" for one in fields(self) if one.repr)
        return f"{type(self).__qualname__}({', '.join(shown)})"

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return _values(self) == _values(other)

    def __hash__(self) -> int:
        return hash(_values(self))


_COMPARED: dict[type, tuple[str, ...]] = {}  # by class: worked out at its first use, the same ever after


def _values(record: Record) -> tuple[Any, ...]:
    names = _COMPARED.get(type(record))
    if names is None:
        names = _COMPARED[type(record)] = tuple(one.name for one in fields(record) if one.compare)
    return tuple([getattr(record, name) for name in names])
