# SPDX-License-Identifier: Apache-2.0
"""The side of an end that sends messages."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from rnic.enums import AccessFlags, WROpcode
from rnic.patterns.cursor import LiarError
from rnic.patterns.rendezvous import words
from rnic.patterns.rendezvous.base import LATEST, NUMBERS, SOON, Base, near
from rnic.patterns.rendezvous.layout import Layout, cut, requests
from rnic.patterns.rendezvous.sides import HAND_OUT, Out
from rnic.patterns.rendezvous.steps import Leave, More, Move, Say
from rnic.patterns.rendezvous.words import MOST_PIECES, Kind, Word

if TYPE_CHECKING:
    from rnic.patterns.rendezvous.layout import Remote
    from rnic.patterns.rendezvous.steps import Steps

__all__ = ["Giving"]

_NOBODY = AccessFlags(0)
_SHARE = 0.1  # of the last message's time: as much as a READ may cost more than a WRITE
_WORDS = 16  # that are heard at most ahead of an announcement


class Giving(Base):
    """Messages go as they are, where the peer has invited them, or after an announcement."""

    def _next_number(self) -> int:
        self._ours, self._invited = self._ours + 1, None
        return self._ours % NUMBERS

    def _say(self, source: Layout, probe: bool, until: float | None) -> Steps[int]:
        """Send a message as it is; returns its number."""
        number = (self._ours + 1) % NUMBERS
        message = source.join(words.pack(Kind.EAGER, number, probe=probe))
        yield Say(message, until, self._next_number)
        return number

    def _announce(self, source: Layout, probe: bool, until: float | None) -> Steps[None]:
        """Announce a message, and wait until the peer has it."""
        self._out = out = Out(self.how, source, probe)
        try:
            while self._out is out:
                yield from self._go_on(out, until)
        except (ConnectionError, EOFError):
            raise  # the channel is over
        except BaseException as error:
            if out.number is None and isinstance(error, Exception):
                self._out = None  # it cannot be announced
            elif self._out is out:
                self._copied += out.step_aside()
            if isinstance(error, TimeoutError):
                raise TimeoutError("send: the peer has not taken the message; a copy waits for it") from None
            raise

    def _go_on(self, out: Out, until: float | None) -> Steps[None]:
        """The next step of the announced message."""
        if out.number is None:
            yield from self._begin(out, until)
        elif out.cleared is None:
            yield from self._hear(until, self._patience if out.written else self._answer)
        else:
            yield from self._write(out, out.cleared, until)

    def _begin(self, out: Out, until: float | None) -> Steps[None]:
        """Announce it, if the peer does not invite it."""
        if not out.probe:
            yield from self._wait_for_invitation(until)
        total, place = out.source.total, self._invited or ()
        if not out.probe and sum(length for _, length, _ in place) >= total:
            out.how, out.cleared, out.invited = "write", cut(place, total), True
            out.number = self._next_number()
            self._used += 1
            self._began = monotonic()
            return
        if out.how == "write":
            kind, body = Kind.ASK, words.pack_ask(total)
        else:
            if out.source.pieces > MOST_PIECES:
                self._copied += total
                out.source = Layout(out.source.join(b""), "send()", False)
            out.held = out.source.hold(self.cache, HAND_OUT, True)
            kind, body = Kind.OFFER, words.pack_pieces(out.held.remote())
        out.number = self._next_number()
        self._began = monotonic()
        yield Leave(words.pack(kind, out.number, body, out.probe))

    def _wait_for_invitation(self, until: float | None) -> Steps[None]:
        """Hear what is here; and if the peer invites in time, a little longer."""
        soon = monotonic() + (self._patience if self._hopes else 0)
        for _ in range(_WORDS):
            if self._backlog > self.max_backlog:
                return
            if self._invited is not None and not (yield More()):  # it may be withdrawn already
                return
            try:
                yield from self._hear(soon if until is None else min(soon, until), self._patience)
            except TimeoutError:
                self._hopes = False
                return

    def _write(self, out: Out, place: list[Remote], until: float | None) -> Steps[None]:
        """WRITE it where the peer wants it."""
        held = out.source.hold(self.cache, _NOBODY, False)
        try:
            wrs = requests(WROpcode.RDMA_WRITE, held.pieces, place, self._max_sge)
            yield Move(wrs, until, lambda: self._written(out))
        finally:
            held.release()

    def _written(self, out: Out) -> bytes:
        """All requests are posted, and this follows."""
        assert out.number is not None
        total, invited = out.source.total, out.invited
        self._moved += total
        out.cleared, out.invited, out.written = None, False, True
        if invited:
            return words.pack(Kind.FILLED, out.number, words.pack_ask(total))
        return words.pack(Kind.WRITTEN, out.number)

    def _hear_clear(self, word: Word) -> None:
        out, pieces = self._out, words.parse_pieces(word.body)
        if out is None or out.number != word.number or out.how == "read" or out.cleared is not None:
            raise LiarError(f"the peer makes room for message {word.number}, which was not asked for")
        if (total := sum(length for _, length, _ in pieces)) != out.source.total:
            raise LiarError(f"the peer has room for {total} bytes: the message has {out.source.total}")
        out.cleared, out.written = pieces, False

    def _hear_done(self, word: Word) -> None:
        out = self._out
        if self._probing == word.number:
            self._probing = None
        elif out is not None and out.number == word.number and (out.how == "read" or out.written):
            if out.held is not None:
                out.held.release()
            self._out = None
            took = monotonic() - self._began
            self._patience = min(max(SOON, _SHARE * took), LATEST)
            self._answer = None if out.written else near(took)
        else:
            raise LiarError(f"the peer says that it has message {word.number}, which it was not given")

    def _hear_invite(self, word: Word) -> None:
        place = words.parse_pieces(word.body) if word.body else []
        ahead = (word.number - self._ours) % NUMBERS
        if 1 < ahead < NUMBERS // 2:
            raise LiarError(
                f"the peer invites message {word.number}, and {self._ours % NUMBERS} was the last"
            )
        self._invitations += bool(place)
        if self._may_withdraw < (not place) or self._invitations > self._ours + 1:
            raise LiarError(f"the peer invites message {word.number} too often")
        self._may_withdraw = bool(place)
        if ahead == 1:
            self._invited = place
        elif ahead == 0:  # it was sent ahead of the invitation
            self._hopes |= monotonic() - self._began < self._patience
