# SPDX-License-Identifier: Apache-2.0
"""What a message of Dask is on the wire; no I/O.

Dask serialises a message into frames, buffers of bytes.  They go as messages of one rnic connection: first a
head with the short frames, and then each long frame as a message of its own.  If all of it is short, the head
is all.  The receiver gives a long frame the memory that it is to stay in, so one of 1 MiB or more
(rendezvous) is copied once, from the array of one process to the array of the other, by the device.

A head, numbers in little-endian byte order:

    offset  bytes  what
    0       4      "DASK"
    4       4      the number of frames, N
    8       8 * N  a word for each frame: bits 0 to 61 are its length in bytes, bits 62 and 63 its place:
                   0, in this head; 1, a message of its own; 2, a message of its own whose bytes go on where
                   those of the frame before it end (Dask splits long buffers into shards)
    8+8*N   ...    the frames of place 0, one after the other

No frame of no bytes is a message.  A client says GREETING in its hello, and a listener refuses others.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    Bytes: TypeAlias = bytes | bytearray | memoryview

GREETING = b"dask 1"
"""The `data` of the connection, with the version of this format."""
WHOLE = 1 << 20
"""A message of fewer bytes is its head alone: to copy them costs less than to send a further message."""
OWN = 1 << 15
"""In a longer one a frame of at least this many bytes is a message of its own."""
_MAGIC = b"DASK"
_FIXED = struct.Struct("<4sI")
_INSIDE, _BEGINS, _GOES_ON = range(3)
_SHIFT = 62
_LENGTH = (1 << _SHIFT) - 1


class FramesError(ValueError):
    """The peer sent what is no message of Dask; the text says what is wrong with it."""


def pack(frames: Sequence[Bytes]) -> tuple[bytes, list[memoryview]]:
    """Return the head for these frames, and those that follow as messages of their own."""
    views = [memoryview(frame).cast("B") for frame in frames]
    own_from = OWN if sum(view.nbytes for view in views) >= WHOLE else WHOLE
    words: list[int] = []
    inside: list[memoryview] = []
    own: list[memoryview] = []
    last: object = None  # the buffer of the frame before, if that was a message of its own
    for view in views:
        if view.nbytes < own_from:
            place, last = _INSIDE, None
            inside.append(view)
        else:
            place = _GOES_ON if last is view.obj else _BEGINS
            last = view.obj
            own.append(view)
        words.append(view.nbytes | place << _SHIFT)
    head = (_FIXED.pack(_MAGIC, len(words)), struct.pack(f"<{len(words)}Q", *words))
    return b"".join((*head, *inside)), own


class Incoming:
    """A message that comes in: its frames, and the memory for those that are still to come."""

    def __init__(self, head: Bytes, allocate: Callable[[int], memoryview]) -> None:
        """Read a head.  `allocate` makes writable memory of a length, for frames that follow.

        FramesError when the head says what cannot be.  Nothing is allocated before all of it was looked at.
        """
        head = memoryview(head)
        places = _places(head)
        self._allocate = allocate
        at = _FIXED.size + 8 * len(places)
        self._frames: list[memoryview | None] = []
        for place, length in places:
            if place == _INSIDE:  # in memory of its own, which is writable and goes when its array goes
                self._frames.append(memoryview(bytearray(head[at : at + length])))
                at += length
            else:
                self._frames.append(None)
        self._runs = _runs(places)

    def rooms(self) -> Iterable[memoryview]:
        """The memory for each message that follows, in order; allocated when it is asked for."""
        for run in self._runs:
            memory, at = self._allocate(sum(length for _, length in run)), 0
            for index, length in run:
                room = self._frames[index] = memory[at : at + length]
                at += length
                yield room

    @property
    def frames(self) -> list[memoryview]:
        """The frames, after all of rooms() have been filled."""
        return [frame for frame in self._frames if frame is not None]


def _places(head: memoryview) -> list[tuple[int, int]]:
    """Place and length of each frame; FramesError when the head says what cannot be."""
    if len(head) < _FIXED.size or head[:4] != _MAGIC:
        raise FramesError("a message that begins no message of Dask")
    _, number = _FIXED.unpack_from(head)
    rest = len(head) - _FIXED.size - 8 * number
    if number == 0 or rest < 0:
        raise FramesError(f"a head of {len(head)} bytes for {number} frames")
    places = [
        (word >> _SHIFT, word & _LENGTH) for word in struct.unpack_from(f"<{number}Q", head, _FIXED.size)
    ]
    inside = sum(length for place, length in places if place == _INSIDE)
    if inside != rest:
        raise FramesError(f"a head with {rest} bytes of frames that claim {inside}")
    before = _INSIDE
    for place, length in places:
        if place > _GOES_ON or (place and not length) or (place == _GOES_ON and before == _INSIDE):
            raise FramesError(f"a frame of {length} bytes at place {place}, behind one at place {before}")
        before = place
    return places


def _runs(places: list[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """The frames that follow, as index and length; those whose bytes lie together in one list."""
    runs: list[list[tuple[int, int]]] = []
    for index, (place, length) in enumerate(places):
        if place == _BEGINS:
            runs.append([])
        if place != _INSIDE:
            runs[-1].append((index, length))
    return runs
