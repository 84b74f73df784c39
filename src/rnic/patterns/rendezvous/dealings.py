# SPDX-License-Identifier: Apache-2.0
"""One end of a rendezvous: what it says, and what it makes of what it hears. No I/O.

Its calls are generators of steps, as those of the other patterns (ports.py), but on a channel of messages:
they are carried out in a thread or in a task.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from rnic.endpoint.errors import MessageTooLongError
from rnic.enums import AccessFlags, WROpcode
from rnic.patterns.cursor import LiarError
from rnic.patterns.rendezvous import words
from rnic.patterns.rendezvous.layout import Layout, Remote, requests
from rnic.patterns.rendezvous.sides import FILL, HAND_OUT, TAKE_IN, In, Out
from rnic.patterns.rendezvous.steps import Hear, Leave, Move, Say
from rnic.patterns.rendezvous.words import MOST_PIECES, Kind, Word
from rnic.records import Record

if TYPE_CHECKING:
    from rnic.patterns.rendezvous.cache import RegistrationCache
    from rnic.patterns.rendezvous.sides import How
    from rnic.patterns.rendezvous.steps import Steps

__all__ = ["Dealings", "RendezvousStatistics"]

T = TypeVar("T")
_NOBODY = AccessFlags(0)
_NUMBERS = 1 << 32
_TOLL = 64  # bytes as which a waiting message counts, beside its own


class RendezvousStatistics(Record):
    """What an end has sent and received. Messages of measure() are none, but their bytes count."""

    eager: int
    """Messages that were sent in the channel."""
    announced: int
    """Messages that were announced to the peer."""
    received: int
    """Messages that came."""
    moved: int
    """Bytes that this end has moved by READ or WRITE."""
    copied: int
    """Bytes of arrays that were copied, as they cannot be used where they lie, or as a call ended early."""
    backlog: int
    """Bytes of messages that came, and that the program has not taken; each counts as 64 more."""


class Dealings:
    """One end, whose calls are done one at a time.

    max_sge: elements of a request. peer_takes: bytes of the peer's receives and of the longest message of the
    channel, None as long as they are not known.
    """

    def __init__(
        self,
        how: How,
        threshold: int | None,
        max_message: int,
        max_backlog: int,
        cache: RegistrationCache,
        max_sge: int,
        peer_takes: Callable[[], tuple[int, int] | None],
    ) -> None:
        if how not in ("read", "write"):
            raise ValueError(f"how {how!r}: give 'read' or 'write'")
        sizes = {"threshold": threshold or 0, "max_message": max_message, "max_backlog": max_backlog}
        for name, value in sizes.items():
            if not 0 <= value < 1 << 63:
                raise ValueError(f"{name} {value}: give bytes from 0 on")
        self.how, self.max_message, self.max_backlog, self.cache = how, max_message, max_backlog, cache
        self.chosen = threshold
        self._max_sge, self._peer_takes = max_sge, peer_takes
        self._longest: int | None = None  # what the peer takes
        self._greeted = False
        self._out: Out | None = None
        self._in: In | None = None
        self._ours = self._theirs = 0  # numbers of the last messages that are to be answered
        self._probing: int | None = None  # the number of the eager probe
        self._inbox: deque[bytes] = deque()
        self._landed: int | None = None  # bytes of the message that has come into the buffer of recv_into()
        self._nonce: bytes | None = None
        self._measured = False
        self._measuring = False
        self._backlog = self._eager = self._announced = self._received = self._moved = self._copied = 0

    def statistics(self) -> RendezvousStatistics:
        """What it has done so far."""
        return RendezvousStatistics(
            self._eager, self._announced, self._received, self._moved, self._copied, self._backlog
        )

    @property
    def threshold(self) -> int | None:
        """From how many bytes on a message is announced."""
        if (takes := self._peer_takes()) is None:
            return self.chosen
        size, longest = takes
        one_send = size - 2 * words.HEADER.size  # behind the channel's header and its own
        return min(one_send + 1 if self.chosen is None else self.chosen, longest - words.HEADER.size + 1)

    def let_go(self) -> None:
        """The channel is over: what the peer could use is taken back."""
        if self._out is not None and self._out.held is not None:
            self._out.held.release()
        if self._in is not None:
            self._in.release()
        self._out = self._in = None

    # ------------------------------------------------------------------------------------ calls

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
            yield Say(source.join(words.pack(Kind.EAGER)), until)
            self._eager += 1
        else:
            yield from self._announce(source, False, until)
            self._announced += 1

    def recv(self, target: Layout | None, until: float | None) -> Steps[bytes | int]:
        """The next message, or its length if it came into the target."""
        self._landed = None
        yield from self._greet(until)
        while not self._inbox and self._landed is None:
            if self._in is None:
                yield from self._hear(until)
            else:
                yield from self._take(self._in, target, until)
        if self._landed is not None:
            self._received += 1
            return self._landed
        if target is not None:
            self._check_room(len(self._inbox[0]), target)
        self._received += 1
        message = self._inbox.popleft()
        self._backlog -= len(message) + _TOLL
        if target is None:
            return message
        target.put(message)
        return len(message)

    # ------------------------------------------------------------------------------------ out

    def _greet(self, until: float | None) -> Steps[None]:
        if not self._greeted:
            self._greeted = True
            yield Leave(words.pack_hello(self.max_message))
        while self._longest is None:
            yield from self._hear(until)

    def _next_number(self) -> int:
        self._ours = (self._ours + 1) % _NUMBERS
        return self._ours

    def _announce(self, source: Layout, probe: bool, until: float | None) -> Steps[None]:
        """Announce a message, and wait until the peer has it."""
        out = Out(self._next_number(), self.how, source)
        if self.how == "read":
            if source.pieces > MOST_PIECES:
                self._copied += source.total
                out.source = source = Layout(source.join(b""), "send()", False)
            out.held = source.hold(self.cache, HAND_OUT, True)
            word = words.pack(Kind.OFFER, out.number, words.pack_pieces(out.held.remote()), probe)
        else:
            word = words.pack(Kind.ASK, out.number, words.pack_ask(source.total), probe)
        self._out = out
        try:
            yield Leave(word)
            while self._out is out:
                yield from self._go_on(out, until)
        except (ConnectionError, EOFError):
            raise  # the channel is over
        except BaseException as error:
            if self._out is out:
                self._copied += out.step_aside()
            if isinstance(error, TimeoutError):
                raise TimeoutError("send: the peer has not taken the message; a copy waits for it") from None
            raise

    def _go_on(self, out: Out, until: float | None) -> Steps[None]:
        """The next step of the announced message."""
        if out.cleared is None:
            yield from self._hear(until)
            return
        with_these = out.source.hold(self.cache, _NOBODY, False)
        try:
            yield Move(requests(WROpcode.RDMA_WRITE, with_these.pieces, out.cleared, self._max_sge), until)
        finally:
            with_these.release()
        self._moved += out.source.total
        out.cleared, out.written = None, True
        yield Leave(words.pack(Kind.WRITTEN, out.number))

    # ------------------------------------------------------------------------------------ in

    def _check_room(self, length: int, target: Layout) -> None:
        if length > target.total:
            raise ValueError(
                f"recv_into(): the next message has {length} bytes and the buffer {target.total}: "
                "the message stays, give a larger buffer or call recv()"
            )

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

    def _be_written(self, coming: In, target: Layout | None, until: float | None) -> Steps[None]:
        """Wait until the peer has written it."""
        try:
            if coming.held is None:
                yield Leave(self._clear(coming, target))
            yield from self._hear(until)
        except BaseException:
            if coming.target is not None and coming.held is not None and not coming.spoiled:
                coming.held.move_away()
                coming.target, coming.spoiled = None, True
            raise

    def _clear(self, coming: In, target: Layout | None) -> bytes:
        """Where the peer is to WRITE."""
        room = coming.land(target, self.cache, TAKE_IN).remote()
        return words.pack(Kind.CLEAR, coming.number, words.pack_pieces(_cut(room, coming.total)))

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
        self._backlog += len(message) + _TOLL

    # ------------------------------------------------------------------------------------ what the peer says

    def _hear(self, until: float | None) -> Steps[None]:
        """Wait for the peer's next word, and act on it."""
        if self._backlog > self.max_backlog:
            raise BufferError(
                f"messages of {self._backlog} bytes wait here, and max_backlog is {self.max_backlog}: "
                "take them by recv()"
            )
        word = words.parse((yield Hear(until)))
        if (self._longest is None) != (word.kind is Kind.HELLO):
            raise LiarError(f"the peer sent {word.kind.name}: its first word is HELLO, and no other one")
        if (answer := _HEARD[word.kind](self, word)) is not None:
            yield Leave(answer)
        if (coming := self._in) is not None and coming.held is None and self._takes_now(coming):
            if coming.pieces is not None:
                yield from self._fetch(coming, coming.pieces, None, until)
            else:
                yield Leave(self._clear(coming, None))

    def _takes_now(self, coming: In) -> bool:
        """Whether a message is taken before recv() asks: two ends that send wait for each other."""
        fits = self._backlog + coming.total + _TOLL <= self.max_backlog
        return coming.probe or (self._out is not None and fits)

    def _hear_hello(self, word: Word) -> None:
        takes = self._peer_takes()
        if takes is None or takes[1] < words.LONGEST:
            raise LiarError(f"the peer's channel takes too short messages: {words.LONGEST} bytes are needed")
        self._longest = words.parse_hello(word.body)

    def _hear_eager(self, word: Word) -> bytes | None:
        self._check_order(word)
        if not word.probe:
            self._put(word.body)
            return None
        self._count(word)
        return words.pack(Kind.DONE, word.number)

    def _hear_offer(self, word: Word) -> None:
        pieces = words.parse_pieces(word.body)
        self._announced_is(word, sum(length for _, length, _ in pieces), pieces)

    def _hear_ask(self, word: Word) -> None:
        self._announced_is(word, words.parse_ask(word.body), None)

    def _announced_is(self, word: Word, total: int, pieces: list[Remote] | None) -> None:
        self._check_order(word)
        self._count(word)
        if not 0 < total <= self.max_message:
            raise LiarError(f"the peer announced {total} bytes: this end takes 1 to {self.max_message}")
        self._in = In(word.number, total, pieces, word.probe)

    def _check_order(self, word: Word) -> None:
        if self._in is not None:
            raise LiarError(f"the peer sent {word.kind.name} behind a message that it had announced")
        if word.probe and not self._measuring:
            raise LiarError("the peer sent a probe, and this end does not measure")

    def _count(self, word: Word) -> None:
        self._theirs = (self._theirs + 1) % _NUMBERS
        if word.number != self._theirs:
            raise LiarError(f"the peer's message {word.number}: {self._theirs} is the next")

    def _hear_clear(self, word: Word) -> None:
        out, pieces = self._out, words.parse_pieces(word.body)
        if out is None or out.number != word.number or out.how == "read" or out.cleared is not None:
            raise LiarError(f"the peer makes room for message {word.number}, which was not asked for")
        if (total := sum(length for _, length, _ in pieces)) != out.source.total:
            raise LiarError(f"the peer has room for {total} bytes: the message has {out.source.total}")
        out.cleared, out.written = pieces, False

    def _hear_written(self, word: Word) -> bytes | None:
        coming = self._in
        if coming is None or coming.number != word.number or coming.pieces is not None or coming.held is None:
            raise LiarError(f"the peer says that message {word.number} is written, and this end gave no room")
        if coming.spoiled:
            coming.release()  # room is made again
            return None
        return self._has_come(coming)

    def _hear_done(self, word: Word) -> None:
        out = self._out
        if self._probing == word.number:
            self._probing = None
        elif out is not None and out.number == word.number and (out.how == "read" or out.written):
            if out.held is not None:
                out.held.release()
            self._out = None
        else:
            raise LiarError(f"the peer says that it has message {word.number}, which it was not given")

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
}


def _cut(pieces: list[Remote], total: int) -> list[Remote]:
    """The first `total` bytes of these."""
    found = []
    for addr, length, rkey in pieces:
        if total:
            found.append(Remote(addr, min(length, total), rkey))
            total -= found[-1].length
    return found
