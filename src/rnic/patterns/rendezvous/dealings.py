# SPDX-License-Identifier: Apache-2.0
"""One end of a rendezvous: what it says, and what it makes of what it hears. No I/O.

Its calls are generators of steps, as those of the other patterns (ports.py), but on a channel of messages:
they are carried out in a thread or in a task.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
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
_SOON = 200e-6  # seconds: about what an announcement costs
_SHARE = 0.1  # of the last message's time: as much as a READ may cost more than a WRITE
_LATEST = 5e-3  # seconds
_WORDS = 16  # that are heard at most ahead of an announcement
_MOST_INVITED = 64 << 20  # bytes: longer messages take so long that an announcement does not count
_PAUSE = 16  # long messages that come before the next is invited, as an invitation was in vain


class RendezvousStatistics(Record):
    """What an end has sent and received. Messages of measure() are none, but their bytes count."""

    eager: int
    """Messages that were sent in the channel."""
    announced: int
    """Messages that were announced to the peer, or went where it had invited them."""
    invited: int
    """Those of them that went where the peer had invited them, without an announcement."""
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
        self._room: In | None = None  # where this end has invited the next message, which may not come there
        self._invited: list[Remote] | None = None  # where the peer has invited the next one; empty: no more
        self._hopes = False  # the peer invites in time
        self._patience = _SOON  # what "in time" is, in seconds
        self._began = 0.0  # when a message of this end was announced, or began to move
        self._long = False  # the last message of recv_into() was moved there
        self._pause = 0  # so many of them are not invited
        self._ours = self._theirs = 0  # numbers of the last messages
        self._probing: int | None = None  # the number of the eager probe
        self._inbox: deque[bytes] = deque()
        self._landed: int | None = None  # bytes of the message that has come into the buffer of recv_into()
        self._nonce: bytes | None = None
        self._measured = False
        self._measuring = False
        self._backlog = self._eager = self._announced = self._used = 0
        self._received = self._moved = self._copied = 0

    def statistics(self) -> RendezvousStatistics:
        """What it has done so far."""
        sent = self._eager, self._announced, self._used
        return RendezvousStatistics(*sent, self._received, self._moved, self._copied, self._backlog)

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
        for place in self._in, self._room:
            if place is not None:
                place.release()
        self._out = self._in = self._room = None

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
                    yield from self._hear(until)
                else:
                    yield from self._take(self._in, target, until)
        finally:
            if self._room is not None and not self._room.spoiled:
                self._room.spoil()
                self._pause = _PAUSE
        if target is not None:
            self._long = self._landed is not None
            self._pause = max(0, self._pause - self._long)
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
        self._ours, self._invited = (self._ours + 1) % _NUMBERS, None
        return self._ours

    def _say(self, source: Layout, probe: bool, until: float | None) -> Steps[int]:
        """Send a message as it is; returns its number."""
        number = (self._ours + 1) % _NUMBERS
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
            yield from self._hear(until, self._patience if out.written else None)
        else:
            yield from self._write(out, out.cleared, until)

    def _begin(self, out: Out, until: float | None) -> Steps[None]:
        """Announce it, if the peer does not invite it."""
        if not out.probe:
            yield from self._wait_for_invitation(until)
        total, place = out.source.total, self._invited or ()
        if not out.probe and sum(length for _, length, _ in place) >= total:
            out.how, out.cleared, out.invited = "write", _cut(place, total), True
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
        """Hear what is here; and a little longer if the peer invites in time."""
        soon = monotonic() + (self._patience if self._hopes else 0)
        for _ in range(_WORDS):
            if self._invited is not None or self._backlog > self.max_backlog:
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

    # ------------------------------------------------------------------------------------ in

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
            room = In((self._theirs + 1) % _NUMBERS, total, None, False)
            word = self._clear(room, target, Kind.INVITE)
            self._room = room
            yield Leave(word)

    def _is_to_invite(self, target: Layout) -> bool:
        if not self._long or self._pause:
            return False
        return 0 < target.total <= _MOST_INVITED and target.pieces <= MOST_PIECES

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
            coming.spoil()
            raise

    def _clear(self, coming: In, target: Layout | None, kind: Kind = Kind.CLEAR) -> bytes:
        """Where the peer is to WRITE, or may."""
        room = coming.land(target, self.cache, TAKE_IN).remote()
        return words.pack(kind, coming.number, words.pack_pieces(_cut(room, coming.total)))

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
        self._next_is(word)
        if word.probe:
            return words.pack(Kind.DONE, word.number)
        self._put(word.body)
        return None

    def _hear_offer(self, word: Word) -> None:
        pieces = words.parse_pieces(word.body)
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
        room.total, self._in = total, room
        return self._hear_written(word)

    def _next_is(self, word: Word) -> None:
        """A message comes; not to the place where it was invited, if it is still there."""
        if self._in is not None:
            raise LiarError(f"the peer sent {word.kind.name} behind a message that it had announced")
        if word.probe and not self._measuring:
            raise LiarError("the peer sent a probe, and this end does not measure")
        self._theirs = (self._theirs + 1) % _NUMBERS
        if word.number != self._theirs:
            raise LiarError(f"the peer's message {word.number}: {self._theirs} is the next")
        if self._room is not None:
            self._room.release()
            self._room = None

    def _hear_invite(self, word: Word) -> None:
        place = words.parse_pieces(word.body) if word.body else []
        if word.number == self._ours:  # which was on its way
            self._hopes |= monotonic() - self._began < self._patience
        elif (word.number - self._ours) % _NUMBERS == 1:
            if bool(self._invited) == bool(place) or (place and self._invited is not None):
                raise LiarError(f"the peer invites message {word.number} twice, or does not want it twice")
            self._invited = place
        elif (self._ours - word.number) % _NUMBERS > _NUMBERS // 2:
            raise LiarError(f"the peer invites message {word.number}, and {self._ours} was the last")

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
            self._patience = min(max(_SOON, _SHARE * (monotonic() - self._began)), _LATEST)
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
    Kind.INVITE: Dealings._hear_invite,
    Kind.FILLED: Dealings._hear_filled,
}


def _cut(pieces: Sequence[Remote], total: int) -> list[Remote]:
    """The first `total` bytes of these."""
    found = []
    for addr, length, rkey in pieces:
        if total:
            found.append(Remote(addr, min(length, total), rkey))
            total -= found[-1].length
    return found
