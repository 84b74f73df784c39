# SPDX-License-Identifier: Apache-2.0
"""Buffers of the user's as the bytes that they stand for."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["EMPTY", "flat"]

EMPTY = memoryview(b"")


def flat(buffer: "Buffer", what: str) -> memoryview:
    """The bytes of a buffer, one after the other, without a copy; while they are held it keeps its size.

    ValueError when they do not lie in this order in memory, as in a NumPy array that is transposed, strided
    or Fortran-ordered: whoever takes its memory as it lies moves the wrong bytes.
    """
    view = memoryview(buffer)
    if not view.c_contiguous:
        cure = "copy it first: bytes(buffer), numpy.ascontiguousarray(array)"
        raise ValueError(f"{what} needs a buffer that is contiguous in C order; {cure}")
    return view.cast("B") if view.nbytes else EMPTY
