# SPDX-License-Identifier: Apache-2.0
"""One end of a rendezvous: what it says, and what it makes of what it hears. No I/O.

Its calls are generators of steps, as those of the other patterns (ports.py), but on a channel of messages:
they are carried out in a thread or in a task.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from rnic.endpoint.errors import MessageTooLongError
from rnic.patterns.cursor import LiarError
from rnic.patterns.rendezvous import words
from rnic.patterns.rendezvous.base import TOLL
from rnic.patterns.rendezvous.giving import Giving
from rnic.patterns.rendezvous.steps import Hear, Leave
from rnic.patterns.rendezvous.taking import Taking
from rnic.patterns.rendezvous.words import Kind, Word

if TYPE_CHECKING:
    from rnic.patterns.rendezvous.layout import Layout
    from rnic.patterns.rendezvous.steps import Steps

__all__ = ["Dealings"]

T = TypeVar("T")


class Dealings(Giving, Taking):
    """The calls of an end, and the words that are about no message."""

    def send(self, source: Layout, until: float | None) -> Steps[None]:
        """Send a message."""
        yield from self._while_open(self._send(source, until))

    def settle(self, until: float | None) -> Steps[None]:
        """Wait until the peer has the message of an earlier call, which ended too soon."""
        yield from self._while_open(self._settle(until))

    def _while_open(self, steps: Steps[T]) -> Steps[T]:
        """What needs the peer's end to be open."""
        try:
            return (yield from steps)
        except EOFError:
            self.let_go()
            raise ConnectionError("the peer has closed its end, and takes no message") from None

    def _settle(self, until: float | None) -> Steps[None]:
        while self._out is not None:
            yield from self._go_on(self._out, until)

    def _send(self, source: Layout, until: float | None) -> Steps[None]:
        yield from self._greet(until)
        yield from self._settle(until)
        assert self._longest is not None
        if source.total > self._longest:
            most = self._longest
            raise MessageTooLongError(f"a message of {source.total} bytes: the peer takes {most} at most")
        self._copied += source.copied
        threshold = self.threshold
        if not source.total or (threshold is not None and source.total < threshold):
            yield from self._say(source, False, until)
            self._eager += 1
        else:
            yield from self._announce(source, False, until)
            self._announced += 1

    def recv(self, target: Layout | None, until: float | None) -> Steps[bytes | int]:
        """The next message, or its length if it came into the target."""
        self._landed = None
        yield from self._greet(until)
        try:
            while not self._inbox and self._landed is None:
                if self._in is None:
                    yield from self._invite(target)
                    yield from self._hear(until, self._polls())
                else:
                    yield from self._take(self._in, target, until)
        finally:
            self._end_invitation()
        if target is not None:
            self._note_kind(self._landed is not None)
        if self._landed is not None:
            self._received += 1
            return self._landed
        if target is not None:
            self._check_room(len(self._inbox[0]), target)
        self._received += 1
        message = self._inbox.popleft()
        self._backlog -= len(message) + TOLL
        if target is None:
            return message
        target.put(message)
        return len(message)

    def _greet(self, until: float | None) -> Steps[None]:
        if not self._greeted:
            self._greeted = True
            yield Leave(words.pack_hello(self.max_message))
        while self._longest is None:
            yield from self._hear(until)

    def _hear(self, until: float | None, spin: float | None = None) -> Steps[None]:
        """Wait for the peer's next word, and act on it."""
        if self._backlog > self.max_backlog:
            raise BufferError(
                f"messages of {self._backlog} bytes wait here, and max_backlog is {self.max_backlog}: "
                "take them by recv()"
            )
        word = words.parse((yield Hear(until, spin)))
        if (self._longest is None) != (word.kind is Kind.HELLO):
            raise LiarError(f"the peer sent {word.kind.name}: its first word is HELLO, and no other one")
        if (answer := _HEARD[word.kind](self, word)) is not None:
            yield Leave(answer)
        if (coming := self._in) is not None and coming.held is None and self._takes_now(coming):
            if coming.pieces is not None:
                yield from self._fetch(coming, coming.pieces, None, until)
            else:
                yield Leave(self._clear(coming, None))

    def _hear_hello(self, word: Word) -> None:
        takes = self._peer_takes()
        if takes is None or takes[1] < words.LONGEST:
            raise LiarError(f"the peer's channel takes too short messages: {words.LONGEST} bytes are needed")
        self._longest = words.parse_hello(word.body)

    def _hear_measure(self, word: Word) -> None:
        if self._nonce is not None:
            raise LiarError("the peer says twice that it measures")
        self._nonce = word.body

    def _hear_measured(self, _: Word) -> None:
        if not self._measuring or self._measured:
            raise LiarError("the peer says that it has measured, and this end does not")
        self._measured = True


_HEARD: dict[Kind, Callable[[Dealings, Word], bytes | None]] = {
    Kind.HELLO: Dealings._hear_hello,
    Kind.EAGER: Dealings._hear_eager,
    Kind.OFFER: Dealings._hear_offer,
    Kind.ASK: Dealings._hear_ask,
    Kind.CLEAR: Dealings._hear_clear,
    Kind.WRITTEN: Dealings._hear_written,
    Kind.DONE: Dealings._hear_done,
    Kind.MEASURE: Dealings._hear_measure,
    Kind.MEASURED: Dealings._hear_measured,
    Kind.INVITE: Dealings._hear_invite,
    Kind.FILLED: Dealings._hear_filled,
}
