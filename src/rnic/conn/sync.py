# SPDX-License-Identifier: Apache-2.0
"""Synchronous connections: every call pumps the connection until it is done, and sleeps in between."""

from __future__ import annotations

import select
import threading
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rnic._nic.nic import MR, word
from rnic.conn.arrays import Layout
from rnic.conn.batch import BatchFace
from rnic.conn.core import GRACE, Core
from rnic.conn.face import COMPARE_SWAP, FETCH_ADD, Face, ListenerFace, room
from rnic.conn.handshake import HANDSHAKE_TIMEOUT, MAX_HALF_OPEN, Admit, Desk, Dial, Limits
from rnic.conn.ops import Op
from rnic.conn.rendezvous import as_bytes, check_room
from rnic.endpoint import Config, EndpointError, Region
from rnic.enums import AccessFlags
from rnic.errors import VerbsError, exhausted
from rnic.log import Log
from rnic.threads import Thread
from rnic.times import after, bounded, milliseconds, seconds

_log = Log("rnic.conn")

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

    from rnic.endpoint.buffers import AnyBuffer


def sleep(filenos: tuple[int, ...], until: float | None) -> None:
    """Sleep until one of the descriptors is readable, or until a time."""
    poll = select.poll()
    for fd in filenos:
        poll.register(fd, select.POLLIN)
    left = None if until is None else max(0.0, until - monotonic())
    poll.poll(milliseconds(left))


def earliest(*times: float | None) -> float | None:
    """The earliest of some times."""
    return min((one for one in times if one is not None), default=None)


class Connection(Face):
    """One end of a connection between two programs; connect() and Listener.accept() make it; a context
    manager.

    It makes progress while one of its methods runs. The peer's reads, writes and atomics in shared memory
    need no method of this end. Only one thread at a time may use a connection: a second call raises
    RuntimeError, except hang_up(). A call that reaches its time limit raises TimeoutError, and the connection
    stays usable. It also stays usable after an exception from a signal handler, such as Ctrl-C. When the
    connection has ended, calls raise an EndpointError with the reason.
    """

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self._inside: str | None = None  # the call that runs

    def _enter(self, what: str, timeout: float | None = None) -> None:
        """The caller sets _inside back in a `finally` that follows at once: no exception comes in between."""
        if self._inside is not None or self._core.courier.busy:
            other = f"{self._inside}()" if self._inside else "send() or recv()"
            raise RuntimeError(
                f"{what}() while {other} of this connection runs, in another thread or below a handler of a "
                "signal: use a connection for each thread, or rnic.aio; hang_up() may come from any thread"
            )
        seconds(timeout)
        self._inside = what

    def _may_go_short(self) -> bool:
        """No other call runs, and nothing is on the long way that must go first."""
        return self._inside is None and (self._core.courier.open or self._core.take_short_way())

    def _wait(
        self, is_so: Callable[[], bool], timeout: float | None, what: str, until: float | None = None
    ) -> None:
        """`until`: when the timeout is over, if it has begun already."""
        core, until = self._core, after(timeout) if until is None else until
        core.waiting = True
        try:
            while True:
                core.pump(monotonic())
                if is_so():
                    return
                if until is not None and monotonic() >= until:
                    raise TimeoutError(f"{what}: not within {timeout} s")
                if not core.busy:
                    sleep((core.fileno(),), earliest(until, core.deadline()))
        finally:
            core.waiting = False

    def send(self, message: AnyBuffer, timeout: float | None = None, *, tag: int = 0) -> None:
        """Send a message of any size; returns when all of it is on its way, and the buffer may be changed.

        It waits while the peer accepts no messages. After TimeoutError, or another exception from outside,
        the buffer is free, and the peer gets the whole message or nothing of it. close() tells whether
        everything has arrived. `tag` is a number for recv(tag=...), 64 bits; ValueError if the peer's version
        of rnic is too old for tags.
        """
        core = self._core
        if timeout is not None:
            seconds(timeout)
        if self._may_go_short() and core.courier.send(message, tag):
            return
        self._enter("send", timeout)
        try:
            handle = core.next_handle
            try:
                core.send(message, tag)
                self._wait(lambda: core.is_sent(handle), timeout, "send")
            except BaseException as error:
                core.take_back(handle)
                if isinstance(error, TimeoutError):  # else the next call tells the peer
                    core.pump(monotonic())
                raise
            core.raise_unsent(handle)
        finally:
            self._inside = None

    def recv(self, timeout: float | None = None, *, tag: int | None = None) -> bytes:
        """Wait for the next message, and return it; raises EOFError after the peer has closed its end.

        A call that raises takes no message. `tag`: take the next message that was sent with this tag. Other
        messages wait meanwhile, up to Config.max_backlog; beyond that the peer waits.
        The tag is not returned: if a program takes messages of all kinds, put the kind into the message.
        """
        core, until = self._core, None if timeout is None else after(timeout)
        if tag is not None:
            core.check_tag(tag)
        data: bytes
        went_short = self._may_go_short() and (core.courier.recv(timeout != 0) or self._recv_short(until))
        # No call between these looks and the return: a signal's handler could take it, or leave another.
        if went_short and core.courier.hand.__class__ is bytes and (tag is None or tag == core.courier.tag):
            data, core.courier.hand = core.courier.hand, None
            return data
        self._enter("recv", timeout)
        try:
            core.tags = frozenset() if tag is None else frozenset((tag,))
            is_so = core.has_news if tag is None else partial(core.has_tagged, tag)
            while (message := core.next_message(tag)) is None:
                self._wait(is_so, timeout, "recv", until)
            data = as_bytes(message)
            if not core.by_courier:
                core.pump(monotonic())
            core.courier.hand = None  # no call from here on, behind which an exception could come
            return data
        finally:
            core.tags = frozenset()
            self._inside = None

    def recv_into(self, buffer: AnyBuffer, timeout: float | None = None) -> int:
        """Receive the next message into a buffer, as recv() does; returns the number of bytes.

        A message that the peer announces (Config.announce) goes straight into the buffer. Raises ValueError
        if the buffer is too small; the message stays. After any exception the buffer may have been changed.
        After TimeoutError it may still be changed until a further message is received, or close() has
        returned.
        """
        core, until, target = self._core, after(timeout), room(buffer)
        if self._may_go_short() and (core.courier.recv(timeout != 0) or self._recv_short(until)):
            data = core.courier.hand
            if isinstance(data, bytes):  # nor has the handler of a signal taken it
                length = core.fetching.put(data, target)
                core.courier.hand = None
                return length
        self._enter("recv_into", timeout)
        core.fetching.target = target
        try:
            while core.fetching.is_landing or (message := core.next_message()) is None:
                check_room(core.offered, target)
                self._wait(
                    lambda: core.offered > len(target) or (core.has_news() and not core.fetching.is_landing),
                    timeout,
                    "recv_into",
                    until,
                )
            length = core.fetching.put(message, target)
            if not core.by_courier:
                core.pump(monotonic())
            core.fetching.target = core.fetching.landed_in = core.courier.hand = None
            return length
        except BaseException:
            core.fetching.let_target_go(target, core.protocol)
            raise
        finally:
            self._inside = None

    def _recv_short(self, until: float | None) -> bool:
        """Sleep until it is there."""
        core = self._core
        if not core.courier.open:
            return False
        due = earliest(core.deadline(), until)
        return core.courier.sleep(None if due is None else max(0.0, due - monotonic()))

    def share(self, buffer: AnyBuffer, access: AccessFlags | None = None) -> Region:
        """Let the peer read, write and add to a buffer; the peer gets the Region from next_region().

        Returns the Region, for withdraw() and revoke(). `access` says what the peer may do; None: everything
        that Config.access allows (only reading, if the buffer is read-only).
        """
        self._enter("share")
        try:
            region = self._core.share(buffer, access)
            try:
                self._core.pump(monotonic())
            except BaseException:  # the caller does not get it
                self._core.withdraw(region)
                raise
            return region
        finally:
            self._inside = None

    def withdraw(self, region: Region, timeout: float | None = None) -> None:
        """Stop sharing a region; returns when the peer can no longer use the buffer.

        After TimeoutError the withdrawal continues: the buffer is closed to the peer as soon as it confirms.
        If the peer never confirms, use revoke().
        """
        self._enter("withdraw", timeout)
        try:
            self._core.withdraw(region)
            self._wait(lambda: self._core.is_withdrawn(region), timeout, "withdraw")
        finally:
            self._inside = None

    def revoke(self, region: Region) -> None:
        """Stop sharing a region at once, without the peer's confirmation; on return the peer cannot use the
        buffer.

        A peer that still tries loses the connection. Raises VerbsError: EBUSY after a second, if a process of
        this host is stopped in the middle of a copy; then call it again.
        """
        self._enter("revoke")
        try:
            self._core.revoke(region)
            self._core.pump(monotonic())
        finally:
            self._inside = None

    def next_region(self, timeout: float | None = None) -> Region:
        """Wait for the next region that the peer shares, and return it; each region is returned once."""
        self._enter("next_region", timeout)
        try:
            while (region := self._core.next_region()) is None:
                self._wait(self._core.has_region, timeout, "next_region")
            return region
        finally:
            self._inside = None

    def next_withdrawn(self, timeout: float | None = None) -> Region:
        """Wait until the peer has withdrawn a region that next_region() returned, and return it; each is
        returned once.

        Regions to which the program keeps no reference are left out.
        """
        self._enter("next_withdrawn", timeout)
        try:
            while (region := self._core.next_withdrawn()) is None:
                self._wait(self._core.has_withdrawn, timeout, "next_withdrawn")
            return region
        finally:
            self._inside = None

    def write(
        self, local: AnyBuffer | MR, remote: Region, offset: int = 0, *, timeout: float | None = None
    ) -> None:
        """Write a whole buffer into the peer's region, from byte `offset` on; returns when the bytes are
        there.

        Raises ValueError if the region is too short, was withdrawn or does not grant REMOTE_WRITE. After
        TimeoutError the operation continues, and uses the buffer until close() or a later operation has
        returned; so it is for read(), fetch_add() and compare_swap().
        """
        short = partial(self._core.operations.write, local, remote, offset)
        self._operate("write", short, partial(self._write_op, local, remote, offset), timeout)

    def read(
        self, local: AnyBuffer | MR, remote: Region, offset: int = 0, *, timeout: float | None = None
    ) -> None:
        """Fill a whole buffer from the peer's region, from byte `offset` on; returns when it is full.

        For a part of a buffer, give a slice of its memoryview. Raises ValueError if the region is too short,
        was withdrawn or does not grant REMOTE_READ.
        """
        short = partial(self._core.operations.read, local, remote, offset)
        self._operate("read", short, partial(self._read_op, local, remote, offset), timeout)

    def read_array(
        self,
        region: Region,
        *,
        shape: int | tuple[int, ...] | None = None,
        dtype: DTypeLike | None = None,
        timeout: float | None = None,
    ) -> NDArray[Any]:
        """Read the peer's region into a new array, with the region's shape and type, or with the given ones.

        Raises ValueError if the region does not say what array it holds and `shape` and `dtype` are not
        given, or if they do not fit its length; ImportError if NumPy is not installed. `timeout` is in
        seconds.
        """
        array = Layout(region, shape, dtype, "read_array()").empty()
        until = after(timeout)
        for start, piece in self._pieces(array):
            self.read(piece, region, start, timeout=None if until is None else max(0.0, until - monotonic()))
        return array

    def fetch_add(self, remote: Region, n: int, offset: int = 0, *, timeout: float | None = None) -> int:
        """Add `n` to 8 bytes of the peer's region in one step; returns their old value.

        The 8 bytes are an unsigned number in the byte order of the peer's machine, which wraps at 2**64; a
        negative `n` subtracts. Their address, the region's and `offset`, is a multiple of 8. Raises
        ValueError if it is not, if they lie outside of the region, or if 8 bytes do not hold `n`.
        """
        n = word(n, "n")
        short = partial(self._core.operations.atomic, FETCH_ADD, remote, offset, n, 0)
        return self._operate("fetch_add", short, partial(self._add_op, remote, n, offset), timeout)

    def compare_swap(
        self, remote: Region, compare: int, swap: int, offset: int = 0, *, timeout: float | None = None
    ) -> int:
        """Replace 8 bytes of the peer's region by `swap` if they equal `compare`, in one step; returns their
        old value.

        They were replaced if that is `compare`. The numbers and the address are those of fetch_add().
        """
        compare, swap = word(compare, "compare"), word(swap, "swap")
        short = partial(self._core.operations.atomic, COMPARE_SWAP, remote, offset, compare, swap)
        return self._operate(
            "compare_swap", short, partial(self._swap_op, remote, compare, swap, offset), timeout
        )

    def _operate(
        self, what: str, short: Callable[[], int | None], make: Callable[[], Op], timeout: float | None
    ) -> int:
        """By the courier, or, where it cannot, as an Op."""
        core = self._core
        self._enter(what, timeout)
        try:
            core.operations.pending = 0  # of a call that an exception has ended
            if core.may_operate_short() and (found := short()) is not None:
                return found
            op = make()
            if core.operations.pending:
                core.adopt(op)
            else:
                core.start(op)
            self._wait(lambda: op.done, timeout, what)
            return op.result()
        finally:
            self._inside = None

    def batch(self, timeout: float | None = None) -> Batch:
        """Start many operations and wait for all at the end of the block: `with conn.batch() as b:
        b.read(...)`.

        `timeout` is in seconds, for the wait at the end.
        """
        seconds(timeout)
        return Batch(self, timeout)

    def _end_batch(self, batch: Batch, timeout: float | None) -> None:
        core = self._core
        self._enter("batch", timeout)
        try:
            until = after(timeout)
            while not core.go_on_with(batch):
                if not batch.tired:
                    self._wait(lambda: core.go_on_with(batch) or batch.tired, timeout, "batch", until)
        finally:
            self._inside = None
        batch.raise_failed()

    def close(self, timeout: float | None = 5.0) -> None:
        """Close the connection after everything was sent, and wait until the peer closes its end: then all
        has arrived.

        If that takes longer than `timeout` seconds, or the connection has failed, it raises EndpointError,
        once. In any case everything is closed.
        """
        core = self._core
        if core.given_back:
            return
        self._enter("close", timeout)
        try:
            known = core.released or core.error is not None
            core.close(monotonic(), timeout)
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
        self._core.hang_up()

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
            core.forget()


class Batch(BatchFace):
    """The operations of a `with conn.batch()` block; BatchFace has its calls. It waits at the end of the
    block.
    """

    def __init__(self, conn: Connection, timeout: float | None) -> None:
        super().__init__(conn._core, waits=True)
        self._conn, self._timeout = conn, timeout

    def __enter__(self) -> Self:
        self._core.begin_batch()
        self.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()
        if kind is None:
            self._conn._end_batch(self, self._timeout)


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


class Agents:
    """Threads that serve one connection each."""

    def __init__(self, agent: Callable[[Connection], object]) -> None:
        self._agent = agent
        self._at_work: dict[threading.Thread, Connection] = {}

    def begin(self, conn: Connection) -> None:
        """Serve a connection in a new thread."""
        self._at_work = {thread: of for thread, of in self._at_work.items() if thread.is_alive()}
        thread = Thread(target=self._attend, args=(conn,), name="rnic-agent", daemon=True)
        self._at_work[thread] = conn
        try:
            thread.start()
        except (RuntimeError, MemoryError) as error:
            # There is no thread for it: this connection ends, the others go on.
            del self._at_work[thread]
            _log.warning("%r is not served: %s", conn, exhausted(error))
            conn._drop("there is no thread to serve the connection")

    def _attend(self, conn: Connection) -> None:
        try:
            with conn:
                self._agent(conn)
        except EndpointError as error:  # of this connection, mostly; a ConnectionError is of another
            _log.info("%r: %s", conn, error)
        except Exception as error:
            if not conn._core.is_own_end(error):
                _log.error("the agent of %r has failed", conn, error=error)

    def call_back(self) -> None:
        """Have the agents end when they next wait for a message, or now if they do."""
        for conn in self._at_work.values():
            conn._core.leave()

    def dismiss(self, grace: float | None) -> None:
        """Wait for all agents; those that take longer lose their connections, which ends their waiting."""
        if self._join(grace):
            return
        for thread, conn in self._at_work.items():
            if thread.is_alive():
                conn.hang_up()
        if not self._join(GRACE):
            names = [repr(conn) for thread, conn in self._at_work.items() if thread.is_alive()]
            _log.warning("agents that do not end: %s", ", ".join(names))

    def _join(self, timeout: float | None) -> bool:
        until = after(timeout)
        for thread in self._at_work:
            thread.join(None if until is None else bounded(max(0.0, until - monotonic())))
        return not any(thread.is_alive() for thread in self._at_work)


def connect(
    host: str,
    port: int,
    *,
    timeout: float | None = 10.0,
    config: Config | None = None,
    data: bytes = b"",
) -> Connection:
    """Connect to a program that listens with rnic.listen() or rnic.aio.listen().

        with rnic.connect("192.0.2.1", 7471) as conn:
            conn.send(b"hello")

    `data` goes to the listener's admit(), at most 24 bytes: a token, or the name of a service. Raises
    RefusedError if no program listens there, or it refuses; NoHelloError or VersionError if it is another
    kind of program, or another version; TimeoutError after `timeout` seconds; VerbsError if there is no route
    to the host.
    """
    until = after(timeout)
    dial = Dial(host, port, config or Config(), data)
    try:
        while not dial.step(monotonic()):
            if until is not None and monotonic() >= until:
                raise TimeoutError(
                    f"connect: no answer from {dial.name} within {timeout} s: {dial.silence()}"
                )
            sleep((dial.fileno(),), until)
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
    """
    limits = Limits(backlog, max_connections, max_half_open, handshake_timeout)
    return Listener(Desk(host, port, config or Config(), limits, admit))
