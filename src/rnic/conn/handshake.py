# SPDX-License-Identifier: Apache-2.0
"""How two ends find each other, step by step, without waiting: Dial for who asks, Desk for who is asked."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Callable, Iterator
from errno import EAGAIN, EBADF, EINVAL, EMFILE, ENFILE, ENODEV, ENOMEM, ENOSPC

from rnic.conn.core import Core
from rnic.endpoint import (
    Config,
    EndpointError,
    LostError,
    ProtocolError,
    Reason,
    RefusedError,
    Role,
    parse_refusal,
    refusal,
)
from rnic.endpoint.hello import MAX_DATA_ANSWERING, MAX_DATA_ASKING
from rnic.errors import VerbsError, exhausted
from rnic.log import INFO, WARNING, Log
from rnic.rdmacm import CmId, ConnParam, Event, EventChannel, EventType, Timing, create_id, reach
from rnic.rdmacm.sockaddr import SockAddr
from rnic.records import Record
from rnic.wire import RejReason, rej_reason
from rnic.wording import nobody_listens, place

_log = Log("rnic.conn")
_LACKING = (EMFILE, ENFILE, ENOMEM, ENOSPC, EAGAIN)
_FAILED = (EventType.ADDR_ERROR, EventType.ROUTE_ERROR, EventType.CONNECT_ERROR)
# A lost message comes again after a second, not after five as the kernel has it: connect() waits for ten.  A
# peer that needs longer to accept says so with an MRA.
_TIMING = Timing(response_timeout=17)

MAX_HALF_OPEN = 128
HANDSHAKE_TIMEOUT = 10.0  # seconds


Admit = Callable[[bytes, SockAddr], bytes | None]
"""Gets what connect() said there, and the address; returns the answer, or raises PermissionError."""


class Limits(Record):
    """How much a listener takes on; what each is, listen() says."""

    backlog: int = 0
    max_connections: int | None = None
    max_half_open: int = MAX_HALF_OPEN
    handshake_timeout: float = HANDSHAKE_TIMEOUT


class Dial:
    """A connection that is being made; `core` is there when it has been."""

    def __init__(self, host: str, port: int, config: Config, data: bytes = b"") -> None:
        if len(data) > MAX_DATA_ASKING:
            raise ValueError(f"connect(): data has {len(data)} bytes, there is room for {MAX_DATA_ASKING}")
        self._data = bytes(data)
        self.host, self.port = host, port
        self.name = place(host, port)
        self.config = config
        self.core: Core | None = None
        self.done = False
        self.channel = EventChannel()
        self.cm_id = create_id(self.channel, timing=_TIMING)
        try:
            self.cm_id.resolve_addr(None, (host, port))
        except BaseException:
            self.abandon()
            raise

    def fileno(self) -> int:
        """Readable when step() has something to do."""
        return self.channel.fileno()

    def silence(self) -> str:
        """Why there is no answer, as far as it can be known; takes up to 50 ms."""
        return reach.words(self.cm_id.silence())

    def step(self, now: float) -> bool:
        """Go on with what has happened; True when it is connected.  Raises when it cannot be."""
        while not self.done:
            if (event := self.channel.peek()) is None:
                return False
            self.channel.drop(event)  # not delivered, so that abandon() need not wait for an ack()
            self._on(event, now)
        return True

    def _on(self, event: Event, now: float) -> None:
        data = event.param.private_data if isinstance(event.param, ConnParam) else b""
        match event.event:
            case EventType.ADDR_RESOLVED:
                self.cm_id.resolve_route()
            case EventType.ROUTE_RESOLVED:
                self.core = Core(self.cm_id, self.config, Role.INITIATOR)
                self.channel.close()
                self.channel = self.core.channel
                self.cm_id.connect(ConnParam(self.core.hello(self._data)))
            case EventType.ESTABLISHED:
                self._greet(data, now)
            case EventType.REJECTED:
                raise self._rejected(event.status, data)
            case EventType.UNREACHABLE:
                raise LostError(f"{self.name} does not answer: {reach.words(-event.status)}")
            case kind if kind in _FAILED:
                code = -event.status
                raise VerbsError(code, f"{self.name}: {kind.name}, {os.strerror(code)}", "connect")
            case kind:
                raise LostError(f"{self.name}: {kind.name} during the handshake")

    def _greet(self, data: bytes, now: float) -> None:
        assert self.core is not None
        self.core.established = True
        self.core.greet(data, now)
        self.done = True

    def _rejected(self, reason: int, data: bytes) -> EndpointError:
        if reason == RejReason.CONSUMER_DEFINED:
            return parse_refusal(data)
        if reason == RejReason.NO_RESOURCES:
            text = (
                f"{self.name} has no room for one more connection now: a limit of the listener or its process"
            )
            return RefusedError(text, reason)
        if reason == RejReason.INVALID_SERVICE_ID:
            return RefusedError(nobody_listens(self.host, self.port), reason)
        return RefusedError(f"{self.name} rejected the request: reason {rej_reason(reason)}", reason)

    def abandon(self) -> None:
        """It is not wanted, or has failed."""
        if self.core is not None:
            self.core.release()
        else:
            self.cm_id.destroy()
            self.channel.close()


class Desk:
    """Where requests arrive: an id that listens.  Who is no endpoint is refused, in words.

    A connection is half-open until its peer has said the last word of the handshake, or has sent something;
    so long the desk keeps it going, and it costs nobody a thread or a task.
    """

    def __init__(
        self, host: str, port: int, config: Config, limits: Limits, admit: Admit | None = None
    ) -> None:
        self.config = config
        self._admit = admit
        self.closed = False
        self._half_open: dict[int, Core] = {}  # by descriptor
        # An exception may have interrupted its pump(): then its descriptor does not tell of what is left.
        self._pumped: Core | None = None
        self._event: Event | None = None  # taken out of the channel, and not done with
        self._begun: Event | None = None  # a request that is being served
        self._left: list[Core] = []
        self.serves_to_the_end = False
        """Somebody comes for take_left(): a peer that was accepted is served, also when it came last."""
        self._waiters = 0
        self._warned = False
        self._lock = threading.RLock()  # a signal handler may close it
        with contextlib.ExitStack() as undo:
            self._epoll = undo.enter_context(_epoll())
            self.channel = undo.enter_context(EventChannel())
            self.cm_id = undo.enter_context(create_id(self.channel))
            self._epoll.register(self.channel.fileno(), select.EPOLLIN)
            self.cm_id.bind_addr((host, port))
            self.cm_id.listen(
                limits.backlog,
                max_connections=limits.max_connections,
                max_half_open=limits.max_half_open,
                handshake_timeout=limits.handshake_timeout,
            )
            undo.pop_all()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Around whatever waits for fileno(): close() wakes it, and closes the descriptor behind it."""
        with self._lock:
            self._check_open()
            self._waiters += 1
        try:
            yield
        finally:
            with self._lock:
                self._waiters -= 1
                last = self.closed and not self._waiters
            if last:
                self._release()

    def _check_open(self) -> None:
        if self.closed:
            raise VerbsError(EBADF, "the listener is closed", "accept")

    def fileno(self) -> int:
        """Readable when take() has something to do."""
        return self._epoll.fileno()

    def take(self, now: float) -> Core | None:
        """The next connection; None: there is none yet.  EBADF when the desk is closed.  Any thread."""
        core = None
        try:
            with self._lock:
                core = self._take(now)
        except BaseException:
            if core is not None:
                core.release()
            raise
        return core

    def _take(self, now: float) -> Core | None:
        self._check_open()
        if (core := self._look_after(now)) is None:
            self._event = self._event or self.channel.peek()
            if self._event is not None:
                self._take_event(self._event, now)
        return core

    def _take_event(self, event: Event, now: float) -> None:
        """Again after an exception: a request that was begun is given up then, and its peer hears so."""
        self.channel.drop(event)
        if event is self._begun:
            self._drop(event.id)
        elif event.event is EventType.CONNECT_REQUEST and isinstance(event.param, ConnParam):
            self._begun = event
            self._serve(event.id, event.param, now)
        self._event = self._begun = None
        if event.event is EventType.DEVICE_REMOVAL:
            raise VerbsError(ENODEV, "the device is gone", "accept")

    def _drop(self, one: CmId) -> None:
        for core in [core for core in self._half_open.values() if core.cm_id is one]:
            self._let_go(core)
        one.destroy()

    # ------------------------------------------------------------ requests

    def _serve(self, one: CmId, param: ConnParam, now: float) -> None:
        """One request that comes to nothing ends no listener, and nothing but itself."""
        try:
            self._answer(one, param, now)
        except (EndpointError, OSError, MemoryError) as error:
            self.not_served(one.get_peer_addr(), error)

    def not_served(self, peer: SockAddr | None, error: BaseException) -> None:
        """Say so: the first time that something runs out, as a warning."""
        lacks = lacking(error) and not self._warned
        self._warned = self._warned or lacks
        text = "a request from %s was not served: %s"
        _log.log(WARNING if lacks else INFO, text, peer, exhausted(error))

    def _answer(self, one: CmId, param: ConnParam, now: float) -> None:
        try:
            core = Core(one, self.config, Role.ACCEPTOR)
        except BaseException as error:
            _refuse(one, error)
            one.destroy()
            raise
        try:
            self._epoll.register(core.fileno(), select.EPOLLIN)
            self._half_open[core.fileno()] = core
            core.greet(param.private_data, now)
            one.accept(ConnParam(core.hello(self._answer_to(core))))
        except BaseException as error:
            _refuse(one, error)
            self._let_go(core)
            raise

    def _answer_to(self, core: Core) -> bytes:
        """What the program says to this peer; PermissionError when it does not want it."""
        peer = core.cm_id.get_peer_addr()
        if self._admit is None or peer is None:
            return b""
        try:
            said = self._admit(core.peer_data, peer)
            answer = b"" if said is None else bytes(memoryview(said))
            if len(answer) > MAX_DATA_ANSWERING:
                raise ValueError(f"{len(answer)} bytes, a reply has room for {MAX_DATA_ANSWERING}")
        except Exception as error:
            if isinstance(error, PermissionError) and error.errno is None:  # else it is open()'s, with a path
                raise
            _log.error("admit() has failed for a request from %s", peer, error=error)
            raise PermissionError("the server could not decide about the request") from error
        return answer

    def _look_after(self, now: float) -> Core | None:
        """The first connection that is established; those that came to nothing are given back.

        The others stay where they are, so that fileno() is readable for whoever waits for the next one.
        """
        told = [self._half_open.get(fd) for fd, _ in self._epoll.poll(0)]
        for core in (self._pumped, *told):
            if core is not None and self._is_established(core, now):
                self._pumped = None
                return core
        self._pumped = None
        return None

    def _is_established(self, core: Core, now: float) -> bool:
        self._pumped = core
        try:
            core.pump(now)
        except (OSError, MemoryError) as error:
            self.not_served(core.cm_id.get_peer_addr(), error)
            self._let_go(core)
            return False
        if core.established:  # also one that has ended since: its messages are the program's
            self._forget(core)
            return True
        if core.ended:
            self._let_go(core)
        return False

    def _let_go(self, core: Core) -> None:
        self._forget(core)
        core.release()

    def _forget(self, core: Core) -> None:
        fd = core.fileno()
        if fd in self._half_open:
            with contextlib.suppress(OSError):  # it was done, and an exception came
                self._epoll.unregister(fd)
            self._half_open.pop(fd, None)

    # ------------------------------------------------------------ the end

    def take_left(self) -> list[Core]:
        """What was accepted when the desk was closed, and nobody has got; what is left later is let go."""
        with self._lock:
            left, self._left = self._left, []
            self.serves_to_the_end = False
        return left

    def close(self) -> None:
        """Take no more; requests that wait are refused, and who waits for them hears that it is closed."""
        with self._lock:
            if self.closed:
                return
            self.closed = True
            waiters = self._waiters
        if waiters:
            self.channel.wake()
        else:
            self._release()

    def forget(self) -> None:
        """Nobody holds it any more: another thread closes it.  For finalisers, which may take no lock."""
        self.serves_to_the_end = False
        self.cm_id.later(self.close)

    def _release(self) -> None:
        if self._event is not None and self._event.listen_id is not None:
            self._drop(self._event.id)
        with self._lock:
            self._left = list(self._half_open.values())
            self._half_open.clear()
            somebody_comes = self.serves_to_the_end
        if not somebody_comes:
            for core in self.take_left():
                core.release()
        self.cm_id.destroy()
        self.channel.close()
        self._epoll.close()


def _epoll() -> select.epoll:
    try:
        return select.epoll()
    except OSError as error:
        raise VerbsError(error.errno or EINVAL, f"epoll: {exhausted(error.errno or 0)}", "listen") from None


def lacking(error: BaseException) -> bool:
    """Whether something has run out: descriptors, memory or threads."""
    return isinstance(error, MemoryError | RuntimeError) or getattr(error, "errno", None) in _LACKING


def _refuse(one: CmId, error: BaseException) -> None:
    """The peer hears why: in words, or that there is no room."""
    with contextlib.suppress(VerbsError):  # the peer may have given up
        if isinstance(error, ProtocolError):
            one.reject(refusal(error.reason, str(error)))
        elif isinstance(error, PermissionError):
            one.reject(refusal(Reason.APPLICATION, str(error)))
        elif lacking(error):
            one.reject_busy()
