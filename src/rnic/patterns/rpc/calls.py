# SPDX-License-Identifier: Apache-2.0
"""The tables of calls that were not answered, at the client and at the server. No I/O; the caller gives the
time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rnic.endpoint.buffers import flat
from rnic.endpoint.errors import ClosedError
from rnic.patterns.cursor import LiarError
from rnic.patterns.rpc.errors import RefusedCallError, Status
from rnic.patterns.rpc.frames import LONGEST_NAME, OVERHEAD, Call, Cancel, Failure, Frame, Reply, parse

if TYPE_CHECKING:
    from asyncio import Task

__all__ = ["Asked", "Asking", "Order"]

T = TypeVar("T")
_NUMBERS = (1 << 32) - 1  # 0 is none
_FOREVER = 1 << 62  # microseconds


def _text_of(error: BaseException) -> str:
    """Of an error that a handler of the program's has made, whatever that is."""
    try:
        return str(error)
    except Exception as why:
        return f"its text cannot be told: {type(why).__qualname__}"


class Asking(Generic[T]):
    """The client's: for each call that waits for its answer a T, None when nobody waits any more.

    limit: how many calls. window: how many bytes of calls, unless there is but one. The server's inbox must
    hold so many: then a client that sends never waits for a server that waits for this client to receive.
    """

    def __init__(self, limit: int, window: int, max_body: int) -> None:
        if limit < 1 or window < 0 or max_body < 0:
            text = f"limit {limit}, window {window}, max_body {max_body}: give 1 or more, 0 or more bytes"
            raise ValueError(text)
        self._limit, self._window, self._max_body = limit, window, max_body
        self._waiting: dict[int, tuple[T | None, int]] = {}
        self._bytes = 0  # of those that wait
        self._last = 0
        self._leaving: str | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def check(self, method: str, body: bytes) -> int:
        """Bytes of a call; ValueError or TypeError if it cannot be, RefusedCallError if the server takes none
        any more.
        """
        if self._leaving is not None:
            raise RefusedCallError(Status.LEAVING, self._leaving)
        if not isinstance(method, str):
            raise TypeError(f"a method's name is a str, not {method!r}")
        nbytes = len(body) if type(body) is bytes else flat(body, "call()").nbytes
        if not 1 <= (length := len(method.encode())) <= LONGEST_NAME:
            raise ValueError(f"a method's name of {length} bytes: give 1 to {LONGEST_NAME}")
        if nbytes > self._max_body:
            raise ValueError(f"a body of {nbytes} bytes: max_body is {self._max_body}")
        return nbytes + OVERHEAD

    def has_room(self, nbytes: int) -> bool:
        """Whether a call of so many bytes may begin."""
        waiting = len(self._waiting)
        return not waiting or (waiting < self._limit and self._bytes + nbytes <= self._window)

    def begin(self, method: str, body: bytes, left: float | None, waiter: T) -> tuple[int, bytes]:
        """A call: its number and frame. `left`: seconds to the deadline."""
        nbytes = self.check(method, body)
        number = self._last % _NUMBERS + 1
        while number in self._waiting:
            number = number % _NUMBERS + 1
        micro = 0 if left is None else max(1, min(int(left * 1e6), _FOREVER))
        frame = Call(number, micro, method, body).pack()
        self._last = number
        self._bytes += nbytes
        self._waiting[number] = waiter, nbytes
        return number, frame

    def over_with(self, number: int) -> None:
        """No answer comes: the call did not go."""
        if number in self._waiting:
            self._bytes -= self._waiting[number][1]
            del self._waiting[number]

    def give_up(self, number: int) -> bytes | None:
        """Nobody waits for the call any more; the frame that says so, None if nobody did."""
        waiter, nbytes = self._waiting.get(number, (None, 0))
        if waiter is None:
            return None
        self._waiting[number] = None, nbytes
        return Cancel(number).pack()

    def answer(self, data: bytes) -> tuple[T | None, Reply | Failure]:
        """A message has come: who waits for it, and what it says; LiarError."""
        frame = parse(data)
        if not isinstance(frame, (Reply, Failure)):
            raise LiarError("the server sent a frame that clients send")
        number = frame.number
        if number in self._waiting:
            waiter, nbytes = self._waiting[number]
            self._bytes -= nbytes  # no signal's handler runs from here until the caller has the answer
            del self._waiting[number]
            return waiter, frame
        if isinstance(frame, Failure) and frame.status == Status.CANCELLED:
            return None, frame  # the CANCEL and the answer have crossed
        if isinstance(frame, Failure) and (frame.number, frame.status) == (0, Status.LEAVING):
            self._leaving = frame.text
            return None, frame
        raise LiarError(f"the server answered call {frame.number}, which does not wait")

    def over(self) -> Exception:
        """What calls raise that have no answer when the server closes its end."""
        if self._leaving is not None:
            return RefusedCallError(Status.LEAVING, self._leaving)
        return ClosedError("the server closed its end, and did not answer")

    def waiters(self) -> list[T]:
        """Who waits."""
        return [waiter for waiter, _ in self._waiting.values() if waiter is not None]

    def all_over(self) -> list[T]:
        """No answer comes any more: who waited."""
        waiting = self.waiters()
        self._waiting.clear()
        self._bytes = 0
        return waiting


class Order:
    """A call that the server has to carry out."""

    cancelled = False
    task: Task[Any] | None = None
    """Which runs its handler, and can be cancelled."""

    def __init__(self, call: Call, now: float) -> None:
        self.number, self.method, self.body = call.number, call.method, call.body
        self.until = None if not call.left else now + call.left / 1e6
        """The deadline, by the clock of `now`."""

    def cancel(self) -> None:
        """Nobody waits for it any more."""
        self.cancelled = True
        if self.task is not None:
            self.task.cancel()

    def left(self, now: float) -> float | None:
        """Seconds to the deadline."""
        return None if self.until is None else max(0.0, self.until - now)

    def is_late(self, now: float) -> bool:
        """Whether the deadline has passed."""
        return self.until is not None and now >= self.until

    def failed(self, status: Status, text: str, kind: str = "") -> Failure:
        """An answer that is no reply."""
        return Failure(self.number, status, kind, text)

    def raised(self, error: BaseException) -> Failure:
        """The handler raised this."""
        return self.failed(Status.FAILED, _text_of(error), type(error).__qualname__)


class Asked:
    """The server's, for one client."""

    def __init__(self, methods: frozenset[str], limit: int, max_body: int) -> None:
        if limit < 1 or max_body < 0:
            raise ValueError(f"limit {limit}, max_body {max_body}: give 1 or more calls, 0 or more bytes")
        self._methods, self._limit, self._max_body = methods, limit, max_body
        self._orders: dict[int, Order] = {}
        self._bytes = 0  # of their bodies

    def __len__(self) -> int:
        return len(self._orders)

    def message(self, data: bytes, now: float, leaving: str | None = None) -> Order | Failure:
        """A message has come: an order to carry out, or one that was cancelled, or a refusal to send.

        leaving: why no calls are taken any more. Raises LiarError.
        """
        frame = parse(data)
        if not isinstance(frame, Call):
            return self._cancelled(frame)
        if not frame.number:
            raise LiarError("the client used number 0, which no call has")
        if frame.number in self._orders:
            raise LiarError(f"the client used number {frame.number} for two calls at a time")
        if (refusal := self._refuse(frame, leaving)) is not None:
            return refusal
        order = self._orders[frame.number] = Order(frame, now)
        self._bytes += len(frame.body)
        return order

    def _cancelled(self, frame: Frame) -> Order | Failure:
        if not isinstance(frame, Cancel):
            raise LiarError("the client sent a frame that servers send")
        if (order := self._orders.get(frame.number)) is None:  # it was answered, or did not come
            return Failure(frame.number, Status.CANCELLED, "", "no such call")
        order.cancel()
        return order

    def _refuse(self, call: Call, leaving: str | None) -> Failure | None:
        if leaving is not None:
            return Failure(call.number, Status.LEAVING, "", leaving)
        if call.method not in self._methods:
            return Failure(call.number, Status.UNKNOWN, "", f"{call.method}: the server has no such method")
        if len(call.body) > self._max_body:
            text = f"{call.method}: a body of {len(call.body)} bytes; the server takes {self._max_body}"
            return Failure(call.number, Status.TOO_LONG, "", text)
        if len(self._orders) >= self._limit or self._bytes + len(call.body) > self._max_body:
            text = f"{call.method}: {len(self._orders)} calls with {self._bytes} bytes wait for their answers"
            return Failure(call.number, Status.BUSY, "", f"{text}; the server takes no more of one client")
        return None

    def done(self, order: Order, result: object, now: float) -> Reply | Failure:
        """The handler has returned this, or it raised: the answer to send."""
        del self._orders[order.number]
        self._bytes -= len(order.body)
        if order.cancelled:
            return order.failed(Status.CANCELLED, f"{order.method}: it was cancelled")
        if order.until is not None and order.is_late(now):
            return order.failed(Status.DEADLINE, f"{order.method}: its deadline has passed at the server")
        if isinstance(result, BaseException):
            return order.raised(result)
        if not isinstance(result, (bytes, bytearray, memoryview)):
            return order.raised(TypeError(f"the handler returned {type(result).__name__}: it returns bytes"))
        try:
            body = bytes(result)
        except ValueError as error:  # a view that was released
            return order.raised(error)
        if len(body) > self._max_body:
            text = f"{order.method}: a reply of {len(body)} bytes; the server sends {self._max_body} at most"
            return order.failed(Status.TOO_LONG, text)
        return Reply(order.number, body)
