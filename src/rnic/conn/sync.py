# SPDX-License-Identifier: Apache-2.0
"""Synchronous connections and listeners: every call pumps the connection until it is done."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from errno import ESHUTDOWN
from functools import partial
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Self, overload

from rnic.conn.agents import Agents
from rnic.conn.core import Core
from rnic.conn.dial import Dial
from rnic.conn.ending import GRACE
from rnic.conn.face import ListenerFace, room
from rnic.conn.handshake import HANDSHAKE_TIMEOUT, MAX_HALF_OPEN, Admit, AnyDevice, Desk, Limits
from rnic.conn.messages import ANY, AnyTag, check_number, check_room, put
from rnic.conn.remote import Remote
from rnic.conn.waits import sleep
from rnic.endpoint import Config
from rnic.errors import VerbsError
from rnic.rdmacm.sockaddr import hosts
from rnic.times import after, earliest, seconds

if TYPE_CHECKING:
    from rnic.endpoint.buffers import AnyBuffer


class Connection(Remote):
    """One end of a connection between two programs; connect() and Listener.accept() make it; a context
    manager.

    It makes progress while one of its methods runs. The peer's reads, writes and atomics in shared memory
    need no method of this end. Only one thread at a time may use a connection: a second call raises
    RuntimeError, except hang_up(). A call that reaches its time limit raises TimeoutError, and the connection
    stays usable. It also stays usable after an exception from a signal handler, such as Ctrl-C. When the
    connection has ended, calls raise an EndpointError with the reason.
    """

    def send(self, message: AnyBuffer, timeout: float | None = None, *, tag: int = 0) -> None:
        """Send a message of any size; returns when all of it is on its way, and the buffer may be changed.

        It waits while the peer accepts no messages. After TimeoutError, or another exception from outside,
        the buffer is free, and the peer gets the whole message or nothing of it. close() tells whether
        everything has arrived in the peer's memory; only an answer tells that its program has taken it. `tag`
        is a number for recv(tag=...), 64 bits; ValueError if the peer's version of rnic is too old for tags.
        """
        core, machine = self._core, self._core.machine
        self._enter("send", timeout)
        try:
            handle = machine.handle + 1
            try:
                sent = -ESHUTDOWN if core.gone else machine.send(message, tag or 0)
                if sent and (sent > 0 or core.messages.send(message, tag)):  # which says why it was refused
                    wait = partial(machine.wait_sent, handle)
                    self._until(wait, lambda: core.messages.is_sent(handle), timeout, "send")
                    core.messages.raise_unsent(handle)
            except BaseException as error:
                machine.take_back(handle)
                if isinstance(error, TimeoutError):  # else the next call tells the peer
                    core.pump(monotonic())
                elif isinstance(error, TypeError):
                    check_number(tag, "send()")
                raise
        finally:
            self._inside = None

    @overload
    def recv(self, timeout: float | None = None, *, tag: int | None = None) -> bytes: ...

    @overload
    def recv(self, timeout: float | None = None, *, tag: AnyTag) -> tuple[bytes, int]: ...

    def recv(
        self, timeout: float | None = None, *, tag: int | AnyTag | None = None
    ) -> bytes | tuple[bytes, int]:
        """Wait for the next message, and return it; raises EOFError after the peer has closed its end.

        A call that raises takes no message. `tag`: take the next message that was sent with this tag. Other
        messages wait meanwhile, up to Config.max_backlog; beyond that the peer waits. With `tag=rnic.ANY` the
        call takes the next message of any tag, and returns the message and its tag.
        """
        core, wanted = self._core, None if tag is ANY else tag
        if wanted is not None:
            core.messages.check_tag(wanted, "recv()")
        self._enter("recv", timeout)
        data: bytes
        try:
            machine = core.machine
            if core.gone or timeout == 0 or not machine.recv(wanted, 0.0):  # it is here, or comes soon
                self._next_message(wanted, timeout, "recv", None)
            data, found = machine.hand, machine.tag
            machine.hand = None  # no call from here on, behind which an exception could come
            return (data, found) if tag is ANY else data
        finally:
            self._inside = None

    def _next_message(
        self, tag: int | None, timeout: float | None, what: str, target: memoryview | None
    ) -> None:
        """Wait for a message, which is in the machine's hand then; an announced one may land in `target`."""
        core, machine = self._core, self._core.machine
        if core.gone:
            core.messages.raise_none(tag)

        def is_here() -> bool:
            if machine.take(tag):
                return True
            if target is not None:
                check_room(machine.offered, target)
            core.messages.raise_none(tag)
            return False

        self._until(partial(machine.recv, tag), is_here, timeout, what, tag)

    def recv_into(self, buffer: AnyBuffer, timeout: float | None = None, *, tag: int | None = None) -> int:
        """Receive the next message into a buffer, as recv() does; returns the number of bytes.

        A message that the peer announces (Config.announce) goes straight into the buffer, unless the call
        asks for a `tag`. Raises ValueError if the buffer is too small; the message stays. After any exception
        the buffer may have been changed. After TimeoutError it may still be changed until a further message
        is received, or close() has returned.
        """
        core, target = self._core, room(buffer)
        if tag is not None:
            core.messages.check_tag(tag, "recv_into()")
        self._enter("recv_into", timeout)
        machine = core.machine
        try:
            if tag is None:
                machine.aim(target)
            self._next_message(tag, timeout, "recv_into", target)
            length = put(machine.hand, target)
            machine.hand = None
            return length
        finally:
            try:
                machine.aim(None)
            finally:
                self._inside = None

    def fileno(self) -> int:
        """The descriptor of the connection, for select, poll and selectors; -1 after the end.

        It becomes readable when recv() may have something to say. It does not tell of messages that are here
        already: take them first, by recv(timeout=0) until that raises TimeoutError. The connection makes
        progress only while a call runs, so call recv(timeout=0) now and then if nothing comes.
        """
        return -1 if self._core.released else self._core.fileno()

    def close(self, timeout: float | None = 5.0) -> None:
        """Close the connection after everything was sent, and wait until all is in the peer's memory and the
        peer closes its end, too.

        Messages that the peer's program has not taken when it closes its end are dropped, without an error:
        let it answer what must not get lost, and wait for the answer before close().

        If that takes longer than `timeout` seconds, or the connection has failed, it raises EndpointError,
        once. In any case everything is closed.
        """
        core = self._core
        if core.given_back:
            return
        self._enter("close", timeout)
        try:
            known = core.is_known
            core.close(timeout)
            self._end(None if timeout is None else timeout + GRACE, "close")
        finally:
            self._inside = None
        if core.error is not None and not known:
            raise core.error

    def abort(self, text: str = "the program aborted the connection") -> None:
        """End the connection at once, and tell the peer why; messages on their way may be lost."""
        if self._core.given_back:
            return
        self._enter("abort")
        try:
            self._core.abort(text)
            self._end(GRACE, "abort")
        finally:
            self._inside = None

    def _drop(self, text: str) -> None:
        """As abort(), without waiting: a peer that does not get the message learns of the end from the
        disconnect.
        """
        try:
            self._core.abort(text)
            self._core.pump(monotonic())
        finally:
            self._core.release()

    def _end(self, timeout: float | None, what: str) -> None:
        try:
            self._wait(lambda: self._core.finished, timeout, what)
        except TimeoutError:
            pass
        finally:
            self._core.release()

    def hang_up(self) -> None:
        """End the connection at once, from another thread; its calls, also a running one, raise LostError."""
        self._core.end.hang_up()

    def __iter__(self) -> Iterator[bytes]:
        """Messages, until the peer closes its end."""
        while True:
            try:
                message = self.recv()
            except EOFError:
                return
            yield message

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if (why := self._core.why_abort(value)) is None:
            self.close()
        else:
            self.abort(why)

    def __del__(self) -> None:
        core: Core | None = getattr(self, "_core", None)
        if core is not None and not core.given_back:
            warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)
            core.end.forget()


class Listener(ListenerFace):
    """Accepts connections at an address and port; listen() makes it; a context manager and an iterator."""

    def accept(self, timeout: float | None = None) -> Connection:
        """Wait for the next connection, and return it. A peer that is not an rnic endpoint is refused, with
        the reason.

        Raises TimeoutError after `timeout` seconds. Raises VerbsError: EBADF if the listener is closed, also
        by another thread during the call.
        """
        until, core = after(timeout), None
        try:
            with self._desk.waiting():
                while (core := self._desk.take(monotonic())) is None:
                    if until is not None and monotonic() >= until:
                        raise TimeoutError(f"accept: no connection within {timeout} s")
                    sleep((self._desk.fileno(),), until)
            return Connection(core)
        except BaseException:
            if core is not None:  # an exception from outside
                core.release()
            raise

    def __iter__(self) -> Iterator[Connection]:
        """Connections, until close()."""
        while not self._desk.closed:
            try:
                yield self.accept()
            except VerbsError:
                if not self._desk.closed:
                    raise

    def serve(self, agent: Callable[[Connection], object], *, grace: float | None = 5.0) -> None:
        """Call `agent` for each connection, in a thread of its own, until close().

        A connection is closed when its agent returns, or ends by the EOFError of its recv(). If an agent
        raises another exception, it is logged, and the connection is aborted. close() ends serve(), from an
        agent, another thread or a signal handler; so does an exception here, such as KeyboardInterrupt. Then
        no new connection is served. Agents have `grace` seconds to finish, and then lose their connections.
        After an exception, an agent that would wait for a message gets ClosedError at once.
        """
        seconds(grace, "grace")
        agents, interrupted = Agents(agent), True
        self._desk.serves_to_the_end = True
        try:
            for conn in self:
                agents.begin(conn)
            interrupted = False
        finally:
            self.close()
            for core in self._desk.take_left():
                agents.begin(Connection(core))
            if interrupted:
                agents.call_back()
            agents.dismiss(grace)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def connect(
    host: str,
    port: int,
    *,
    timeout: float | None = 10.0,
    config: Config | None = None,
    data: bytes = b"",
    device: AnyDevice = None,
) -> Connection:
    """Connect to a program that listens with rnic.listen() or rnic.aio.listen().

        with rnic.connect("192.0.2.1", 7471) as conn:
            conn.send(b"hello")

    `data` goes to the listener's admit(), at most 24 bytes: a token, or the name of a service. `device`
    chooses the device, by its name or as a Device: "iwarp_eth0", for example. None: the first one of
    get_device_list() that has the address from which the host is reached.

    Raises RefusedError if no program listens there, or it refuses; NoHelloError or VersionError if it is
    another kind of program, or another version; TimeoutError after `timeout` seconds; VerbsError if there is
    no route to the host. The addresses of a name are tried one after the other, until a program there
    accepts or refuses. A silent address has its share of the time: 5 of 10 seconds, if one more is left.
    """
    until = after(timeout)
    dial = Dial(hosts(host, port, "connect"), port, config, data, device, until)
    try:
        while not dial.step(monotonic()):
            if until is not None and monotonic() >= until:
                raise TimeoutError(
                    f"connect: no answer from {dial.name} within {timeout} s: {dial.silence()}"
                )
            sleep((dial.fileno(),), earliest(until, dial.deadline))
        assert dial.core is not None
        return Connection(dial.core)
    except BaseException:
        dial.abandon()
        raise


def listen(
    host: str,
    port: int,
    *,
    backlog: int = 0,
    config: Config | None = None,
    max_connections: int | None = None,
    max_half_open: int = MAX_HALF_OPEN,
    handshake_timeout: float = HANDSHAKE_TIMEOUT,
    admit: Admit | None = None,
    device: AnyDevice = None,
) -> Listener:
    """Listen for connections at an address, "0.0.0.0" or "::" for all; port 0 chooses a free one.

    `backlog` is the number of requests that may wait for the program, 0: 1024. `max_connections` limits the
    connections; None: as many as descriptors, memory and threads allow. Further requests are refused
    (RefusedError at the peer, reason 3), and the other connections go on. `handshake_timeout` is in seconds:
    if a peer does not finish the handshake within this time, its connection is given up. At most
    `max_half_open` connections are in this state; a new one replaces the oldest.

    `admit(data, address)` is called for each request, with the `data` of connect() and the client's address.
    It returns the answer, which the client finds in `peer_data`: at most 164 bytes, or None. If it raises
    PermissionError, the client gets RefusedError with its text.

    `device` chooses the device, by its name or as a Device. None: at "0.0.0.0" and "::" all devices, RoCE and
    iWARP, else the first one of get_device_list() that has the address.
    """
    limits = Limits(backlog, max_connections, max_half_open, handshake_timeout)
    return Listener(Desk(host, port, config, limits, admit, device))
