# SPDX-License-Identifier: Apache-2.0
"""Both ends of lab 3 without I/O: what came goes in, what is to be done comes out.

Each end is a table: (state, input) > (action, next state), and its actions are methods.  A message that is
not in the row of a state breaks the protocol.  docs/lab3.md is held against these tables by a test.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from enum import Enum
from typing import Generic, TypeVar

from rnic.cli.lab3 import messages
from rnic.cli.lab3.faults import Code, Fault
from rnic.cli.lab3.messages import (
    ID_BYTES,
    VERSION,
    Announce,
    Done,
    Error,
    Id,
    Key,
    Message,
    Region,
    Verdict,
    padded,
    unpadded,
)
from rnic.records import Record


class Input(Enum):
    """What moves an end: a message, or something that its driver has done."""

    ANNOUNCE = "ANNOUNCE"
    REGION = "REGION"
    DONE = "DONE"
    GOOD = "VERDICT good"
    BAD = "VERDICT bad"
    ID = "ID"
    KEY = "KEY"
    ERROR = "ERROR"

    CONNECTED = "connected"
    WRITTEN = "the chunk is written"
    STORED_SOME = "the chunk is stored, more are to come"
    STORED_GOOD = "the last chunk is stored, and the hash is right"
    STORED_BAD = "the last chunk is stored, and the hash is wrong"


def input_of(message: Message) -> Input:
    """The input that a message is."""
    if isinstance(message, Verdict):
        return Input.GOOD if message.good else Input.BAD
    return Input[message.type.name]


class SenderState(Enum):
    """Where the sender stands; the value says what it is doing."""

    NEW = "connecting"
    ANNOUNCED = "waiting for the receiver's region"
    WRITING = "writing to the region"
    TOLD = "waiting for the next region or the verdict"
    IDENTIFIED = "waiting for the secret key"
    FINISHED = "disconnecting"
    FAILED = "giving up"


class ReceiverState(Enum):
    """Where the receiver stands; the value says what it is doing."""

    CONNECTED = "waiting for the announcement"
    OFFERED = "waiting for the file's bytes"
    STORING = "storing a chunk"
    VERIFIED = "waiting for the sender's id"
    PAID = "waiting for the sender to disconnect"
    FAILED = "giving up"


class Send(Record):
    """Send the message; if `answer`, the peer will answer it: post the receive first."""

    message: Message
    answer: bool = True


class Write(Record):
    """RDMA WRITE these bytes of the file into the region, then tell Sender.written()."""

    region: Region
    offset: int
    length: int


class Store(Record):
    """Store the first bytes of the region, then tell Receiver.stored() the SHA-256 of all so far."""

    length: int


class Finish(Record):
    """Disconnect; the transfer was good."""

    key: str


Action = Send | Write | Store | Finish
S = TypeVar("S", bound=Enum)
Table = dict[tuple[S, Input], tuple[str, S]]


class _End(Generic[S]):
    """An end that follows its table."""

    def __init__(self, table: Table[S], state: S) -> None:
        self._table = table
        self.state: S = state

    @property
    def doing(self) -> str:
        """In words, for messages about a peer that is gone or silent."""
        return str(self.state.value)

    def receive(self, data: bytes) -> Action:
        """A message of the peer.  Fault when it must not come now, or says what cannot be."""
        message = messages.parse(data)
        return self._step(input_of(message), message)

    def _step(self, what: Input, message: Message | None = None) -> Action:
        try:
            action, after = self._table[self.state, what]
        except KeyError:
            if message is None:
                raise RuntimeError(f"{what.value!r} while {self.doing}") from None
            raise Fault(Code.PROTOCOL, f"{what.value} came while {self.doing}{self._instead_of()}") from None
        result: Action = getattr(self, f"_{action}")(message)
        self.state = after
        return result

    def _instead_of(self) -> str:
        wanted = [what.value for state, what in self._table if state is self.state]
        return f", not {' or '.join(wanted)}" if wanted else ""


SENDER: Table[SenderState] = {
    (SenderState.NEW, Input.CONNECTED): ("announce", SenderState.ANNOUNCED),
    (SenderState.ANNOUNCED, Input.REGION): ("write", SenderState.WRITING),
    (SenderState.ANNOUNCED, Input.ERROR): ("refused", SenderState.FAILED),
    (SenderState.WRITING, Input.WRITTEN): ("tell", SenderState.TOLD),
    (SenderState.TOLD, Input.REGION): ("write", SenderState.WRITING),
    (SenderState.TOLD, Input.GOOD): ("identify", SenderState.IDENTIFIED),
    (SenderState.TOLD, Input.BAD): ("bad_hash", SenderState.FAILED),
    (SenderState.TOLD, Input.ERROR): ("refused", SenderState.FAILED),
    (SenderState.IDENTIFIED, Input.KEY): ("finish", SenderState.FINISHED),
    (SenderState.IDENTIFIED, Input.ERROR): ("refused", SenderState.FAILED),
}


class Sender(_End[SenderState]):
    """The end that has the file."""

    def __init__(self, length: int, sha256: bytes, who: str) -> None:
        super().__init__(SENDER, SenderState.NEW)
        self.length, self.sha256 = length, sha256
        self.id = check_id(who)
        self.sent = 0
        """Bytes in chunks that the receiver has been told of."""
        self._chunk = 0

    def connected(self) -> Action:
        """The connection stands."""
        return self._step(Input.CONNECTED)

    def written(self) -> Action:
        """All of a Write has completed."""
        return self._step(Input.WRITTEN)

    def _announce(self, _: None) -> Action:
        return Send(Announce(VERSION, self.length, self.sha256))

    def _write(self, region: Region) -> Action:
        left = self.length - self.sent
        if self.state is SenderState.TOLD and not left:
            raise Fault(Code.PROTOCOL, "the receiver asks for more than the file has")
        if left and not region.length:
            raise Fault(Code.PROTOCOL, "the receiver's region has no bytes")
        self._chunk = min(left, region.length)
        return Write(region, self.sent, self._chunk)

    def _tell(self, _: None) -> Action:
        self.sent += self._chunk
        return Send(Done(self._chunk))

    def _identify(self, _: Verdict) -> Action:
        if self.sent < self.length:
            raise Fault(Code.PROTOCOL, f"the receiver judges {self.sent} of {self.length} bytes")
        return Send(Id(padded(self.id, ID_BYTES)))

    def _bad_hash(self, _: Verdict) -> Action:
        raise Fault(
            Code.HASH, "the receiver has other bytes: their SHA-256 is not the one that was announced"
        )

    def _refused(self, error: Error) -> Action:
        raise Fault(Code.REFUSED, f"the receiver refuses: {unpadded(error.text, 'reason')}")

    def _finish(self, key: Key) -> Action:
        return Finish(unpadded(key.key, "key"))


RECEIVER: Table[ReceiverState] = {
    (ReceiverState.CONNECTED, Input.ANNOUNCE): ("begin", ReceiverState.OFFERED),
    (ReceiverState.OFFERED, Input.DONE): ("store", ReceiverState.STORING),
    (ReceiverState.STORING, Input.STORED_SOME): ("offer", ReceiverState.OFFERED),
    (ReceiverState.STORING, Input.STORED_GOOD): ("praise", ReceiverState.VERIFIED),
    (ReceiverState.STORING, Input.STORED_BAD): ("blame", ReceiverState.FAILED),
    (ReceiverState.VERIFIED, Input.ID): ("pay", ReceiverState.PAID),
}


class Receiver(_End[ReceiverState]):
    """The end that has the region and the keys."""

    def __init__(self, region: Region, key_of: Callable[[str], str], room: int) -> None:
        super().__init__(RECEIVER, ReceiverState.CONNECTED)
        self.region, self._key_of, self._room = region, key_of, room
        self.length, self.sha256 = 0, b""
        """As announced."""
        self.stored_bytes = 0
        self.id = ""
        self._chunk = 0

    @property
    def chunk(self) -> int:
        """Bytes that have to be in the region when DONE comes."""
        return min(self.length - self.stored_bytes, self.region.length)

    def stored(self, sha256: bytes) -> Action:
        """All of a Store is done."""
        self.stored_bytes += self._chunk
        if self.stored_bytes < self.length:
            return self._step(Input.STORED_SOME)
        return self._step(Input.STORED_GOOD if sha256 == self.sha256 else Input.STORED_BAD)

    def _begin(self, announce: Announce) -> Action:
        if announce.version != VERSION:
            raise Fault(
                Code.PROTOCOL, f"ANNOUNCE has version {announce.version}, only {VERSION} is supported"
            )
        if announce.length > self._room:
            raise Fault(Code.FAILED, f"the file has {announce.length} bytes, there is room for {self._room}")
        self.length, self.sha256 = announce.length, announce.sha256
        return self._offer(None)

    def _offer(self, _: None) -> Action:
        return Send(self.region)

    def _store(self, done: Done) -> Action:
        if done.length != self.chunk:
            text = f"DONE has a length of {done.length}, this chunk has {self.chunk} bytes: send this length"
            raise Fault(Code.PROTOCOL, text)
        self._chunk = done.length
        return Store(done.length)

    def _praise(self, _: None) -> Action:
        return Send(Verdict(1))

    def _blame(self, _: None) -> Action:
        return Send(Verdict(0), answer=False)

    def _pay(self, message: Id) -> Action:
        who = unpadded(message.id, "id")
        if not who:
            raise Fault(Code.PROTOCOL, "the id is empty: it needs 1 to 64 bytes")
        self.id = who
        return Send(Key(padded(self._key_of(who), ID_BYTES)), answer=False)


def check_id(who: str) -> str:
    """An id that can be sent.  ValueError when it cannot."""
    size = len(who.encode(errors="replace"))
    if not 0 < size <= ID_BYTES or not who.isprintable():
        raise ValueError(f"an id has 1 to {ID_BYTES} bytes of printable text, not {who!r}")
    return who


def key_of(secret: bytes, who: str) -> str:
    """The secret key of an id: HMAC-SHA256 of the id's UTF-8 under the receiver's secret, 32 hex digits."""
    return hmac.new(secret, who.encode(), "sha256").hexdigest()[:32]


def markdown(table: Table[SenderState] | Table[ReceiverState]) -> str:
    """The rows of an end, as docs/lab3.md has them."""
    rows = [
        f"| {state.name} | {what.value} | {action.replace('_', ' ')} | {after.name} |"
        for (state, what), (action, after) in table.items()
    ]
    return "\n".join(["| state | input | action | next |", "|---|---|---|---|", *rows])
