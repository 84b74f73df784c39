# SPDX-License-Identifier: Apache-2.0
"""A channel of a thread."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Self

from rnic._nic.nic import SendWR
from rnic.patterns.chain import QueueError
from rnic.patterns.credits.ends import PARTING, Ends
from rnic.patterns.cursor import LiarError
from rnic.patterns.wait import left
from rnic.times import after

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType

    from rnic.endpoint.buffers import AnyBuffer

__all__ = ["Channel"]


class Channel(Ends):
    """One end of a channel on a queue pair; a context manager.

    Make it when the queue pair is in INIT, or before the peer may send; it posts the receives, and sends
    nothing. It makes progress while one of its methods runs. One thread at a time may use it: RuntimeError
    tells of a second one. When the channel is over, calls raise a ConnectionError with the reason:
    QueueError if the queue pair has failed, LiarError if the peer broke the protocol, rnic.AbortedError
    after abort() of either end.

    receives: how many it posts, 3 or more. size: bytes of each, 64 or more. max_message: bytes of the
    longest message that it takes. max_backlog: bytes of messages that wait here until recv(); beyond that
    the peer waits. The two ends may have different ones.
    """

    _inside = False

    def send(
        self,
        message: AnyBuffer,
        timeout: float | None = None,
        *,
        begins: Callable[[], object] | None = None,
    ) -> None:
        """Send a message; returns when all of it was posted, and the buffer may be changed.

        Waits while the peer has no receive for it; messages of the peer that come meanwhile wait for recv().
        After TimeoutError the buffer is free, and the peer gets the whole message or nothing of it; begins is
        called, with nothing, when it is clear that it gets the message. Raises
        rnic.MessageTooLongError (a ValueError) for one that the peer does not take.
        """
        flow, until = self._flow, after(timeout)
        with self._call():
            handle = flow.queue(message, begins)
            try:
                self._until(lambda: flow.is_sent(handle), until, "send: the peer takes nothing")
            except BaseException:
                flow.take_back(handle)
                raise

    def recv(self, timeout: float | None = None, *, spin: float | None = None) -> bytes:
        """Wait for the next message; EOFError when the peer has closed its end, TimeoutError.

        spin: seconds that How.ADAPTIVE polls this time before it sleeps; None: 50 us.
        """
        flow, until = self._flow, after(timeout)
        with self._call():
            flow.wanted += 1
            try:
                self._until(flow.has_next, until, "recv: no message came", spin)
            finally:
                flow.wanted -= 1
        message = flow.take()
        assert message is not None
        return message

    def leave(self, message: bytes) -> None:
        """Leave a message to the channel: it goes now, or as soon as it can, in this call or a later one."""
        with self._call():
            try:
                self._leave(message)
            except QueueError as error:
                raise self._blame(error) from None

    def carry_out(
        self,
        wrs: Iterable[SendWR],
        timeout: float | None = None,
        *,
        behind: Callable[[], bytes] | None = None,
    ) -> None:
        """Carry out READs and WRITEs on the queue pair, in order, and wait until all have completed.

        behind: gives a message that is left to the channel as soon as the last of them is posted. Raises
        TimeoutError when no request of them is under way any more, at most a second late: if some do not end
        by then, the channel is over. QueueError tells of one that failed, which ends the channel.
        """
        until, last = after(timeout), 0
        with self._call():
            if self.error is not None:
                raise self.error
            try:
                for batch in self._batches(wrs):
                    posted = self._sends.post(batch, signaled=True, timeout=left(until))
                    self._sends.wait(last, left(until))
                    last = posted
                if behind is not None:
                    self._leave(behind())
                self._sends.wait(last, left(until))
            except QueueError as error:
                raise self._blame(error) from None
            except BaseException:
                self._settle()
                raise

    def _settle(self) -> None:
        """Wait until no request is under way."""
        try:
            self._sends.flush(PARTING)
        except (TimeoutError, QueueError) as error:
            self._kill(error)

    def refuse(self, error: LiarError) -> None:
        """The peer has lied in what its messages say: tell it why, and end the channel."""
        with self._call():
            self._fail(error)
            self._part()

    def __iter__(self) -> Iterator[bytes]:
        """Messages, until the peer closes its end."""
        while True:
            try:
                message = self.recv()
            except EOFError:
                return
            yield message

    def close(self, timeout: float | None = 5.0) -> None:
        """Say that no message follows, and wait until the peer says so, too; messages that come are dropped.

        Then all has arrived. Raises TimeoutError if the peer did not close its end in time, or what has
        ended the channel. In any case the queue pair is then in ERR, and the channel's memory is given
        back.
        """
        if self._closed:
            return
        flow, until = self._flow, after(timeout)
        with self._call():
            try:
                known = flow.error
                flow.drop()
                flow.end()
                if known is None:
                    self._until(lambda: flow.finished, until, "close: the peer did not close its end")
                    with suppress(QueueError, TimeoutError):  # the peer may have gone by now, as it has all
                        self._sends.wait(self._sends.posted, left(until))
            finally:
                self._release()

    def abort(self, text: str = "the program ended the channel") -> None:
        """End the channel at once, and tell the peer why, at most 248 bytes; messages may be lost."""
        if self._closed:
            return
        with self._call():
            try:
                self._look()
                self._abort(text)
                self._part()
            finally:
                self._release()

    def _look(self) -> None:
        """What has come: the peer may have ended the channel already."""
        try:
            self._arrived(self._receipts.poll())
        except (LiarError, QueueError) as error:
            self._fail(error)

    def _part(self) -> None:
        """Send the ABORT, if there may be one."""
        try:
            if not self._blocking and self._post_next():
                self._sends.wait(self._sends.posted, PARTING)
        except (ConnectionError, OSError, TimeoutError):
            pass  # the peer learns of the end without a reason

    def _until(
        self, is_so: Callable[[], bool], until: float | None, what: str, spin: float | None = None
    ) -> None:
        """Send and receive until something is so; at least once."""
        try:
            self._arrived(self._receipts.last)  # what an exception has kept from it
            self._arrived(self._receipts.poll())
            self._go(until)
            while not is_so():
                self._arrived(self._sends.wait_for_peer(self._receipts, left(until), spin=spin))
                self._go(until)
        except TimeoutError:
            raise TimeoutError(f"{what} in time") from None
        except (LiarError, QueueError) as error:
            if self._flow.error is None:
                self._fail(error)
                self._part()
            if not is_so():  # what came ahead of the error counts
                raise

    def _go(self, until: float | None) -> None:
        """Post all that may go now."""
        while True:
            if ticket := self._blocking:
                self._sends.wait(ticket, left(until))
            if not self._post_next():
                return

    @contextmanager
    def _call(self) -> Iterator[None]:
        self._check_open()
        if self._inside:
            raise RuntimeError("another thread uses this channel: one at a time may")
        self._inside = True
        try:
            self._check_whole()
            yield
        finally:
            self._inside = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: object, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort(f"the program failed with {kind.__name__}")
