# SPDX-License-Identifier: Apache-2.0
"""The agent of a device: a thread that connects the communication manager with queue pair 1.

It waits for datagrams, for its own wake-up and for the next deadline. A caller of the communication manager
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
from errno import EAGAIN, ECONNREFUSED, EIO, EMFILE, ENFILE, ENOBUFS, ENODEV, ENOMEM, ENOSPC
from time import monotonic_ns, sleep
from typing import TYPE_CHECKING

import rnic.cm as cm
from rnic.errors import VerbsError
from rnic.log import DEBUG, ERROR, Log
from rnic.rdmacm import routes
from rnic.rdmacm.gsi import Gsi, Peer
from rnic.rdmacm.ports import Ports
from rnic.rdmacm.processes import Process, Processes
from rnic.rdmacm.sockaddr import Inet
from rnic.threads import Thread, begin
from rnic.times import milliseconds
from rnic.verbs.context import Context
from rnic.verbs.pd import PD

if TYPE_CHECKING:
    from rnic.rdmacm.cm_id import CmId

_log = Log("rnic.rdmacm")

_WATCH_NS = 250 * 10**6
_SCARCE = (EMFILE, ENFILE, ENOMEM, ENOBUFS, ENOSPC, EAGAIN)  # what may be there the next time
_BREATH = 1e-4  # seconds between two batches of a flood, in which others get the lock
_SHORT = 0.01  # seconds to wait where memory was short
_LAST_WORDS_NS = 10**8  # what a process sent before it died may be in the queues of others, who hand it on
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


class Served:
    """A service id on a device: the ids that listen for it, each at one address or at all."""

    def __init__(self, listener: cm.Listener) -> None:
        self.listener = listener
        self.ids: list[CmId] = []

    def choose(self, ip: routes.IP) -> CmId | None:
        """The id for a request to this address: one that listens at exactly this address goes first."""
        exact = [one for one in self.ids if one.local.ip == ip]
        every = [one for one in self.ids if one.local.ip.is_unspecified]
        return next(iter(exact + every), None)


class Agent:
    """One device that ids of this process use: its context, its queue pair 1, its communication manager."""

    def __init__(self, lock: threading.RLock, context: Context, ifindex: int) -> None:
        self.lock = lock
        self.context = context
        self.ifindex = ifindex
        self.ids: set[CmId] = set()
        self.services: dict[int, Served] = {}
        self.failed: BaseException | None = None
        self.mistakes = 0  # datagrams, timers and finalisers that raised an exception; each is a bug
        self.ended = self._given_back = False
        self.on_end: Callable[[Agent], None] = lambda _agent: None
        self._timers: list[tuple[int, int, Callable[[int], int | None]]] = []  # a heap: due, serial, call
        self._serial = itertools.count()
        self._watching = False
        self._errors = 0  # of queue pairs, that the ids know of
        self._unmet: set[cm.Exchange] = set()
        self._later: deque[Callable[[], object]] = deque()  # filled without lock
        self._more = False  # datagrams may wait that no event tells of
        self._short = False  # of memory, just now
        self._linger: int | None = None
        self._sleeps_until: int | None = None
        with contextlib.ExitStack() as stack:  # what a part that fails leaves behind
            stack.callback(context.close)
            self._take_parts(stack)
            self._thread = Thread(target=self._run, name=f"rnic-cm-{context.name}", daemon=True)
            begin(self._thread, "open_device")
            stack.pop_all()

    def _take_parts(self, stack: contextlib.ExitStack) -> None:
        self.attr = self.context.query_device()
        self.pd: PD = stack.enter_context(self.context.alloc_pd())
        self.gsi = Gsi(self.context, self.pd)
        stack.callback(self.gsi.close)
        self.ports = Ports(self.context)
        self.cm = cm.IbCm(self.context.cm_slot(), self.attr.node_guid)
        self._wake: Bell | None = Bell()
        stack.callback(self._drop_bell)
        self._changes = stack.enter_context(contextlib.closing(routes.Changes()))
        self._processes = stack.enter_context(contextlib.closing(Processes(self.context)))
        self._poll = select.poll()
        for fd in (
            self.gsi.channel.fileno(),
            self._wake.fd,
            self._changes.fileno(),
            self._processes.fileno(),
        ):
            self._poll.register(fd, select.POLLIN)

    def __repr__(self) -> str:
        return f"<Agent {self.context.name}, {len(self.ids)} ids, {len(self.cm.table)} exchanges>"

    # ------------------------------------------------------------------ for ids, under the lock

    def check(self, verb: str) -> None:
        """Raise ENODEV if the agent has failed."""
        if self.failed is not None:
            raise VerbsError(ENODEV, f"the agent of {self.context.name} has failed: {self.failed!r}", verb)

    def flush(self) -> None:
        """Send pending datagrams, deliver pending events, and run the timers that are due.

        If memory runs out, the thread does the rest later: the call that led here has succeeded.
        """
        try:
            self._settle()
        except MemoryError:
            self._short = True
            self.kick()
        due = self._deadline()
        if due is not None and (self._sleeps_until is None or due < self._sleeps_until):
            self.kick()

    def _settle(self) -> None:
        """Work that lacks memory stays queued for the next call; a datagram is lost, as on the wire."""
        while True:
            self._meet_all()
            while (send := self.cm.next_send()) is not None:
                assert isinstance(send.dest, Peer)
                self.gsi.send(send.dest, send.mad.emit())
            if (event := self.cm.next_event()) is None:
                break
            try:
                self._dispatch(event)
            except MemoryError:
                self.cm.put_back(event)
                raise
            except Exception as error:
                self._mistake(f"{event.type.name} of {event.source!r}", error)

    def _meet_all(self) -> None:
        while (exchange := self.cm.next_met()) is not None:
            try:
                self._meet(exchange)
            except MemoryError:
                self.cm.put_back(exchange)
                raise

    def hear(self, data: bytes, source: Peer) -> None:
        """Handle a datagram, and deliver its events before the next datagram changes more.

        A mistake of rnic costs this datagram, not all the ids of the device: it is counted as dropped, and
        the first one is logged.
        """
        try:
            self.cm.input(data, source, monotonic_ns())
            self._settle()
        except MemoryError:
            self.cm.drop("a datagram, or an answer, lost for want of memory")
        except Exception as error:
            self.cm.drop("a datagram that met a mistake of rnic's own")
            self._mistake(f"a datagram from {source.gid.ip}, {data.hex()},", error)

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
                self._mistake(f"a finaliser, {call!r},", error)
            self._later.popleft()

    def at(self, due: int, call: Callable[[int], int | None]) -> None:
        """Call a function at a time (of monotonic_ns()), and again at the time that it returns; call flush()
        afterwards.
        """
        heapq.heappush(self._timers, (due, next(self._serial), call))

    def watch(self, one: CmId) -> None:
        """Check the ids' queue pairs regularly, while there are any: an error of a queue pair ends its
        connection.
        """
        one.is_settled = False
        if not self._watching:
            self._watching = True
            self.at(monotonic_ns() + _WATCH_NS, self._look)

    def _look(self, now: int) -> int | None:
        errors = self.context.counters().qp_errors
        if errors != self._errors:  # of some queue pair
            for one in self.ids:
                one.is_settled = False
            self._errors = errors
        self._watching = False
        for one in list(self.ids):
            self._watching = one.is_settled or one.watch(now) or self._watching
        return now + _WATCH_NS if self._watching else None

    def ips_of(self, local: Inet) -> list[routes.IP]:
        """The addresses of this device to which ids are bound."""
        if not local.ip.is_unspecified:
            return [local.ip]
        own = [entry.gid.ip for entry in self.context.query_gid_table()]
        return [ip for ip in own if local.ip.version == 6 or ip.version == 4]

    def serve(self, service_id: int, cm_id: CmId) -> None:
        """Deliver requests for a service to an id from now on."""
        service = self.services.get(service_id)
        if service is None:
            listener = self.cm.listen(service_id, monotonic_ns())
            service = self.services[service_id] = Served(listener)
        service.ids.append(cm_id)

    def unserve(self, service_id: int, cm_id: CmId) -> None:
        """Deliver no more requests for a service to an id."""
        service = self.services.get(service_id)
        if service is None or cm_id not in service.ids:
            return
        service.ids.remove(cm_id)
        if not service.ids:
            del self.services[service_id]
            service.listener.close(monotonic_ns())

    def join(self, cm_id: CmId) -> None:
        """Count an id that uses the device."""
        self.ids.add(cm_id)
        self._linger = None

    def leave(self, cm_id: CmId) -> None:
        """An id no longer uses the device; the last one ends the agent, as soon as its peers know."""
        self.ids.discard(cm_id)
        if self.ids or self.ended:
            return
        if self.failed is not None:  # there is no thread any more
            self._end()
            return
        now = monotonic_ns()
        self._linger = now + _LINGER_NS
        for exchange in self.cm.table.exchanges():
            if exchange.state is cm.State.DREQ_SENT:
                exchange.hurry(now, _LINGER_NS // 8)
        self.kick()

    def _dispatch(self, event: cm.Event) -> None:
        if event.listener is not None:
            self._request(event)
        elif event.source.context is not None:
            owner: CmId = event.source.context  # type: ignore[assignment] # set by the services
            owner.service.handle(owner, event)

    # ------------------------------------------------------------------ processes of this host

    def _meet(self, exchange: cm.Exchange) -> None:
        """Find out which process of this host the peer is, so that its death is noticed at once.

        At an address of our device every process uses rnic: others cannot have UDP 4791 there. If the peer
        has died already, another process may have its slot. The death of that process, later, still tells the
        truth: the peer is dead.
        """
        assert isinstance(exchange.peer, Peer)
        if self.gsi.index_of(exchange.peer.gid) is None:
            return
        self._bury()
        try:
            exchange.process = self._process_of(exchange, exchange.peer)
            self._unmet.discard(exchange)
        except OSError as error:
            if error.errno in _SCARCE:
                self._meet_later(exchange)
            elif error.errno == ECONNREFUSED and exchange.peer_id:
                exchange.process = Process(cm.slot_of(exchange.peer_id))
                self._died(exchange.process)

    def _meet_later(self, exchange: cm.Exchange) -> None:
        """A peer that cannot be watched now, for want of a descriptor, could die unnoticed: try again
        later.
        """
        if not self._unmet:
            self.at(monotonic_ns() + _WATCH_NS, self._meet_unmet)
        self._unmet.add(exchange)

    def _meet_unmet(self, now: int) -> int | None:
        for exchange in list(self._unmet):
            if exchange.over:
                self._unmet.discard(exchange)
            else:
                self._meet(exchange)
        return now + _WATCH_NS if self._unmet else None

    def _process_of(self, exchange: cm.Exchange, peer: Peer) -> Process | None:
        if exchange.peer_id:
            return self._processes.of_slot(cm.slot_of(exchange.peer_id))
        assert isinstance(exchange, cm.Connection | cm.Resolution)
        assert exchange.req is not None
        return self._processes.of_service(exchange.req.service_id, peer.gid)

    def _bury(self) -> None:
        for process in self._processes.dead():
            self._died(process)
            self._processes.forget(process)

    def _died(self, process: object) -> None:
        """Handle the last messages of a dead process first: a process that ends in good order says so, and
        does not wait.
        """
        self.at(monotonic_ns() + _LAST_WORDS_NS, lambda now: self.cm.died(process, now))

    # ------------------------------------------------------------------ requests

    def _request(self, event: cm.Event) -> None:
        assert isinstance(event.listener, cm.Listener)
        service = self.services.get(event.listener.service_id)
        assert isinstance(event.source.peer, Peer)
        entry = self.context.query_gid(1, event.source.peer.sgid_index)
        listening = service.choose(entry.ip) if service else None
        if listening is None:
            event.source.close(monotonic_ns())
        else:
            listening.service.request(listening, self, event)

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
            self.gsi.quiet()
            self._work()
        return True

    def _work(self) -> None:
        got = self.gsi.take()
        self._more = got is not None
        for data, source in got or ():
            self.hear(data, source)
        self._bury()
        now = monotonic_ns()
        self.cm.timer(now)
        self._fire(now)
        for change in self._changes.take():
            self._changed(change)
        self.flush()

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
                self._mistake(f"a timer, {call!r},", error)
            else:
                if again is not None:
                    self.at(again, call)

    def _mistake(self, what: str, error: Exception) -> None:
        """Log a mistake of rnic, or a lack of memory. It costs one datagram or call, not all the ids of the
        device.
        """
        level = DEBUG if self.mistakes else ERROR
        self.mistakes += 1
        _log.log(level, "%s: %s met a mistake in rnic", self.context.name, what, error=error)

    def _deadline(self) -> int | None:
        first = self._timers[0][0] if self._timers else None
        return min(
            (due for due in (first, self.cm.deadline(), self._linger) if due is not None), default=None
        )

    def _changed(self, change: routes.Change) -> None:
        """An address or the network interface was removed."""
        if change.ifindex != self.ifindex:
            return
        for one in list(self.ids):
            if change.kind == routes.DELLINK:
                one.device_removed(self)
            elif one.local.ip == change.address:
                one.address_changed()

    def _is_done(self) -> bool:
        """Whether no id is left, and every peer knows, or has had time enough."""
        if self._linger is None:
            return False
        leaving = (cm.State.DREQ_SENT, cm.State.DREQ_RCVD)
        open_yet = any(one.state in leaving for one in self.cm.table.exchanges())
        return not open_yet or monotonic_ns() >= self._linger

    def _fail(self, error: BaseException) -> None:
        """Tell every id that its device is gone, so that nothing waits for ever."""
        self.failed = error
        with contextlib.suppress(MemoryError):
            _log.error("the agent of %s has failed", self.context.name, error=error)
        for one in list(self.ids):
            one.device_removed(self, -EIO)
        self.on_end(self)

    def _end(self) -> None:
        """Close everything; the next call completes what an exception has interrupted."""
        if self._given_back:
            return
        self.ended = True
        self.on_end(self)
        self._close_fds()
        try:
            self.gsi.close()
            self.pd.close()
            self.context.close()
        except VerbsError as error:  # somebody uses the context or the protection domain yet
            _log.info("%s stays open: %s", self.context.name, error)
            with contextlib.suppress(VerbsError):
                self._let_go()
        self._given_back = True

    def _let_go(self) -> None:
        """Both close with what uses them."""
        for handle in (self.pd, self.context):
            handle.__exit__(VerbsError, None, None)

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
        self._changes.close()
        self._processes.close()
        self._drop_bell()

    def _drop_bell(self) -> None:
        self._wake = None
