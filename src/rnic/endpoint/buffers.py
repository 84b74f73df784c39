# SPDX-License-Identifier: Apache-2.0
"""Buffers of the user's as the bytes that they stand for."""

from typing import TYPE_CHECKING, Any, Protocol

from rnic._nic.nic import Tensor

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["EMPTY", "DLPack", "flat", "view_of"]


class DLPack(Protocol):
    """An array of another library, a PyTorch tensor for one, that lies in memory of the host."""

    def __dlpack__(self) -> Any:
        """A capsule of DLPack."""

    def __dlpack_device__(self) -> tuple[Any, Any]:
        """Where it lies."""


if TYPE_CHECKING:
    AnyBuffer = Buffer | DLPack

EMPTY = memoryview(b"")


def view_of(buffer: "AnyBuffer", what: str = "the call") -> memoryview:
    """A buffer as it is, of what speaks DLPack alone by that; while it is held the buffer keeps its size.

    TypeError for what is no buffer, with the cure.
    """
    try:
        return memoryview(buffer)  # type: ignore[arg-type]
    except TypeError:
        if not hasattr(buffer, "__dlpack__"):
            cure = ": give text.encode()" if isinstance(buffer, str) else ""
            text = f"{what} needs a buffer, such as bytes or an array, not {type(buffer).__name__}{cure}"
            raise TypeError(text) from None
    return memoryview(Tensor(buffer))


def flat(buffer: "AnyBuffer", what: str) -> memoryview:
    """The bytes of a buffer, one after the other, without a copy; while they are held it keeps its size.

    ValueError when they do not lie in this order in memory, as in a NumPy array that is transposed, strided
    or Fortran-ordered: whoever takes its memory as it lies moves the wrong bytes.
    """
    view = view_of(buffer, what)
    if not view.c_contiguous:
        cure = "copy it first: bytes(buffer), numpy.ascontiguousarray(array)"
        raise ValueError(f"{what} needs a buffer that is contiguous in C order; {cure}")
    return view.cast("B") if view.nbytes else EMPTY
