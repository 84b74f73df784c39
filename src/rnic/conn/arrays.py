# SPDX-License-Identifier: Apache-2.0
"""Arrays in shared memory: the shape and type in a region, and the NumPy arrays made of them.

A peer's shape and type are checked against the length of the region before an array is made.
"""

from __future__ import annotations

import math
import re
import sys
from typing import TYPE_CHECKING, Any

from rnic.endpoint import Region

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

_KINDS = {
    **dict.fromkeys("bhilqn", "i"),
    **dict.fromkeys("BHILQN", "u"),
    **dict.fromkeys("efdg", "f"),
    "?": "b",
}
_FORMAT = re.compile("([@=<>!]?)(Z?)([a-zA-Z?])")
_TYPE = re.compile(r"[<>|=]?[biufcSUVmM][0-9]{1,9}(\[[0-9]*[a-zA-Z]+\])?")
_NATIVE = "<" if sys.byteorder == "little" else ">"


def describe(view: memoryview) -> tuple[tuple[int, ...], str]:
    """Return the shape and type of a buffer; () and "" when NumPy has no short name for the type."""
    found = _FORMAT.fullmatch(view.format)
    kind = _KINDS.get(found[3], "") if found else ""
    if not found or not kind or (view.ndim == 0 and view.nbytes == 0):
        return (), ""
    order = "|" if view.itemsize == 1 else {">": ">", "!": ">", "<": "<"}.get(found[1], _NATIVE)
    return view.shape or (), f"{order}{'c' if found[2] else kind}{view.itemsize}"


def numpy_for(what: str) -> Any:
    """Import and return NumPy, which rnic does not need otherwise; ImportError names the cure."""
    try:
        import numpy
    except ImportError as error:
        raise ImportError(f"{what} makes a NumPy array, and NumPy is missing: pip install numpy") from error
    return numpy


def kind_of(dtype: DTypeLike, what: str) -> Any:
    """Return a NumPy type; ValueError when its elements are Python objects."""
    kind = numpy_for(what).dtype(dtype)
    if kind.hasobject:
        raise ValueError(f"{what}: {kind} holds Python objects, which mean nothing to a peer")
    return kind


class Layout:
    """The shape and type of the array in a region, from the region or from the caller.

    ValueError when neither gives them, or when they do not fit the region.
    """

    def __init__(
        self, region: Region, shape: int | tuple[int, ...] | None, dtype: DTypeLike | None, what: str
    ) -> None:
        if not isinstance(region, Region):
            raise TypeError(f"{what} takes a Region, not {type(region).__name__}")
        if dtype is None and not region.dtype:
            raise ValueError(
                f"{what}: region {region.id} does not say what array it holds: pass dtype=, "
                "and shape= for more than one dimension"
            )
        if dtype is None and not _TYPE.fullmatch(region.dtype):
            raise ValueError(f"{what}: region {region.id} says that it holds {region.dtype!r}: pass dtype=")
        self.kind = kind_of(dtype, what) if dtype is not None else self._kind_said(region, what)
        if shape is None and dtype is not None and len(region.shape) <= 1:
            shape = self._length(region, what)
        chosen = region.shape if shape is None else shape
        self.shape = (chosen,) if isinstance(chosen, int) else tuple(chosen)
        self._fit(region, what)

    @staticmethod
    def _kind_said(region: Region, what: str) -> Any:
        """Return the type that the region names; ValueError when NumPy has no such type."""
        try:
            return kind_of(region.dtype, what)
        except TypeError as error:
            raise ValueError(
                f"{what}: region {region.id} says that it holds {region.dtype!r}: {error}; pass dtype="
            ) from None

    def _length(self, region: Region, what: str) -> tuple[int, ...]:
        """Return the shape that follows from the region's bytes when only a type is given."""
        size = self.kind.itemsize
        if region.dtype and math.prod(region.shape) * size == region.length:
            return region.shape
        if not size or region.length % size:
            raise ValueError(
                f"{what}: region {region.id} has {region.length} bytes, which is no multiple of the {size} "
                "of an element: pass another dtype="
            )
        return (region.length // size,)

    def _fit(self, region: Region, what: str) -> None:
        size = self.kind.itemsize
        if min(self.shape, default=1) < 0 or math.prod(self.shape) * size != region.length:
            raise ValueError(
                f"{what}: an array of shape {self.shape} with elements of {size} bytes does not fit region "
                f"{region.id} of {region.length} bytes: pass shape= and dtype="
            )

    def empty(self) -> NDArray[Any]:
        """Return a new array of this shape and type."""
        array: NDArray[Any] = numpy_for("read_array()").empty(self.shape, self.kind)
        return array

    def over(self, memory: memoryview) -> NDArray[Any]:
        """Return an array of this shape and type over existing memory, without a copy."""
        array: NDArray[Any] = numpy_for("asarray()").frombuffer(memory, self.kind).reshape(self.shape)
        return array
