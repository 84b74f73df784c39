# SPDX-License-Identifier: Apache-2.0
"""A channel of a thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, TypeVar

from rnic.conn.waits import sleep
from rnic.patterns.credits.ends import Ends, Out, Until
from rnic.patterns.wait import How, left
from rnic.times import after, earliest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType

    from rnic._nic.nic import SendWR
    from rnic.endpoint.buffers import AnyBuffer
    from rnic.patterns.credits.ends import Steps
    from rnic.patterns.cursor import LiarError

__all__ = ["Channel"]

T = TypeVar("T")


class Channel(Ends):
    """One end of a channel on a queue pair; a context manager.

    Make it when the queue pair is in INIT, or before the peer may send; it posts the receives, and sends
    nothing. It makes progress while one of its methods runs. One thread at a time may use it: RuntimeError
    tells of a second one. When the channel is over, calls raise a ConnectionError with the reason:
    QueueError if the queue pair has failed, LiarError if the peer broke the protocol, rnic.AbortedError
    after abort() of either end.

    receives: how many the peer may use, 3 or more; one more is posted. size: bytes of each, 64 or more.
    max_message: bytes of the longest message that it takes. max_backlog: bytes of messages that wait here
    until recv(); beyond that the peer waits. The two ends may have different ones. The completion queues of
    the queue pair are the channel's alone; send_cq and recv_cq may be one.
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
        self._run(self._sending(Out(message), begins), timeout)

    def recv(self, timeout: float | None = None, *, spin: float | None = None) -> bytes:
        """Wait for the next message; EOFError when the peer has closed its end, TimeoutError.

        spin: seconds that How.ADAPTIVE polls this time before it sleeps; None: 50 us, or none if polling has
        been in vain.
        """
        return self._run(self._receiving(), timeout, spin)  # type: ignore[no-any-return]

    def leave(self, message: bytes) -> None:
        """Leave a message to the channel: it goes now, or as soon as it can, in this call or a later one."""
        self._run(self._leaving(Out(message)), 0)

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
        self._run(self._carrying_out(wrs, behind), timeout)

    def refuse(self, error: LiarError) -> None:
        """The peer has lied in what its messages say: tell it why, and end the channel."""
        self._run(self._end(error, str(error)), None)

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
        if not self._closed:
            self._run(self._closing(), timeout)

    def abort(self, text: str = "the program ended the channel") -> None:
        """End the channel at once, and tell the peer why, at most 140 bytes; messages may be lost."""
        if not self._closed:
            self._run(self._aborting(text), None)

    def _run(self, call: Steps[T], timeout: float | None, spin: float | None = None) -> T:
        until = after(timeout)
        self._check_open()
        if self._inside:
            raise RuntimeError("another thread uses this channel: one at a time may")
        self._inside = True
        try:
            step = next(call)
            while True:
                try:
                    self._wait(step, until if step.seconds is None else after(step.seconds), spin)
                except BaseException as error:
                    step = call.throw(error)
                else:
                    step = call.send(None)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        finally:
            self._inside = False

    def _wait(self, step: Until, until: float | None, spin: float | None) -> None:
        """Send and receive until something is so; at least once."""
        self._machine.want(step.among == "receivers")
        while True:
            self._move()
            if step.is_so():
                return
            if left(until) == 0:
                raise TimeoutError(f"{step.what} in time")
            self._rest(until, spin if self._how is How.ADAPTIVE else None)
            spin = None if spin is None else 0.0

    def _rest(self, until: float | None, spin: float | None) -> None:
        """Until something comes, or there is something to do; perhaps for less time."""
        machine = self._machine
        if machine.look(spin) or not self._filenos:
            return
        if machine.armed:
            sleep(self._filenos, earliest(until, machine.deadline()))
            machine.quiet()
        else:
            machine.arm()  # and look once more

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: object, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort(f"the program failed with {kind.__name__}")
