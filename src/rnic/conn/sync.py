# SPDX-License-Identifier: Apache-2.0
"""The synchronous face: every call pumps the connection until what it wants is so, and sleeps in between."""

from __future__ import annotations

import select
import threading
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rnic._nic.nic import MR
from rnic.conn.arrays import Layout
from rnic.conn.batch import BatchFace
from rnic.conn.core import GRACE, Core
from rnic.conn.face import COMPARE_SWAP, FETCH_ADD, Face, ListenerFace, room
from rnic.conn.handshake import HANDSHAKE_TIMEOUT, MAX_HALF_OPEN, Admit, Desk, Dial, Limits
from rnic.conn.ops import MASK, Op
from rnic.conn.rendezvous import as_bytes, check_room
from rnic.endpoint import Config, Region
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
    """Until one of them is readable, or a time has come."""
    poll = select.poll()
    for fd in filenos:
        poll.register(fd, select.POLLIN)
    left = None if until is None else max(0.0, until - monotonic())
    poll.poll(milliseconds(left))


def earliest(*times: float | None) -> float | None:
    """The first of some times."""
    return min((one for one in times if one is not None), default=None)


class Connection(Face):
    """One end of a connection between two programs; connect() and a Listener make it; a context manager.

    It makes progress while one of its methods runs; what the peer reads, writes or adds in shared memory
    needs none.  It serves one thread at a time: a call while another one runs raises RuntimeError, but for
    hang_up().  A call that comes to its time limit raises TimeoutError, and the connection stays usable, as
    after any exception from the handler of a signal, Ctrl-C for one.  When it has ended, calls raise an
    EndpointError that says why.
    """

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self._inside: str | None = None  # the call that runs

    def _enter(self, what: str, timeout: float | None = None) -> None:
        """The caller sets _inside back in a `finally` that follows at once: no exception comes in between."""
        if self._inside is not None or self._core.courier.busy:
            other = self._inside or "send or recv"
            raise RuntimeError(
                f"{what}() while {other}() of this connection runs, in another thread or below the "
                "handler of a signal: use a connection for each thread, or rnic.aio, where tasks share one; "
                "hang_up() ends it from anywhere"
            )
        seconds(timeout)
        self._inside = what

    def _may_go_short(self, timeout: float | None) -> bool:
        """No other call runs, and nothing is on the long way that must go first."""
        if timeout is not None:
            seconds(timeout)
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
        """Send a message of any size; returns when all of it is on its way and the buffer is free.

        It waits while the peer takes no messages.  After TimeoutError, and after any exception from outside,
        the buffer is free, and the peer gets the whole message or nothing of it.  close() tells whether all
        has arrived.  `tag`: a number for recv(tag=...), 64 bits; ValueError when the peer is too old for it.
        """
        core = self._core
        self._enter("send", timeout)
        try:
            handle = core.next_handle
            try:
                if (core.courier.open or core.take_short_way()) and not tag and core.courier.send(message):
                    return
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
        """The next message; EOFError after the peer's goodbye.  What raises takes no message.

        `tag`: the next one that was sent with this tag.  Others wait meanwhile, up to Config.max_backlog;
        then the peer waits with what it sends.
        """
        if tag is not None:
            return self._recv_tagged(timeout, tag)
        core, until = self._core, after(timeout)
        data: bytes | None
        if self._may_go_short(timeout) and (core.courier.recv(timeout != 0) or self._recv_short(until)):
            data, core.courier.hand = core.courier.hand, None
            if data is not None:  # nor has the handler of a signal taken it
                return data
        self._enter("recv", timeout)
        try:
            while (message := core.next_message()) is None:
                self._wait(core.has_news, timeout, "recv", until)
            data = as_bytes(message)
            if not core.by_courier:
                core.pump(monotonic())
            core.courier.hand = None  # no call from here on, behind which an exception could come
            return data
        finally:
            self._inside = None

    def recv_into(self, buffer: AnyBuffer, timeout: float | None = None) -> int:
        """As recv(), into a buffer; the number of bytes.

        A message that the peer announces (Config.announce) comes straight into the buffer.  ValueError when
        the buffer is too small: the message stays.  After any exception the buffer may have been written to;
        after TimeoutError it still may be until a further message is received, or close() has returned.
        """
        core, until, target = self._core, after(timeout), room(buffer)
        if self._may_go_short(timeout) and (core.courier.recv(timeout != 0) or self._recv_short(until)):
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
            core.fetching.target = core.courier.hand = None
            return length
        except BaseException:
            core.fetching.let_target_go(target)
            raise
        finally:
            self._inside = None

    def _recv_tagged(self, timeout: float | None, tag: int) -> bytes:
        core, until = self._core, after(timeout)
        self._enter("recv", timeout)
        core.tags = frozenset((tag,))
        try:
            while (message := core.next_message(tag)) is None:
                self._wait(lambda: core.has_tagged(tag), timeout, "recv", until)
            data = as_bytes(message)
            core.pump(monotonic())
            core.courier.hand = None  # no call from here on, as in recv()
            return data
        finally:
            core.tags = frozenset()
            self._inside = None

    def _recv_short(self, until: float | None) -> bool:
        """Sleep until it is there."""
        core = self._core
        if not core.courier.open:
            return False
        due = earliest(core.deadline(), until)
        return core.courier.sleep(None if due is None else max(0.0, due - monotonic()))

    def share(self, buffer: AnyBuffer, access: AccessFlags | None = None) -> Region:
        """Let the peer read, write and add in a buffer; it gets a Region from its next_region()."""
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
        """End that; returns when the peer can no longer touch the buffer.

        After TimeoutError it goes on: the buffer is closed to the peer as soon as it confirms.  A peer that
        never does: revoke().
        """
        self._enter("withdraw", timeout)
        try:
            self._core.withdraw(region)
            self._wait(lambda: self._core.is_withdrawn(region), timeout, "withdraw")
        finally:
            self._inside = None

    def revoke(self, region: Region) -> None:
        """End that at once, without the peer's consent; when it returns, the peer cannot touch the buffer.

        A peer that still tries loses the connection.  VerbsError, EBUSY, after a second, while a process of
        this host is stopped in the middle of a copy: then it can be tried again.
        """
        self._enter("revoke")
        try:
            self._core.revoke(region)
            self._core.pump(monotonic())
        finally:
            self._inside = None

    def next_region(self, timeout: float | None = None) -> Region:
        """Wait for a region of the peer that was not returned here before."""
        self._enter("next_region", timeout)
        try:
            while (region := self._core.next_region()) is None:
                self._wait(self._core.has_region, timeout, "next_region")
            return region
        finally:
            self._inside = None

    def next_withdrawn(self, timeout: float | None = None) -> Region:
        """Wait until the peer has withdrawn a region that next_region() returned; each is returned once.

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
        """Write a buffer into the peer's region, at an offset; returns when it is there."""
        short = partial(self._core.operations.write, local, remote, offset)
        self._operate("write", short, partial(self._write_op, local, remote, offset), timeout)

    def read(
        self, local: AnyBuffer | MR, remote: Region, offset: int = 0, *, timeout: float | None = None
    ) -> None:
        """Fill a buffer from the peer's region, from an offset on."""
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
        """A new array, filled from the peer's region by a READ: as the region says, or as you say.

        ValueError when the region does not say what array it holds and `shape` and `dtype` are not given, or
        when they do not fit its length; ImportError where there is no NumPy.  `timeout` is in seconds.
        """
        array = Layout(region, shape, dtype, "read_array()").empty()
        until = after(timeout)
        for start, piece in self._pieces(array):
            self.read(piece, region, start, timeout=None if until is None else max(0.0, until - monotonic()))
        return array

    def fetch_add(self, remote: Region, n: int, offset: int = 0, *, timeout: float | None = None) -> int:
        """Add to 8 bytes of the peer's region, at once; what was there before."""
        short = partial(self._core.operations.atomic, FETCH_ADD, remote, offset, n & MASK, 0)
        return self._operate("fetch_add", short, partial(self._add_op, remote, n, offset), timeout)

    def compare_swap(
        self, remote: Region, compare: int, swap: int, offset: int = 0, *, timeout: float | None = None
    ) -> int:
        """Replace 8 bytes of the peer's region if they are `compare`; what was there before."""
        short = partial(
            self._core.operations.atomic, COMPARE_SWAP, remote, offset, compare & MASK, swap & MASK
        )
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
        """Many operations and one wait, of up to `timeout` seconds: `with conn.batch() as b: b.read(...)`."""
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
        """Say goodbye after all that was sent, and wait for the peer's goodbye: then all has arrived.

        When that takes longer than `timeout`, or the connection has failed, EndpointError says so, once; in
        any case everything is given back.
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
        """End the connection at once, and tell the peer why; what is on its way may be lost."""
        if self._core.given_back:
            return
        self._enter("abort")
        try:
            self._core.abort(text)
            self._end(GRACE, "abort")
        finally:
            self._inside = None

    def _drop(self, text: str) -> None:
        """As abort(), without waiting: what the peer does not hear by a message, the disconnect tells it."""
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
        """From another thread: end the connection at once; its calls, also one that runs, raise LostError."""
        self._core.hang_up()

    def __iter__(self) -> Iterator[bytes]:
        """Messages, until the peer says goodbye."""
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
        if kind is None:
            self.close()
        else:
            self.abort(f"the program failed: {kind.__name__}")

    def __del__(self) -> None:
        core: Core | None = getattr(self, "_core", None)
        if core is not None and not core.given_back:
            warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)
            core.forget()


class Batch(BatchFace):
    """What batch() makes: see BatchFace for its calls.  It waits where the `with` block ends."""

    def __init__(self, conn: Connection, timeout: float | None) -> None:
        super().__init__(conn._core, waits=True)
        self._conn, self._timeout = conn, timeout

    def __enter__(self) -> Self:
        self._core.begin_batch()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()
        if kind is None:
            self._conn._end_batch(self, self._timeout)


class Listener(ListenerFace):
    """Takes connections at an address and port; listen() makes it; a context manager and an iterator."""

    def accept(self, timeout: float | None = None) -> Connection:
        """Wait for the next connection.  Who is no endpoint is refused, in words, and not seen here.

        VerbsError, EBADF, when the listener is closed, also by another thread meanwhile.
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
        """Run an agent, in a thread of its own, for each connection, until close().

        A connection is closed when its agent returns; what an agent raises is logged, and its peer hears of
        it.  close(), from an agent, another thread or a signal handler, and any exception here, such as
        KeyboardInterrupt, end it: nobody new is served, agents have `grace` seconds to finish, and then lose
        their connections.
        """
        seconds(grace, "grace")
        agents = Agents(agent)
        self._desk.serves_to_the_end = True
        try:
            for conn in self:
                agents.begin(conn)
        finally:
            self.close()
            for core in self._desk.take_left():
                agents.begin(Connection(core))
            agents.dismiss(grace)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Agents:
    """Threads that serve a connection each."""

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
        except ConnectionError as error:
            _log.info("%r: %s", conn, error)
        except Exception as error:
            _log.error("the agent of %r has failed", conn, error=error)

    def dismiss(self, grace: float | None) -> None:
        """Wait for all; those that take longer lose their connections, which ends their waiting."""
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
    """Connect to an endpoint that listens.

    `data` is what its admit() gets, 24 bytes at most: a token, the name of a service.

    RefusedError when nobody does, or when it refuses; NoHelloError or VersionError when it is something else;
    TimeoutError; VerbsError when there is no way to the host.
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
    """Take connections at an address, "0.0.0.0" or "::" for all; port 0: one that is free.

    `backlog` is how many requests may wait to be seen, 0: 1024. `max_connections`: so many at a time, None:
    as many as the process has descriptors, memory and threads for. What is more is refused (RefusedError at
    the peer, reason 3); the others go on. A connection that was accepted and whose peer does not finish the
    handshake within `handshake_timeout` seconds is given up; of those there are `max_half_open` at a time,
    and the oldest gives way.

    `admit(data, address)` is called for each request, with what connect() said there. It returns what the
    client finds in `peer_data`, 164 bytes at most, or None. When it raises PermissionError, the client gets
    RefusedError with its text.
    """
    limits = Limits(backlog, max_connections, max_half_open, handshake_timeout)
    return Listener(Desk(host, port, config or Config(), limits, admit))
