# SPDX-License-Identifier: Apache-2.0
"""Buffers of the user's as the bytes that they stand for."""

from typing import TYPE_CHECKING, Any, Protocol

from rnic._nic.nic import Tensor, need_values

if TYPE_CHECKING:
    from typing_extensions import Buffer


class DLPack(Protocol):
    """An array of another library, a PyTorch tensor for one, that lies in memory of the host."""

    def __dlpack__(self) -> Any:
        """A capsule of DLPack."""

    def __dlpack_device__(self) -> tuple[Any, Any]:
        """Where it lies."""


if TYPE_CHECKING:
    AnyBuffer = Buffer | DLPack

EMPTY = memoryview(b"")


def view_of(buffer: "AnyBuffer", what: str = "the call", *, to_write: bool = False) -> memoryview:
    """A buffer as it is, of what speaks DLPack alone by that; while it is held the buffer keeps its size.

    TypeError, with the cure, for what is no buffer, and for one of references, as a NumPy array of objects.
    `to_write` is for this text: bytes will arrive in the buffer.
    """
    try:
        view = memoryview(buffer)  # type: ignore[arg-type]
    except ValueError:  # a type of NumPy's that no format names
        dtype = getattr(buffer, "dtype", None)
        if dtype is None:  # it is closed, or was released
            raise
        need_values("O" if dtype.hasobject else "B", buffer, what)
        return memoryview(buffer.view(f"V{dtype.itemsize}"))  # type: ignore[union-attr]
    except TypeError:
        if not hasattr(buffer, "__dlpack__"):
            wanted, cure = "a buffer, such as bytes or an array", ""
            if to_write:
                wanted = "a buffer that can be written to, such as a bytearray or an array"
            elif isinstance(buffer, str):
                cure = ": give text.encode()"
            raise TypeError(f"{what} needs {wanted}, not {type(buffer).__name__}{cure}") from None
        return memoryview(Tensor(buffer))
    if view.format != "B":
        need_values(view.format, buffer, what)
    return view


def flat(buffer: "AnyBuffer", what: str, *, to_write: bool = False) -> memoryview:
    """The bytes of a buffer, one after the other, without a copy; while they are held it keeps its size.

    ValueError when they do not lie in this order in memory, as in a NumPy array that is transposed, strided
    or Fortran-ordered: whoever takes its memory as it lies moves the wrong bytes.
    """
    view = view_of(buffer, what, to_write=to_write)
    if not view.c_contiguous:
        cure = "copy it first: bytes(buffer), numpy.ascontiguousarray(array)"
        raise ValueError(f"{what} needs a buffer that is contiguous in C order; {cure}")
    return view.cast("B") if view.nbytes else EMPTY
