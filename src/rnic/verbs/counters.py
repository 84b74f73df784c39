# SPDX-License-Identifier: Apache-2.0
"""Counters of a device and of a queue pair."""

from collections.abc import Iterator, Mapping

from rnic._nic import nic
from rnic.notebook import table

__all__ = ["Counters"]


class Counters(Mapping[str, int]):
    """Counters by name: an immutable mapping whose names are attributes, too. `b - a` is the difference."""

    __slots__ = ("_values",)

    _values: dict[str, int]

    def __init__(self, values: Mapping[str, int]) -> None:
        self._values = dict(values)

    def __getattr__(self, name: str) -> int:
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(f"there is no counter {name}") from None

    def __getitem__(self, name: str) -> int:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __sub__(self, earlier: "Counters") -> "Counters":
        return Counters({name: value - earlier[name] for name, value in self.items()})

    def __reduce__(self) -> tuple[type["Counters"], tuple[dict[str, int]]]:
        return Counters, (self._values,)

    def as_dict(self) -> dict[str, int]:
        """A dict of all counters, including zeros."""
        return dict(self._values)

    @staticmethod
    def texts() -> dict[str, str]:
        """A description of each counter, by name."""
        return dict(zip(nic.counter_names(), nic.counter_texts(), strict=True))

    @classmethod
    def from_values(cls, values: list[int]) -> "Counters":
        """The record of struct rnic_counters' values."""
        return cls(dict(zip(nic.counter_names(), values, strict=True)))

    def _repr_html_(self) -> str:
        texts = self.texts()
        counted = [(name, value) for name, value in self.items() if value]
        return table("Counters", [(name, f"{value} ({texts.get(name, '')})") for name, value in counted])

    def __repr__(self) -> str:
        counted = ", ".join(f"{name}={value}" for name, value in self.items() if value)
        return f"Counters({counted})"
