# SPDX-License-Identifier: Apache-2.0
"""The handshake of two ends, in steps that never wait: Desk answers requests (dial.py asks)."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Callable, Iterator
from errno import EAGAIN, EBADF, EINVAL, EMFILE, ENFILE, ENODEV, ENOMEM, ENOSPC
from typing import Any

from rnic.conn.core import Core
from rnic.endpoint import (
    Config,
    EndpointError,
    ProtocolError,
    Reason,
    refusal,
)
from rnic.endpoint.hello import MAX_DATA_ANSWERING
from rnic.errors import VerbsError, exhausted
from rnic.log import INFO, WARNING, Log
from rnic.rdmacm import CmId, ConnParam, Event, EventChannel, EventType, create_id
from rnic.rdmacm.sockaddr import SockAddr
from rnic.records import Record
from rnic.verbs.context import Context
from rnic.verbs.device import Device

_log = Log("rnic.conn")
_LACKING = (EMFILE, ENFILE, ENOMEM, ENOSPC, EAGAIN)

MAX_HALF_OPEN = 128
HANDSHAKE_TIMEOUT = 10.0  # seconds


AnyDevice = str | Device | Context | None
"""A device by its name, as a Device or as the Context of one; None: the first that serves the address."""

Admit = Callable[[bytes, Any], bytes | None]
"""Gets the data of the peer's connect() and its address; returns the answer, or raises PermissionError.

The address is a SockAddr. Any lets a program that knows its network say tuple[str, int].
"""


class Limits(Record):
    """The limits of a listener; listen() documents each of them."""

    backlog: int = 0
    max_connections: int | None = None
    max_half_open: int = MAX_HALF_OPEN
    handshake_timeout: float = HANDSHAKE_TIMEOUT

    def check_backlog(self) -> None:
        """TypeError or VerbsError (EINVAL) for a backlog that cannot be."""
        if not hasattr(self.backlog, "__index__"):
            raise TypeError(f"listen(): backlog is a whole number, not {self.backlog!r}")
        if self.backlog < 0:
            raise VerbsError(EINVAL, f"backlog is {self.backlog}; it is 1 at least, or 0 for 1024", "listen")


class Desk:
    """An id that listens, and the requests that arrive there.  A peer without a hello is refused, in words.

    A connection is half-open until its peer has sent the last message of the handshake, or data.  Until then
    the desk pumps it, so it needs no thread and no task.
    """

    def __init__(
        self,
        host: str,
        port: int,
        config: Config | None,
        limits: Limits,
        admit: Admit | None = None,
        device: AnyDevice = None,
    ) -> None:
        self.config = Config.given(config, "listen")
        limits.check_backlog()
        if admit is not None and not callable(admit):
            raise TypeError(f"listen(): admit is a function (data, address), not {type(admit).__name__}")
        self._admit = admit
        self.closed = False
        self._pid = os.getpid()
        self._half_open: dict[int, Core] = {}  # by descriptor
        # The core that is being pumped: after an exception its descriptor may be quiet with work left.
        self._pumped: Core | None = None
        self._event: Event | None = None  # the event that was taken out of the channel and is being handled
        self._begun: Event | None = None  # the request that is being served
        self._left: list[Core] = []
        self.serves_to_the_end = False
        """The program will call take_left(), so close() keeps the connections that were accepted."""
        self._waiters = 0
        self._warned = False
        self._lock = threading.RLock()  # reentrant, as a signal handler may call close()
        with contextlib.ExitStack() as undo:
            self._epoll = undo.enter_context(_epoll())
            self.channel = undo.enter_context(EventChannel())
            self.cm_id = undo.enter_context(create_id(self.channel, device=device))
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
        """Enter this to wait for fileno(): close() wakes the waiters, and the last closes the descriptor."""
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
        if self._pid != os.getpid():
            raise VerbsError(EINVAL, "the listener is the parent's: this process was forked", "accept")
        if self.closed:
            raise VerbsError(EBADF, "the listener is closed", "accept")

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when take() has something to do."""
        return self._epoll.fileno()

    def take(self, now: float) -> Core | None:
        """Return the next connection, or None if there is none yet.  From any thread.

        VerbsError (EBADF) when the desk is closed.
        """
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
                self._take_event(self._event)
        return core

    def _take_event(self, event: Event) -> None:
        """Handle one event.  When called again after an exception, refuse the request that was begun."""
        self.channel.drop(event)
        if event is self._begun:
            self._drop(event.id)
        elif event.event is EventType.CONNECT_REQUEST and isinstance(event.param, ConnParam):
            self._begun = event
            self._serve(event.id, event.param)
        self._event = self._begun = None
        if event.event is EventType.DEVICE_REMOVAL:
            raise VerbsError(ENODEV, "the device is gone", "accept")

    def _drop(self, one: CmId) -> None:
        for core in [core for core in self._half_open.values() if core.cm_id is one]:
            self._let_go(core)
        one.destroy()

    # ------------------------------------------------------------ requests

    def _serve(self, one: CmId, param: ConnParam) -> None:
        """Answer one request; when that fails, log it, so that the listener goes on."""
        try:
            self._answer(one, param)
        except (EndpointError, OSError, MemoryError) as error:
            self.not_served(one.get_peer_addr(), error)

    def not_served(self, peer: SockAddr | None, error: BaseException) -> None:
        """Log that a request was not served; as a warning the first time that a resource has run out."""
        lacks = lacking(error) and not self._warned
        self._warned = self._warned or lacks
        text = "a request from %s was not served: %s"
        _log.log(WARNING if lacks else INFO, text, peer, exhausted(error))

    def _answer(self, one: CmId, param: ConnParam) -> None:
        try:
            core = Core(one, self.config)
        except BaseException as error:
            _refuse(one, error)
            one.destroy()
            raise
        try:
            self._epoll.register(core.fileno(), select.EPOLLIN)
            self._half_open[core.fileno()] = core
            core.greet(param.private_data)
            one.accept(ConnParam(core.hello(self._answer_to(core))))
        except BaseException as error:
            _refuse(one, error)
            self._let_go(core)
            raise

    def _answer_to(self, core: Core) -> bytes:
        """Return the data that admit() gives for this peer; PermissionError when it refuses the peer."""
        peer = core.cm_id.get_peer_addr()
        if self._admit is None:
            return b""
        if peer is None:
            raise PermissionError("the address of the client is not known")
        try:
            said = self._admit(core.peer_data, peer)
            answer = b"" if said is None else bytes(memoryview(said))
            if len(answer) > MAX_DATA_ANSWERING:
                raise ValueError(f"{len(answer)} bytes, a reply has room for {MAX_DATA_ANSWERING}")
        except Exception as error:
            if isinstance(error, PermissionError) and error.errno is None:  # one with an errno is from open()
                raise
            _log.error("admit() has failed for a request from %s", peer, error=error)
            raise PermissionError("the server could not decide about the request") from error
        return answer

    def _look_after(self, now: float) -> Core | None:
        """Return the first connection that is established, or None; release those that have failed.

        The other connections stay, so that fileno() is readable for the next call.
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
        if core.machine.established:  # also one that has ended since, as the program may take its messages
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
            with contextlib.suppress(OSError):  # already unregistered, when an exception came between
                self._epoll.unregister(fd)
            self._half_open.pop(fd, None)

    # ------------------------------------------------------------ the end

    def take_left(self) -> list[Core]:
        """Return the connections that close() has kept; those that are left afterwards are released."""
        with self._lock:
            left, self._left = self._left, []
            self.serves_to_the_end = False
        return left

    def close(self) -> None:
        """Stop listening: refuse the requests that wait, and wake every take(), which raises EBADF."""
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
        """Have another thread close the desk.  For finalisers, which may take no lock."""
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
    """Whether the error says that descriptors, memory or threads have run out."""
    return isinstance(error, MemoryError | RuntimeError) or getattr(error, "errno", None) in _LACKING


def _refuse(one: CmId, error: BaseException) -> None:
    """Reject a request; the REJ says why in words, or that there is no room."""
    with contextlib.suppress(VerbsError):  # the peer may have given up
        if isinstance(error, ProtocolError):
            one.reject(refusal(error.reason, str(error)))
        elif isinstance(error, PermissionError):
            one.reject(refusal(Reason.APPLICATION, str(error)))
        elif lacking(error):
            one.reject_busy()
