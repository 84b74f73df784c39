# SPDX-License-Identifier: Apache-2.0
"""The agent of a device: the thread that its connection service lives in, and what ids share of the device.

It waits for what the service waits for, for its own wake-up and for the next deadline. Who calls the service
holds the registry's lock and then calls flush(). So a call sends at once, without a change of threads.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import select
import threading
from collections import deque
from collections.abc import Callable
from errno import EIO, ENODEV
from time import monotonic_ns, sleep
from typing import TYPE_CHECKING

from rnic.enums import Transport
from rnic.errors import VerbsError
from rnic.log import DEBUG, ERROR, Log
from rnic.rdmacm import routes
from rnic.rdmacm.service import ConnectionService
from rnic.rdmacm.transports import service_of
from rnic.threads import Thread, begin
from rnic.times import milliseconds
from rnic.verbs.context import Context
from rnic.verbs.pd import PD

if TYPE_CHECKING:
    from rnic.rdmacm.cm_id import CmId

_log = Log("rnic.rdmacm")

_WATCH_NS = 250 * 10**6  # between two looks at what may have changed unseen
_BREATH = 1e-4  # seconds between two rounds of a flood, in which others get the lock
_SHORT = 0.01  # seconds to wait where memory was short
_LINGER_NS = 2 * 10**9  # how long the last disconnect requests are repeated after the last id has gone


class Bell:
    """A descriptor that wakes a thread.  It stays open as long as anybody refers to the object."""

    fd = -1

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)

    def ring(self) -> None:
        """Wake the thread."""
        os.eventfd_write(self.fd, 1)

    def silence(self) -> None:
        """Forget that anybody has rung."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.fd)


class Loop:
    """A thread that ids use: a connection service lives in it, and timers for all."""

    service: ConnectionService

    def __init__(self, lock: threading.RLock, name: str) -> None:
        self.lock = lock
        self.name = name
        self.ids: set[CmId] = set()
        self._visitors = 0  # connections that have come and are of no id yet
        self.failed: BaseException | None = None
        self.mistakes = 0  # datagrams, timers and finalisers that raised an exception; each is a bug
        self.ended = self._given_back = False
        self.on_end: Callable[[], None] = lambda: None
        self._timers: list[tuple[int, int, Callable[[int], int | None]]] = []  # a heap: due, serial, call
        self._serial = itertools.count()
        self._later: deque[Callable[[], object]] = deque()  # filled without lock
        self._more = False  # something may wait that no descriptor tells of
        self._short = False  # of memory, just now
        self._linger: int | None = None
        self._sleeps_until: int | None = None
        with contextlib.ExitStack() as stack:  # what a part that fails leaves behind
            self._take_parts(stack)
            self._thread = Thread(target=self._run, name=f"rnic-cm-{name}", daemon=True)
            begin(self._thread, "open_device")
            stack.pop_all()

    def _take_parts(self, stack: contextlib.ExitStack) -> None:
        self.service = self._make_service()
        stack.callback(self.service.close)
        stack.callback(self.service.close_descriptors)
        self._wake: Bell | None = Bell()
        stack.callback(self._drop_bell)
        self._poll = select.poll()
        for fd in (self._wake.fd, *self.service.descriptors()):
            self._poll.register(fd, select.POLLIN)

    def _make_service(self) -> ConnectionService:
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}, {len(self.ids)} ids, {self.service!r}>"

    @property
    def transport(self) -> Transport:
        """The transport of the device."""
        raise NotImplementedError

    # ------------------------------------------------------------------ for ids, under the lock

    def check(self, verb: str) -> None:
        """Raise ENODEV if the agent has failed."""
        if self.failed is not None:
            raise VerbsError(ENODEV, f"the agent of {self.name} has failed: {self.failed!r}", verb)

    def flush(self) -> None:
        """Let the service send and report what is pending, and the thread look at new deadlines.

        If memory runs out, the thread does the rest later: the call that led here has succeeded.
        """
        try:
            self.service.settle()
        except MemoryError:
            self._short = True
            self.kick()
        due = self._deadline()
        if due is not None and (self._sleeps_until is None or due < self._sleeps_until):
            self.kick()

    def kick(self) -> None:
        """Wake the thread, so that it looks again at what it waits for."""
        wake = self._wake  # the thread may end meanwhile
        if wake is not None and threading.current_thread() is not self._thread:
            wake.ring()

    def later(self, call: Callable[[], object]) -> None:
        """Let the thread call a function soon. It is for finalisers, which may interrupt a thread that holds
        a lock.

        The agent is in use, and exists, until the call is done.
        """
        self._later.append(call)
        self.kick()

    def _finalise(self) -> None:
        while self._later:
            call = self._later[0]  # others only append
            try:
                call()
            except MemoryError:
                raise
            except Exception as error:
                self.mistake(f"a finaliser, {call!r},", error)
            self._later.popleft()

    def at(self, due: int, call: Callable[[int], int | None]) -> None:
        """Call a function at a time (of monotonic_ns()), and again at the time that it returns; call flush()
        afterwards.
        """
        heapq.heappush(self._timers, (due, next(self._serial), call))

    def join(self, cm_id: CmId) -> None:
        """Count an id that uses the device."""
        self.ids.add(cm_id)
        self._linger = None

    def leave(self, cm_id: CmId) -> None:
        """An id no longer uses the device; the last one ends the agent, as soon as its peers know."""
        self.ids.discard(cm_id)
        self.end_unused()

    def came(self) -> None:
        """Count a connection that has come to the device, and that no id has yet."""
        self._visitors += 1
        if self._linger:  # 0 ends the agent in any case
            self._linger = None

    def gone(self) -> None:
        """Such a connection has an id now, or has ended."""
        self._visitors -= 1
        self.end_unused()

    def end_unused(self) -> None:
        """End the agent if nobody uses it, as soon as its peers know."""
        if self.ids or self._visitors or self.ended:
            return
        if self.failed is not None:  # there is no thread any more
            self._end()
            return
        now = monotonic_ns()
        self._linger = now + _LINGER_NS
        self.service.hurry(now, _LINGER_NS // 8)
        self.kick()

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        while True:
            try:
                if not self._round():
                    return
            except MemoryError:  # what is under way stays where it is
                self._short = True
            except BaseException as error:
                with self.lock:
                    self._fail(error)
                return

    def _round(self) -> bool:
        if self._short:
            sleep(_SHORT)
            self._short, self._more = False, True
        self._finalise()  # before it looks how long to wait: the last id may go there
        with self.lock:
            due = self._sleeps_until = self._deadline()
            if self._is_done():
                self._end()
                return False
        if self._more:
            sleep(_BREATH)
        else:
            self._poll.poll(None if due is None else milliseconds((due - monotonic_ns()) / 1e9))
        with self.lock:
            self._sleeps_until = 0
            if self.ended:  # in a forked child
                return False
            if self._wake is not None:
                self._wake.silence()
            self._work()
        return True

    def _work(self) -> None:
        self._more = self.service.work()
        self._fire(monotonic_ns())
        self._look_around()
        self.flush()

    def _look_around(self) -> None:
        """Handle what else the thread is woken by."""

    def _fire(self, now: int) -> None:
        while self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)
            call = timer[2]
            try:
                again = call(now)
            except MemoryError:
                heapq.heappush(self._timers, timer)
                raise
            except Exception as error:
                self.mistake(f"a timer, {call!r},", error)
            else:
                if again is not None:
                    self.at(again, call)

    def mistake(self, what: str, error: Exception) -> None:
        """Log a mistake of rnic, or a lack of memory. It costs one datagram or call, not all the ids of the
        device.
        """
        level = DEBUG if self.mistakes else ERROR
        self.mistakes += 1
        _log.log(level, "%s: %s met a mistake in rnic", self.name, what, error=error)

    def _deadline(self) -> int | None:
        first = self._timers[0][0] if self._timers else None
        return min(
            (due for due in (first, self.service.deadline(), self._linger) if due is not None), default=None
        )

    def _is_done(self) -> bool:
        """Whether no id is left, and every peer knows, or has had time enough."""
        if self._linger is None:
            return False
        return not self.service.is_parting or monotonic_ns() >= self._linger

    def _fail(self, error: BaseException) -> None:
        """Tell every id that its device is gone, so that nothing waits for ever."""
        self.failed = error
        with contextlib.suppress(MemoryError):
            _log.error("the agent of %s has failed", self.name, error=error)
        for one in list(self.ids):
            one.device_removed(self, -EIO)
        self.on_end()

    def _end(self) -> None:
        """Close everything; the next call completes what an exception has interrupted."""
        if self._given_back:
            return
        self.ended = True
        self.on_end()
        self._close_fds()
        self._give_back()
        self._given_back = True

    def _give_back(self) -> None:
        self.service.close()

    def end(self) -> None:
        """End the thread, which closes the device; call it under the lock."""
        self._linger = 0
        self.kick()

    def join_thread(self, timeout: float) -> None:
        """Wait for the thread's end; call it without the lock."""
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def forked(self) -> None:
        """In a forked child: forget the thread and the device, which belong to the parent."""
        self.ended, self.failed = True, VerbsError(ENODEV, "this process was forked", "rdmacm")
        self._close_fds()

    def _close_fds(self) -> None:
        self.service.close_descriptors()
        self._drop_bell()

    def _drop_bell(self) -> None:
        self._wake = None


class Agent(Loop):
    """One device that ids of this process use: its context, its connection service, and timers for all."""

    def __init__(self, lock: threading.RLock, context: Context, ifindex: int) -> None:
        self.context = context
        self.ifindex = ifindex
        self._watching = False
        self._errors = 0  # of queue pairs, that the ids know of
        super().__init__(lock, context.name)

    def _take_parts(self, stack: contextlib.ExitStack) -> None:
        stack.callback(self.context.close)
        self.attr = self.context.query_device()
        self.pd: PD = stack.enter_context(self.context.alloc_pd())
        super()._take_parts(stack)
        self._changes = stack.enter_context(contextlib.closing(routes.Changes()))
        self._poll.register(self._changes.fileno(), select.POLLIN)

    def _make_service(self) -> ConnectionService:
        return service_of(self)

    @property
    def transport(self) -> Transport:
        """The transport of the device."""
        return self.context.device.transport

    def watch(self, one: CmId) -> None:
        """Check the ids' queue pairs regularly, while there are any: an error of a queue pair ends its
        connection.
        """
        one.is_settled = False
        if not self._watching:
            self._watching = True
            self.at(monotonic_ns() + _WATCH_NS, self._look)

    def _look(self, now: int) -> int | None:
        counts = "rnic.stats/1" in self.context.extensions  # else each id has to be looked at
        errors = self.context.counters().qp_errors if counts else -1
        if errors != self._errors or not counts:  # of some queue pair
            for one in self.ids:
                one.is_settled = False
            self._errors = errors
        self._watching = False
        for one in list(self.ids):
            self._watching = one.is_settled or one.watch(now) or self._watching
        return now + _WATCH_NS if self._watching else None

    def _look_around(self) -> None:
        for change in self._changes.take():
            self._changed(change)

    def _changed(self, change: routes.Change) -> None:
        """An address is new, or an address or the network interface was removed."""
        if change.ifindex != self.ifindex:
            return
        if change.kind == routes.NEWADDR:
            if change.address is not None:
                self.service.address_came(change.address)
            return
        for one in list(self.ids):
            if change.kind == routes.DELLINK:
                one.device_removed(self)
            elif one.local.ip == change.address:
                one.address_changed()

    def _give_back(self) -> None:
        try:
            self.service.close()
            self.pd.close()
            self.context.close()
        except VerbsError as error:  # somebody uses the context or the protection domain yet
            _log.info("%s stays open: %s", self.name, error)
            with contextlib.suppress(VerbsError):
                self._let_go()

    def _let_go(self) -> None:
        """Both close with what uses them."""
        for handle in (self.pd, self.context):
            handle.__exit__(VerbsError, None, None)

    def _close_fds(self) -> None:
        self._changes.close()
        super()._close_fds()
