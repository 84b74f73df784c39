# SPDX-License-Identifier: Apache-2.0
"""MPA in a stream of bytes: the frames of the start-up, then FPDUs, however the bytes are cut (RFC 5044).

    both = MpaPair()
    for frame_or_unit in both.initiator.feed(data): ...

Either end's frame says how the other one has to send: so two readers know each other.
"""

from __future__ import annotations

from rnic.records import Record
from rnic.wire import Fpdu, Marker, MpaFrame, MpaHeader, Segment, WireError, crc32c, fpdu_size
from rnic.wire.mpa import (
    CRC_BYTES,
    KEY_BYTES,
    KEY_REPLY,
    KEY_REQUEST,
    LENGTH_BYTES,
    MARKER_BYTES,
    MARKER_EVERY,
)


class Unit(Record):
    """An FPDU as it was in the stream."""

    fpdu: Fpdu
    raw: bytes
    """With the markers."""
    markers: tuple[tuple[int, Marker], ...] = ()
    """Those in it, and the bytes from its length to each; that of one in front of it is -4."""
    crc_used: bool = True

    def segment(self) -> Segment:
        """The DDP segment that it carries. `WireError` if it is cut short."""
        return Segment.parse(self.fpdu.ulpdu)

    def expected_crc(self) -> int:
        """The CRC that it should carry: markers count, as they are among the bytes that it covers."""
        return crc32c(memoryview(self.raw)[:-CRC_BYTES]) if self.crc_used else self.fpdu.crc

    @property
    def crc_ok(self) -> bool:
        """Whether it carries the right CRC, or none is used."""
        return self.fpdu.crc == self.expected_crc()

    @property
    def markers_ok(self) -> bool:
        """Whether each marker says where the FPDU begins."""
        return all(marker.pointer == max(at, 0) for at, marker in self.markers)


class MpaReader:
    """What one end sends. feed() raises WireError where it is not MPA, and is not to be called again then."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._peer: MpaReader
        self._buffer = bytearray()
        self._at = 0  # bytes from the first FPDU's beginning to the buffer's
        self.frame: MpaFrame | None = None
        """Its frame of the start-up, when that has come."""

    @property
    def at_rest(self) -> bool:
        """Nothing is begun and not complete."""
        return not self._buffer

    def feed(self, data: bytes) -> list[MpaFrame | Unit]:
        """What is complete with these bytes."""
        self._buffer += data
        found: list[MpaFrame | Unit] = []
        while (one := self._next()) is not None:
            found.append(one)
        return found

    def _next(self) -> MpaFrame | Unit | None:
        return self._next_frame() if self.frame is None else self._next_unit()

    def _next_frame(self) -> MpaFrame | None:
        if not self._key.startswith(self._buffer[:KEY_BYTES]):
            raise WireError("it begins with no frame of MPA's")
        if len(self._buffer) < MpaHeader.SIZE:
            return None
        header = MpaHeader.parse(bytes(self._buffer))
        header.check()
        size = MpaHeader.SIZE + header.private_size
        if len(self._buffer) < size:
            return None
        self.frame = MpaFrame.parse(bytes(self._buffer[:size]))
        del self._buffer[:size]
        return self.frame

    def _next_unit(self) -> Unit | None:
        if self._peer.frame is None or self.frame is None:  # how it is framed is not known yet
            return None
        markers = self._peer.frame.markers
        if len(self._buffer) < _raw_size(self._at, LENGTH_BYTES, markers):
            return None
        plain, _ = _without_markers(self._buffer, self._at, LENGTH_BYTES, markers)
        size = fpdu_size(int.from_bytes(plain, "big"))
        raw = _raw_size(self._at, size, markers)
        if len(self._buffer) < raw:
            return None
        plain, found = _without_markers(self._buffer, self._at, size, markers)
        crc_used = self.frame.crc or self._peer.frame.crc
        unit = Unit(Fpdu.parse(plain), bytes(self._buffer[:raw]), found, crc_used)
        del self._buffer[:raw]
        self._at += raw
        return unit


class MpaPair:
    """The two directions of a connection."""

    def __init__(self) -> None:
        self.initiator, self.responder = MpaReader(KEY_REQUEST), MpaReader(KEY_REPLY)
        self.initiator._peer, self.responder._peer = self.responder, self.initiator


def _runs(at: int, size: int, markers: bool) -> list[tuple[int, bool]]:
    """What the next bytes are: runs of payload, and markers (True); `at` bytes are behind."""
    if not markers:
        return [(size, False)]
    found = []
    while size:
        if at % MARKER_EVERY == 0:
            found.append((MARKER_BYTES, True))
            at += MARKER_BYTES
        run = min(size, MARKER_EVERY - at % MARKER_EVERY)
        found.append((run, False))
        at, size = at + run, size - run
    return found


def _raw_size(at: int, size: int, markers: bool) -> int:
    return sum(run for run, _ in _runs(at, size, markers))


def _without_markers(
    data: bytearray, at: int, size: int, markers: bool
) -> tuple[bytes, tuple[tuple[int, Marker], ...]]:
    plain, begin, first = bytearray(), 0, 0
    found: list[tuple[int, Marker]] = []
    for run, is_marker in _runs(at, size, markers):
        piece = bytes(data[begin : begin + run])
        if is_marker:
            first = first if plain else run
            found.append((begin - first, Marker.parse(piece)))
        else:
            plain += piece
        begin += run
    return bytes(plain), tuple(found)
