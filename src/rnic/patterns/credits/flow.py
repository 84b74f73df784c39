# SPDX-License-Identifier: Apache-2.0
"""The protocol of a channel: which SEND may go next, and what one that came in means. No I/O, no clock."""

from __future__ import annotations

import struct
from collections import deque
from enum import IntEnum
from typing import TYPE_CHECKING

from rnic.endpoint.buffers import EMPTY, flat
from rnic.endpoint.errors import AbortedError, MessageTooLongError, Reason
from rnic.patterns.cursor import LiarError
from rnic.records import Record

if TYPE_CHECKING:
    from collections.abc import Callable

    from rnic.endpoint.buffers import AnyBuffer

__all__ = ["ChannelStatistics", "Flow", "Kind"]

HEADER = struct.Struct("<BxHI")
_HELLO = struct.Struct("<4sHHII")
_MAGIC, _VERSION = b"rnCF", 1
LEAST_RECEIVES, LEAST_SIZE = 3, 64
LEAST_RETURN = 2  # credits by a CREDIT, which takes one itself: so they come to an end
_LONGEST_TEXT = 256  # bytes of an ABORT's
_TOLL = 64  # bytes as which a message counts in the backlog, beside its own


class Kind(IntEnum):
    """The first byte of a SEND."""

    HELLO = 1
    PIECE = 2
    CREDIT = 3
    END = 4
    SEEN = 5
    ABORT = 6


_BARE = frozenset({Kind.CREDIT, Kind.END, Kind.SEEN})  # nothing stands behind their header


class ChannelStatistics(Record):
    """What a channel has sent and received."""

    sends: int
    """SENDs of any kind."""
    credit_sends: int
    """Those that returned credits and nothing else."""
    arrived: int
    """SENDs that came in."""
    credits: int
    """SENDs that this end may post now; the last one only to return credits."""
    backlog: int
    """Bytes of messages that came, and that the program has not taken; each counts as 64 more."""


class _Message:
    """One that is on its way out."""

    def __init__(self, message: AnyBuffer, begins: Callable[[], object] | None) -> None:
        self.left = flat(message, "send()")
        self.begun = False
        self._begins = begins

    def begin(self) -> None:
        if not self.begun:
            self.begun = True
            if self._begins is not None:
                self._begins()


class Flow:
    """One end of a channel.

    The driver posts `receives_to_post()` receives, and after that what `next_send()` gives, on one queue
    pair; it tells each SEND that comes in by receive(). A LiarError of receive() ends the channel: fail()
    tells the peer.
    """

    def __init__(self, receives: int, size: int, max_message: int, max_backlog: int) -> None:
        if not LEAST_RECEIVES <= receives <= 0xFFFF:
            raise ValueError(f"{receives} receives: give {LEAST_RECEIVES} to 65535")
        if not LEAST_SIZE <= size <= 1 << 30:
            raise ValueError(f"receives of {size} bytes: give {LEAST_SIZE} to 2**30")
        if not 0 <= max_message < 1 << 32:
            raise ValueError(f"max_message {max_message}: give 0 to 2**32 - 1")
        if max_backlog < 0:
            raise ValueError(f"max_backlog {max_backlog}: give bytes from 0 on")
        self.receives, self.size, self.max_message, self.max_backlog = (
            receives,
            size,
            max_message,
            max_backlog,
        )
        self.error: Exception | None = None
        """Why the channel is over."""
        self.ended = False
        """The peer has sent END: no further message begins."""
        self.wanted = 0
        """How many calls wait for a message."""
        self._peer: tuple[int, int, int] | None = None  # its receives, their size, its longest message
        self._credits = 1  # for the HELLO
        self._granted = receives  # SENDs that the peer may have sent in all
        self._arrived = self._to_post = self._held = self._owed = 0
        self._out: deque[_Message] = deque()
        self._said_hello = self._end_due = self._said_end = self._said_seen = self._confirmed = False
        self._parting: str | None = None
        self._inbox: deque[bytes] = deque()
        self._backlog = 0
        self._dropping = False
        self._part = bytearray()  # of the message that is coming
        self._rest = 0  # bytes of it that are missing
        self._sends = self._credit_sends = 0

    def statistics(self) -> ChannelStatistics:
        """What it has done so far."""
        waiting = self._backlog + len(self._part)
        return ChannelStatistics(self._sends, self._credit_sends, self._arrived, self._credits, waiting)

    # ------------------------------------------------------------------------------------ out

    def queue(self, message: AnyBuffer, begins: Callable[[], object] | None = None) -> _Message:
        """A message is to go; its buffer must stay as it is until is_sent(), or take_back().

        begins: called when its first piece goes, behind which take_back() does not take it back.
        """
        if self.error is not None:
            raise self.error
        if self._end_due:
            raise ValueError("send() after close(): this end has said that no message follows")
        handle = _Message(message, begins)
        self._check(handle)
        self._out.append(handle)
        return handle

    def _check(self, handle: _Message) -> None:
        most = 0xFFFFFFFF if self._peer is None else self._peer[2]
        if len(handle.left) > most:
            raise MessageTooLongError(f"a message of {len(handle.left)} bytes: the peer takes {most} at most")

    def is_sent(self, handle: _Message) -> bool:
        """Whether next_send() has given all of it; raises what has ended the channel."""
        if handle not in self._out:
            return True
        if self.error is not None:
            raise self.error
        if not handle.begun:
            self._check(handle)
        return False

    def take_back(self, handle: _Message) -> None:
        """Its call is over: it does not go, or if it has begun, what is left of it is copied, and goes."""
        if handle.begun:
            handle.left = memoryview(bytes(handle.left))
        elif handle in self._out:
            self._out.remove(handle)

    def end(self) -> None:
        """No message follows those that are queued."""
        self._end_due = True

    def fail(self, error: Exception, tell: str | None = None) -> None:
        """The channel is over; next_send() gives an ABORT that tells the peer this text, if there is a
        credit.
        """
        if self.error is None:
            self.error, self._parting = error, tell

    @property
    def peer(self) -> tuple[int, int] | None:
        """Bytes of the peer's receives, and of the longest message that it takes; None ahead of its HELLO."""
        return None if self._peer is None else self._peer[1:]

    @property
    def finished(self) -> bool:
        """Both ends have said END, and have seen the other's: all has arrived, both ways."""
        return self._confirmed and self._said_seen

    @property
    def parting(self) -> bool:
        """It matters when what was given to the driver last has arrived."""
        return self._said_end or self.error is not None

    def next_send(self) -> tuple[bytes, memoryview] | None:
        """The next SEND: its header, and what stands behind it; None if none may go now."""
        if self.error is not None:
            return self._abort()
        if not self._said_hello:
            self._said_hello = True
            hello = _HELLO.pack(_MAGIC, _VERSION, self.receives, self.size, self.max_message)
            return self._spend(Kind.HELLO, 0, memoryview(hello))
        if self._peer is not None and self._credits > 1:
            if self._out:
                return self._piece(self._out[0], self._peer[1])
            if self._end_due and not self._said_end:
                self._said_end = True
                return self._spend(Kind.END)
            if self.ended and not self._said_seen:
                self._said_seen = True
                return self._spend(Kind.SEEN)
        if self._credits and self._owed >= max(LEAST_RETURN, self.receives // 2):
            self._credit_sends += 1
            return self._spend(Kind.CREDIT)
        return None

    def _piece(self, message: _Message, size: int) -> tuple[bytes, memoryview] | None:
        rest = len(message.left)
        piece = message.left[: min(size, self.size) - HEADER.size]
        message.begin()
        message.left = message.left[len(piece) :]
        if not message.left:
            self._out.popleft()
        return self._spend(Kind.PIECE, rest, piece)

    def _abort(self) -> tuple[bytes, memoryview] | None:
        text, self._parting = self._parting, None
        if text is None or not self._credits:
            return None
        room = min(self.size, LEAST_SIZE if self._peer is None else self._peer[1]) - HEADER.size
        short = text.encode()[: min(room, _LONGEST_TEXT)].decode(errors="ignore")
        return self._spend(Kind.ABORT, 0, memoryview(short.encode()))

    def _spend(self, kind: Kind, rest: int = 0, body: memoryview = EMPTY) -> tuple[bytes, memoryview]:
        header = HEADER.pack(kind, self._owed, rest)
        self._granted += self._owed
        self._owed = 0
        self._credits -= 1
        self._sends += 1
        return header, body

    # ------------------------------------------------------------------------------------ in

    def receives_to_post(self) -> int:
        """How many receives to post again now; the caller does it before it asks for the next SEND."""
        if self._held and not self._is_full():
            self._to_post += self._held
            self._held = 0
        count, self._to_post = self._to_post, 0
        self._owed += count
        return count

    def _is_full(self) -> bool:
        return self._backlog + len(self._part) > self.max_backlog and bool(self._inbox or not self.wanted)

    def receive(self, data: bytes) -> None:
        """A SEND has come in; raises LiarError."""
        self._arrived += 1
        if self.error is not None:
            return
        if self._arrived > self._granted:
            raise LiarError("the peer sent without a credit")
        if len(data) < HEADER.size:
            raise LiarError(f"the peer sent {len(data)} bytes, which are no header")
        number, credit, rest = HEADER.unpack_from(data)
        if number not in iter(Kind):
            raise LiarError(f"the peer sent kind {number}, which is not known")
        if number == Kind.CREDIT and credit < LEAST_RETURN:
            raise LiarError(f"the peer sent a CREDIT of {credit}: it returns {LEAST_RETURN} at least")
        self._take_in(Kind(number), rest, data[HEADER.size :])
        self._gain(credit)
        if number == Kind.PIECE and self._is_full():
            self._held += 1
        else:
            self._to_post += 1

    def _take_in(self, kind: Kind, rest: int, body: bytes) -> None:
        if (self._peer is None) != (kind is Kind.HELLO) and kind is not Kind.ABORT:
            raise LiarError(f"the peer sent a {kind.name}: its first SEND is a HELLO, and no other one")
        if (rest and kind is not Kind.PIECE) or (body and kind in _BARE):
            raise LiarError(f"the peer sent a {kind.name} with {rest} and {len(body)} bytes")
        match kind:
            case Kind.HELLO:
                self._hello(body)
            case Kind.PIECE:
                self._take_piece(rest, body)
            case Kind.END:
                self._take_end()
            case Kind.SEEN:
                self._take_seen()
            case Kind.ABORT:
                text = body[:_LONGEST_TEXT].decode(errors="replace")
                self.error = AbortedError(f"the peer ended the channel: {text}", Reason.APPLICATION)

    def _gain(self, credit: int) -> None:
        self._credits += credit
        if self._peer is not None and self._credits > self._peer[0]:
            raise LiarError(f"the peer gave {self._credits} credits: it has {self._peer[0]} receives")

    def _hello(self, body: bytes) -> None:
        if len(body) != _HELLO.size:
            raise LiarError(f"a HELLO of {len(body)} bytes: it has {_HELLO.size}")
        magic, version, receives, size, longest = _HELLO.unpack(body)
        if magic != _MAGIC or version != _VERSION:
            raise LiarError(f"the peer's HELLO is {magic!r} {version}: this end speaks {_MAGIC!r} {_VERSION}")
        if receives < LEAST_RECEIVES or not LEAST_SIZE <= size <= 1 << 30:
            raise LiarError(
                f"the peer has {receives} receives of {size} bytes: {LEAST_RECEIVES} of {LEAST_SIZE}"
            )
        self._peer = receives, size, longest
        self._credits += receives - 1  # its HELLO, or this end's, takes one

    def _take_piece(self, rest: int, body: bytes) -> None:
        if self.ended:
            raise LiarError("the peer sent a message after its END")
        if self._rest and rest != self._rest:
            raise LiarError(f"a piece that says {rest} bytes are left of its message: {self._rest} are")
        if rest > self.max_message:
            raise LiarError(f"a message of {rest} bytes: {self.max_message} is the longest")
        if len(body) > rest or bool(rest) != bool(len(body)):
            raise LiarError(f"a piece of {len(body)} bytes, where {rest} are left of its message")
        self._rest = rest - len(body)
        if not self._rest and not self._part:
            self._put(body)
            return
        self._part += body
        if not self._rest:
            self._put(bytes(self._part))
            self._part = bytearray()

    def _put(self, message: bytes) -> None:
        if not self._dropping:
            self._inbox.append(message)
            self._backlog += len(message) + _TOLL

    def _take_end(self) -> None:
        if self.ended or self._rest:
            raise LiarError("the peer sent END twice, or inside a message")
        self.ended = True

    def _take_seen(self) -> None:
        if self._confirmed or not self._said_end:
            raise LiarError("the peer says that it has seen an END, which this end did not send")
        self._confirmed = True

    @property
    def is_waiting(self) -> bool:
        """Whether take() has a message."""
        return bool(self._inbox)

    def take(self) -> bytes | None:
        """The next message, None if it is not here; EOFError behind the last one, or what ended the
        channel.
        """
        if not self.has_next():
            return None
        message = self._inbox[0]
        size = len(message) + _TOLL
        del self._inbox[0]  # from here on no call, behind which an exception of a signal's handler could come
        self._backlog -= size
        return message

    def has_next(self) -> bool:
        """Whether take() returns a message; raises as take()."""
        if self._inbox:
            return True
        if self.error is not None:
            raise self.error
        if self.ended:
            raise EOFError("the peer has closed its end of the channel")
        return False

    def drop(self) -> None:
        """The program takes no messages any more: those that are here, and that come, are dropped."""
        self._dropping = True
        self._inbox.clear()
        self._backlog = 0
        self.wanted += 1
