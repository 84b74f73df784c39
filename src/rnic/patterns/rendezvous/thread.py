# SPDX-License-Identifier: Apache-2.0
"""An end of a thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, TypeVar

from rnic.patterns.chain import QueueError
from rnic.patterns.cursor import LiarError
from rnic.patterns.ports import run
from rnic.patterns.rendezvous.ends import LONGEST, Ends, blamed
from rnic.patterns.rendezvous.layout import Layout
from rnic.patterns.rendezvous.steps import Hear, Leave, More, Move, Say
from rnic.patterns.wait import left
from rnic.times import after

if TYPE_CHECKING:
    from types import TracebackType

    from rnic.patterns.credits import Channel
    from rnic.patterns.rendezvous.cache import RegistrationCache
    from rnic.patterns.rendezvous.layout import Buffers
    from rnic.patterns.rendezvous.sides import How
    from rnic.patterns.rendezvous.steps import Step, Steps

__all__ = ["Rendezvous"]

T = TypeVar("T")


class _Port:
    """Carries out steps on a channel."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def do(self, step: Step) -> Any:
        match step:
            case Leave(message):
                self._channel.leave(message)
            case Say(message, until, begins):
                self._channel.send(message, left(until), begins=begins)
            case Hear(until, spin):
                return self._channel.recv(left(until), spin=spin)
            case More():
                return self._channel.is_waiting
            case Move(wrs, until, behind):
                try:
                    self._channel.carry_out(wrs, left(until), behind=behind)
                except QueueError as error:
                    raise blamed(error) from None
        return None

    def check(self) -> None:
        if self._channel.error is not None:
            raise self._channel.error


class Rendezvous(Ends):
    """One end of a rendezvous, on a channel that nothing else uses; a context manager that closes it.

    One thread at a time may use it; it makes progress while one of its methods runs. How messages of this end
    go is its own choice: the peer may have another one.

    how: "read", the peer READs announced messages; "write", this end WRITEs them. threshold: from how many
    bytes on messages are announced; measure() finds it. max_message: bytes of the longest message that it
    takes. max_backlog: bytes of messages that are taken while this end sends, and wait for recv(). cache: its
    registrations; by default it has some of its own.

    The methods raise what ends the channel, a ConnectionError: LiarError if the peer has said or done what
    cannot be, which the peer is told; QueueError if the queue pair has failed, also as the peer has gone;
    rnic.AbortedError if the peer has ended the channel.
    """

    def __init__(
        self,
        channel: Channel,
        how: How = "read",
        *,
        threshold: int | None = None,
        max_message: int = LONGEST,
        max_backlog: int = 16 << 20,
        cache: RegistrationCache | None = None,
    ) -> None:
        super().__init__(channel, how, threshold, max_message, max_backlog, cache)
        self._channel, self._port = channel, _Port(channel)

    def send(self, message: Buffers, timeout: float | None = None) -> None:
        """Send a message: a buffer, a NumPy array, or a list of them one behind the other.

        Returns when the peer has the message; or, if it is shorter than the threshold, when it was posted.
        Then the buffer may be changed. Rows of an array that lie apart are not copied, unless they are
        shorter than 1 KiB. Messages of the peer that come meanwhile wait for recv().

        After an exception the buffer is free, too. After TimeoutError a long message is not taken back: a
        copy goes when the peer asks for it (if this end WRITEs it: in a later call of this end), and the
        next send() waits for that first. BufferError says that more messages of the peer wait here than
        max_backlog: call recv(). Raises rnic.MessageTooLongError for one that the peer does not take,
        ValueError for what is no memory in one order.
        """
        self._do(self._dealings.send(Layout(message, "send()", False), after(timeout)))

    def recv(self, timeout: float | None = None) -> bytes:
        """Wait for the next message.

        Raises TimeoutError, after which the message is still to come; EOFError when the peer has closed its
        end.
        """
        found = self._do(self._dealings.recv(None, after(timeout)))
        assert isinstance(found, bytes)
        return found

    def recv_into(self, buffer: Buffers, timeout: float | None = None) -> int:
        """Put the next message into a buffer, an array or a list of these; returns its length.

        A long message goes there without a copy: into rows that lie apart, too, if they have 1 KiB or more,
        and if the peer WRITEs, are 256 at most. If the last message that came so was a long one, the peer is
        told at once where to WRITE the next one; until this call is over it may WRITE all of the buffer.

        Raises as recv(), and ValueError if the message is longer; it stays then. After TimeoutError the
        buffer is free, and nobody writes there; what it holds is not defined.
        """
        found = self._do(self._dealings.recv(Layout(buffer, "recv_into()", True), after(timeout)))
        assert isinstance(found, int)
        return found

    def measure(self, timeout: float | None = None) -> int:
        """Find the threshold by messages to the peer and back; both ends call it, and the later one waits.

        It times five messages of each power of two, from 1 KiB to 1 MiB at most, both ways, until announced
        ones are faster at two sizes. Returns the threshold, which is that of this end; the peer has its own.
        If it raises, the channel is over: the two ends would not know of each other who measures.
        """
        try:
            return self._do(self._dealings.measure(after(timeout)))
        except BaseException:
            self.abort("measure() has failed")
            raise

    def close(self, timeout: float | None = 5.0) -> None:
        """Say that no message follows, and wait until the peer says so, too; then the channel is closed.

        Messages that come are dropped. Raises as Channel.close(). In any case the queue pair is then in ERR,
        and all memory is free.
        """
        if self._closed:
            return
        until = after(timeout)
        try:
            if self._channel.error is None:
                self._do(self._dealings.settle(until))
            self._channel.close(left(until))
        finally:
            self.abort("close() has failed")

    def abort(self, text: str = "the program ended the rendezvous") -> None:
        """End the channel at once, and tell the peer why; messages may be lost."""
        if self._closed:
            return
        self._closed = True
        try:
            self._channel.abort(text)
        finally:
            self._let_go()

    def _do(self, steps: Steps[T]) -> T:
        self._check_open()
        if self._inside:
            raise RuntimeError("another thread uses this rendezvous: one at a time may")
        self._inside = True
        try:
            return run(self._port, steps)
        except LiarError as error:
            self._channel.refuse(error)
            raise
        finally:
            self._inside = False
            if self._channel.error is not None:
                self._dealings.let_go()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: object, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort(f"the program failed with {kind.__name__}")
