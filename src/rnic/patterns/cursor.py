# SPDX-License-Identifier: Apache-2.0
"""Two numbers that only grow, one of each end, each of which the other end sees; and the sleep until one
grows.

Each end has a *board* of 64 bytes, which the other may use; its words are unsigned, of 8 bytes,
little-endian:

    at  0  SEEN    the peer's number, which the peer WRITEs here
    at  8  WANTED  0, or one more than the value at which the peer went to sleep, which the peer WRITEs here
    at 16  OWN     this end's number, which the peer may READ
    at 24  COPY    where this end READs the peer's OWN
    at 32  ASKED   what this end WRITEs to the peer's WANTED

No wake-up is lost. Whoever publishes stores OWN and WRITEs it to the peer's SEEN, and then looks at WANTED.
Whoever will sleep WRITEs the peer's WANTED, and then READs the peer's OWN, which the peer's device carries
out in this order. So either the one sees that the other sleeps, and rings; or the other sees the new number,
and does not sleep.
"""

from __future__ import annotations

import struct
from time import monotonic
from typing import TYPE_CHECKING

from rnic.patterns.ports import Look, Piece, Read, Ring, Sleep, Steps, Write
from rnic.patterns.wait import left

if TYPE_CHECKING:
    from rnic._nic.nic import MR
    from rnic.endpoint import Region
    from rnic.patterns.ports import AsyncPort, Port, Window

__all__ = ["BOARD", "Cursor", "LiarError"]

BOARD = 64  # bytes
SEEN, WANTED, OWN, COPY, ASKED = range(0, 40, 8)
_WORD = struct.Struct("<Q")
_GRACE = 1.0  # seconds that a number and a doorbell have at least


class LiarError(ConnectionError):
    """The peer has written what cannot be: a number that went back, or a length beyond its bounds."""


class Cursor:
    """This end of the two numbers, on its board: the first bytes of `mr`, as the peer's are of `remote`."""

    def __init__(self, port: Port | AsyncPort, mr: MR, remote: Window | Region, spins: int) -> None:
        """`spins`: how often spin() looks, each some 0.1 us."""
        if remote.length < BOARD:
            raise LiarError(f"the peer's memory has {remote.length} bytes, and its board needs {BOARD}")
        self._mr, self._remote, self._spins = mr, remote, spins
        self._update = port.update(mr, remote, Piece(OWN, 8, SEEN))
        self.own = 0
        """What this end has published."""
        self.told = 0
        """What the peer surely gets of it: less than `own` behind a call that was interrupted."""
        self.seen = 0
        """The peer's number, as look() saw it last."""
        self.rung = self.slept = 0

    def look(self, most: int) -> int:
        """The peer's number now; LiarError if it has gone back, or beyond `most`."""
        found: int = _WORD.unpack_from(self._mr.buf, SEEN)[0]
        if not self.seen <= found <= most:
            raise LiarError(f"the peer's number went from {self.seen} to {found}, and {most} is the most")
        self.seen = found
        return found

    @property
    def is_ready(self) -> bool:
        """Whether publish_now() may be called: all was told, and the way to the peer need not wait."""
        return self._update is not None and self.told == self.own

    def publish_now(self, number: int, offset: int = 0, length: int = 0) -> None:
        """Write these bytes, and then this end's new number, without a wait; only when it is_ready.

        If it is not ready behind that, the peer may not know yet, or asks for a doorbell: publish() again.
        """
        assert self._update is not None
        self.own = number
        buf = self._mr.buf
        _WORD.pack_into(buf, OWN, number)
        if self._update.post(offset, length):
            (wanted,) = _WORD.unpack_from(buf, WANTED)
            if not wanted or number < wanted:
                self.told = number

    def publish(self, number: int, pieces: list[Piece], until: float | None) -> Steps[None]:
        """Write these pieces, and then this end's new number.

        That has a second, or the time that is left. After TimeoutError `told` is less than `own`: publish
        both again. A peer that asks for a doorbell, and takes none, is rung again with the next number.
        """
        self.own = number
        until = None if until is None else max(until, monotonic() + _GRACE)
        _WORD.pack_into(self._mr.buf, OWN, number)
        pieces.append(Piece(OWN, 8, SEEN))
        try:
            yield Write(self._mr, self._remote, pieces, until)
        except TimeoutError:
            raise TimeoutError("the peer's device takes nothing: the next call puts it again") from None
        (wanted,) = _WORD.unpack_from(self._mr.buf, WANTED)
        if wanted and number >= wanted:
            _WORD.pack_into(self._mr.buf, WANTED, 0)
            self.rung += 1
            try:
                yield Ring(until)
            except BaseException as error:  # perhaps it has not rung: the next call does
                _WORD.pack_into(self._mr.buf, WANTED, wanted)
                if not isinstance(error, TimeoutError):
                    raise
        self.told = number

    def spin(self, value: int, most: int) -> bool:
        """Look for a while whether the peer's number is more than `value`."""
        return any(self.look(most) > value for _ in range(self._spins))

    def beyond(self, value: int, most: int, until: float | None, what: str) -> Steps[None]:
        """Wait until the peer's number is more than `value`; TimeoutError, or ConnectionError if the peer has
        closed the connection before.
        """
        if self.spin(value, most):
            return
        try:
            yield from self._sleep(value, most, until)
        except Exception as error:
            if self.look(most) > value:  # the last that it did before it said goodbye, or died
                return
            if isinstance(error, TimeoutError):
                raise TimeoutError(f"{what}: the peer did nothing in time") from None
            if isinstance(error, EOFError):
                raise ConnectionError(f"{what}: the peer has closed the connection") from None
            raise

    def _sleep(self, value: int, most: int, until: float | None) -> Steps[None]:
        while self.look(most) <= value:
            yield Look()
            if left(until) == 0:
                raise TimeoutError
            if not (yield from self._announce(value, most, until)):
                continue  # it is on its way
            if self.look(most) <= value:
                self.slept += 1
                yield Sleep(until)

    def _announce(self, value: int, most: int, until: float | None) -> Steps[bool]:
        """Say that this end will sleep at `value`; whether it may."""
        _WORD.pack_into(self._mr.buf, ASKED, value + 1)
        yield Write(self._mr, self._remote, [Piece(ASKED, 8, WANTED)], until)
        yield Read(self._mr, self._remote, Piece(COPY, 8, OWN), until)
        (theirs,) = _WORD.unpack_from(self._mr.buf, COPY)
        if theirs > most:
            raise LiarError(f"the peer's number is {theirs}, and {most} is the most")
        return bool(theirs <= value)
