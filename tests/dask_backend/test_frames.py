# SPDX-License-Identifier: Apache-2.0
"""What a message is on the wire: it comes back as it went, and a peer that lies is found out."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("distributed", reason="Dask is not installed: pip install 'rnic[dask]'")

from rnic.dask.frames import OWN, WHOLE, FramesError, Incoming, pack


def room(length: int) -> memoryview:
    return memoryview(bytearray(length))


def sent(frames: list[bytes | memoryview]) -> Incoming:
    """As a receiver has it, when all has come."""
    head, own = pack(frames)
    incoming = Incoming(head, room)
    for place, message in zip(incoming.rooms(), own, strict=True):
        place[:] = message
    return incoming


SIZES = st.sampled_from([0, 1, 7, OWN - 1, OWN, OWN + 1, WHOLE - 1, WHOLE, WHOLE + 5])


@given(st.lists(SIZES, min_size=1, max_size=6))
def test_frames_come_back_as_they_went(sizes: list[int]) -> None:
    frames: list[bytes | memoryview] = [bytes([index + 1]) * size for index, size in enumerate(sizes)]
    found = sent(frames).frames
    assert [bytes(frame) for frame in found] == frames
    assert not any(frame.readonly for frame in found)


def test_a_short_message_is_its_head_alone() -> None:
    head, own = pack([bytes(100), bytes(OWN * 4)])
    assert not own
    assert len(head) > OWN * 4


def test_a_long_frame_is_not_copied() -> None:
    array = bytearray(WHOLE)
    _, (own,) = pack([b"what it is", array])
    assert own.obj is array


def test_shards_of_a_buffer_lie_together_again() -> None:
    """Dask then merges them without a copy."""
    array = memoryview(bytearray(range(256)) * (WHOLE // 64))
    shards = [array[at : at + WHOLE] for at in range(0, len(array), WHOLE)]
    other = bytes(WHOLE)
    _, *found, last = sent([b"what it is", *shards, other]).frames
    assert len(found) == len(shards) > 1
    assert all(frame.obj is found[0].obj for frame in found)
    assert b"".join(found) == array
    assert last.obj is not found[0].obj


def test_each_short_frame_has_memory_of_its_own() -> None:
    first, second = sent([bytes(8), bytes(9)]).frames
    assert first.obj is not second.obj


def head(*words: int, magic: bytes = b"DASK", number: int | None = None, rest: bytes = b"") -> bytes:
    number = len(words) if number is None else number
    return struct.pack(f"<4sI{len(words)}Q", magic, number, *words) + rest


INSIDE, BEGINS, GOES_ON, UNKNOWN = (place << 62 for place in range(4))


@pytest.mark.parametrize(
    "lie",
    [
        b"",
        b"DASK",
        head(1, magic=b"dask", rest=b"x"),
        head(),
        head(1, number=2, rest=b"x"),
        head(1, number=1 << 31, rest=b"x"),
        head(2, rest=b"x"),
        head(1, rest=b"xy"),
        head((1 << 62) - 1),
        head(BEGINS),
        head(GOES_ON | 5),
        head(0, GOES_ON | 5),
        head(UNKNOWN | 5),
    ],
)
def test_lies_of_a_head_are_found_before_anything_is_allocated(lie: bytes) -> None:
    def none(length: int) -> memoryview:
        raise AssertionError(length)

    with pytest.raises(FramesError):
        Incoming(lie, none)
