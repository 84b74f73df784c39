# SPDX-License-Identifier: Apache-2.0
"""The messages of a connection: what calls that send and receive ask for, and what they are told."""

from __future__ import annotations

from enum import Enum
from errno import EINVAL, EMSGSIZE, ENOMEM, ESHUTDOWN
from typing import TYPE_CHECKING

from rnic.endpoint import Capability, ClosedError, MessageTooLongError
from rnic.endpoint.buffers import flat
from rnic.errors import VerbsError

if TYPE_CHECKING:
    from collections.abc import Collection

    from rnic.conn.core import Core
    from rnic.endpoint.buffers import AnyBuffer

STOPPED = "the server was stopped"


class AnyTag(Enum):
    """The type of ANY."""

    ANY = "any tag"
    """recv(tag=ANY) takes the next message, whatever its tag, and returns its tag, too."""


ANY = AnyTag.ANY
"""recv(tag=ANY) takes the next message of any tag, and returns the message and its tag."""

_INSTEAD_OF_ANY = {"send()": "give one tag, a number", "recv_into()": "use recv(tag=rnic.ANY)"}


def check_number(tag: object, call: str) -> None:
    """TypeError, with the cure, for a tag that is no number."""
    if tag is ANY:
        raise TypeError(f"{call}: tag=rnic.ANY is not supported: {_INSTEAD_OF_ANY[call]}") from None
    if not hasattr(tag, "__index__"):
        raise TypeError(f"{call}: a tag is a number, not {type(tag).__name__}") from None


def check_room(length: int, target: memoryview) -> None:
    """ValueError when a message does not fit the buffer of recv_into()."""
    if length > len(target):
        raise ValueError(
            f"recv_into(): the next message has {length} bytes and the buffer {len(target)}: "
            "the message stays, give a larger buffer or call recv()"
        )


def put(message: bytes | int, target: memoryview) -> int:
    """Copy a message into the buffer of recv_into(), unless it lies there already; return its length."""
    if not isinstance(message, bytes):
        return message
    check_room(len(message), target)
    if message:  # else the memory may be none that can be written
        target[: len(message)] = message
    return len(message)


class Messages:
    """Sends messages by the machine of a connection, and says why one does not come."""

    def __init__(self, core: Core) -> None:
        self._core, self._machine = core, core.machine

    def send(self, message: AnyBuffer, tag: int) -> int:
        """Send a message; 0: it has left its buffer, or its handle."""
        if self._core.gone:
            self._core.check()
        try:
            sent = self._machine.send(message, tag or 0)
        except TypeError:
            check_number(tag, "send()")
            raise
        if sent == -EINVAL:
            sent = self._machine.send(flat(message, "send()"), tag or 0)  # flat() says what a message can be
        if sent < 0:
            self._refuse(sent, message)
        return sent

    def _refuse(self, sent: int, message: AnyBuffer) -> None:
        core = self._core
        if sent == -ESHUTDOWN:
            core.check()
            raise ClosedError("send() after close()")
        if sent == -ENOMEM:
            raise MemoryError
        length = len(flat(message, "send()"))
        if sent == -EMSGSIZE and core.peer is not None:
            raise MessageTooLongError(
                f"a message of {length} bytes is longer than {core.peer.max_message}, the most the peer takes"
            )
        if sent == -EMSGSIZE:
            most = core.config.send_size
            raise MessageTooLongError(f"a raw message of {length} bytes is longer than send_size {most}")
        if core.peer is None:
            raise ValueError("send(): a raw peer knows no tags")
        raise ValueError(f"send(): the peer speaks version {core.peer.version}, which has no tags")

    def is_sent(self, handle: int) -> bool:
        """The message has left its buffer, or the connection has ended (then check() raises)."""
        return self._machine.sent >= handle or self._core.ended

    def raise_unsent(self, handle: int) -> None:
        """Raise the connection's error if it ended before the message was sent."""
        if handle > self._machine.sent:
            self._core.check()

    def news(self, tag: int | None = None) -> bool:
        """A message is in hand, or can be taken, or there is a reason why none will come."""
        machine = self._machine
        in_hand = machine.hand is not None and tag in (None, machine.tag)
        return in_hand or machine.has(tag) or self.has_no_more(tag)

    def has_no_more(self, tag: int | None = None) -> bool:
        """raise_none() raises."""
        done = self._core.eof if tag is None else self._machine.heard_goodbye
        return done or self._core.ended or self._core.leaving or bool(self._machine.fetch_failed)

    def all_go_on(self) -> bool:
        """Every call for a message can go on: it takes one, or raise_none() raises."""
        return self._machine.heard_goodbye or self._core.ended or self._core.looked

    def first_tag(self, tags: Collection[int] | None) -> int | None:
        """The tag of the first message that is here, of those with these tags (None: of all)."""
        machine = self._machine
        if machine.hand is not None and (tags is None or machine.tag in tags):
            return machine.tag
        return machine.first_tag(tags)

    @property
    def is_spent(self) -> bool:
        """The peer has left or the connection has ended, and the program has taken all messages."""
        return (self._core.eof or self._core.ended) and not self._machine.has() and self._machine.hand is None

    def raise_none(self, tag: int | None = None) -> None:
        """Raise why no message comes (with this tag), if none will."""
        if (code := self._machine.fetch_error()) and not self._core.ended:
            if code == ENOMEM:
                raise MemoryError
            raise VerbsError(code, "an announced message cannot be READ", "recv")
        if self._core.eof or (tag is not None and self._machine.heard_goodbye):
            which = "no message" if tag is None else f"no message with tag {tag}"
            error = EOFError(f"the peer has said goodbye: {which} follows")
            vars(error)["of"] = id(self)
            raise error
        self._core.check()
        if self._core.looked:
            raise ClosedError(STOPPED)

    def is_own_end(self, error: BaseException | None) -> bool:
        """The error is the EOFError that raise_none() has raised here."""
        return isinstance(error, EOFError) and vars(error).get("of") == id(self)

    def check_tag(self, tag: int, call: str) -> None:
        """TypeError or ValueError when no message can have this tag."""
        check_number(tag, call)
        if not 0 <= tag < 1 << 64:
            raise ValueError(f"{call}: tag {tag}, it can be 0 to 2**64 - 1")
        peer = self._core.peer
        if tag and (peer is None or Capability.TAG not in peer.capabilities):
            raise ValueError(f"{call}: the peer knows no tags")
