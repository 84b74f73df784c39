# SPDX-License-Identifier: Apache-2.0
"""The side of an end that takes messages."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from rnic.enums import WROpcode
from rnic.patterns.cursor import LiarError
from rnic.patterns.rendezvous import words
from rnic.patterns.rendezvous.base import NUMBERS, TOLL, Base, near
from rnic.patterns.rendezvous.layout import cut, requests
from rnic.patterns.rendezvous.sides import FILL, TAKE_IN, In
from rnic.patterns.rendezvous.steps import Leave, Move
from rnic.patterns.rendezvous.words import MOST_PIECES, Kind, Word

if TYPE_CHECKING:
    from rnic.patterns.rendezvous.layout import Layout, Remote
    from rnic.patterns.rendezvous.steps import Steps

__all__ = ["Taking"]

_MOST_INVITED = 64 << 20  # bytes: longer messages take so long that an announcement does not count
_PAUSE = 16  # long messages that come before the next is invited, as an invitation was in vain


class Taking(Base):
    """Announced messages are fetched, or written by the peer; one that may come is invited."""

    def _check_room(self, length: int, target: Layout) -> None:
        if length > target.total:
            raise ValueError(
                f"recv_into(): the next message has {length} bytes and the buffer {target.total}: "
                "the message stays, give a larger buffer or call recv()"
            )

    def _invite(self, target: Layout | None) -> Steps[None]:
        """Tell the peer where the next message is wanted, if it may be a long one; or not any more."""
        if (room := self._room) is not None:
            if room.spoiled and not room.withdrawn:
                room.withdrawn = True
                yield Leave(words.pack(Kind.INVITE, room.number))
        elif target is not None and self._is_to_invite(target):
            total = min(target.total, self.max_message)
            room = In((self._theirs + 1) % NUMBERS, total, None, False)
            word = self._clear(room, target, Kind.INVITE)
            self._room = room
            self._told = monotonic()
            yield Leave(word)
            self._prepare(target)

    def _is_to_invite(self, target: Layout) -> bool:
        if not self._long or self._pause:
            return False
        if not 0 < target.total <= _MOST_INVITED or target.pieces > MOST_PIECES:
            return False
        return not self._reads_memory()  # else to READ is the quicker way

    def _polls(self) -> float | None:
        """Seconds for which the peer's next word is worth polling; None: no more than for any other."""
        if self._room is None:
            return self._next
        return None if self._room.spoiled else self._near

    def _prepare(self, target: Layout) -> None:
        """While the peer writes: the next message may come to the same place, as the last one did."""
        places = target.places
        if places == self._places:
            target.prepare(self.cache, TAKE_IN)
        self._places = places

    def _end_invitation(self) -> None:
        """The call that has invited the peer is over."""
        if self._room is not None and not self._room.spoiled:
            self._room.spoil()
            self._pause = _PAUSE

    def _note_kind(self, was_long: bool) -> None:
        """What a message of recv_into() was."""
        self._long = was_long
        self._pause = max(0, self._pause - was_long)

    def _take(self, coming: In, target: Layout | None, until: float | None) -> Steps[None]:
        """Take the announced message; it is in the inbox then, or in the target."""
        if target is not None and not coming.probe:
            self._check_room(coming.total, target)
        if coming.probe or (target is not None and coming.pieces is None and target.pieces > MOST_PIECES):
            target = None
        if coming.pieces is not None:
            yield from self._fetch(coming, coming.pieces, target, until)
        else:
            yield from self._be_written(coming, target, until)

    def _fetch(
        self, coming: In, pieces: list[Remote], target: Layout | None, until: float | None
    ) -> Steps[None]:
        """READ it."""
        held = coming.land(target, self.cache, FILL)
        try:
            yield Move(requests(WROpcode.RDMA_READ, held.pieces, pieces, self._max_sge), until)
        except BaseException:
            coming.release()  # it stays with the peer
            raise
        self._moved += coming.total
        yield Leave(self._has_come(coming))
        self._left = monotonic()

    def _be_written(self, coming: In, target: Layout | None, until: float | None) -> Steps[None]:
        """Wait until the peer has written it."""
        try:
            if coming.held is None:
                yield Leave(self._clear(coming, target))
            yield from self._hear(until)
        except BaseException:
            coming.spoil()
            raise

    def _clear(self, coming: In, target: Layout | None, kind: Kind = Kind.CLEAR) -> bytes:
        """Where the peer is to WRITE, or may."""
        room = coming.land(target, self.cache, TAKE_IN).remote()
        return words.pack(kind, coming.number, words.pack_pieces(cut(room, coming.total)))

    def _has_come(self, coming: In) -> bytes:
        """All of its bytes are here: hand it over, and answer."""
        data, target = coming.data, coming.target
        coming.release()
        self._in = None
        if target is not None:
            target.filled()
            self._landed = coming.total
        elif data is not None and not coming.probe:
            self._put(data)
        return words.pack(Kind.DONE, coming.number)

    def _put(self, message: bytes) -> None:
        self._inbox.append(message)
        self._backlog += len(message) + TOLL

    def _takes_now(self, coming: In) -> bool:
        """Whether a message is taken before recv() asks: two ends that send wait for each other."""
        fits = self._backlog + coming.total + TOLL <= self.max_backlog
        return coming.probe or (self._out is not None and fits)

    def _hear_eager(self, word: Word) -> bytes | None:
        self._next_is(word)
        if word.probe:
            return words.pack(Kind.DONE, word.number)
        self._put(word.body)
        return None

    def _hear_offer(self, word: Word) -> None:
        pieces = words.parse_pieces(word.body)
        self._next = near(monotonic() - self._left)
        self._announced_is(word, sum(length for _, length, _ in pieces), pieces)

    def _hear_ask(self, word: Word) -> None:
        self._announced_is(word, words.parse_ask(word.body), None)

    def _announced_is(self, word: Word, total: int, pieces: list[Remote] | None) -> None:
        self._next_is(word)
        if not 0 < total <= self.max_message:
            raise LiarError(f"the peer announced {total} bytes: this end takes 1 to {self.max_message}")
        self._in = In(word.number, total, pieces, word.probe)

    def _hear_filled(self, word: Word) -> bytes | None:
        if (room := self._room) is None:
            raise LiarError(f"the peer says that it has filled a place with message {word.number}: none was")
        self._room = None
        try:
            self._next_is(word)
            if not 0 < (total := words.parse_ask(word.body)) <= room.total:
                raise LiarError(f"the peer says that {total} bytes fill a place of {room.total}")
        except LiarError:
            room.release()
            raise
        self._near = near(monotonic() - self._told)
        room.total, self._in = total, room
        return self._hear_written(word)

    def _next_is(self, word: Word) -> None:
        """A message comes; not to the place where it was invited, if it is still there."""
        if self._in is not None:
            raise LiarError(f"the peer sent {word.kind.name} behind a message that it had announced")
        if word.probe and not self._measuring:
            raise LiarError("the peer sent a probe, and this end does not measure")
        self._theirs += 1
        if word.number != self._theirs % NUMBERS:
            raise LiarError(f"the peer's message {word.number}: {self._theirs % NUMBERS} is the next")
        if self._room is not None:
            self._room.release()
            self._room = None

    def _hear_written(self, word: Word) -> bytes | None:
        coming = self._in
        if coming is None or coming.number != word.number or coming.pieces is not None or coming.held is None:
            raise LiarError(f"the peer says that message {word.number} is written, and this end gave no room")
        if coming.spoiled:
            coming.release()  # room is made again
            return None
        return self._has_come(coming)
