# SPDX-License-Identifier: Apache-2.0
"""The end of lab 3 that has the region and the keys: a thread and a protocol.Receiver for each sender."""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from rich.console import Console

import rnic
from rnic.cli import network
from rnic.cli.demo import bars, say
from rnic.cli.lab3.faults import Code, Fault
from rnic.cli.lab3.line import Line, answer
from rnic.cli.lab3.messages import Region
from rnic.cli.lab3.protocol import Action, Receiver, ReceiverState, Send, Store, key_of
from rnic.cli.lab3.storage import Incoming, room_in
from rnic.cli.params import Failure, show_size
from rnic.rdmacm import CmId, EventChannel, EventType, create_id
from rnic.records import Record
from rnic.wording import counted

MAX_SENDERS = 64  # side by side
INTERRUPTED = 130
REGION_ACCESS = rnic.AccessFlags.LOCAL_WRITE | rnic.AccessFlags.REMOTE_WRITE


class Settings(Record):
    """What the command line says."""

    folder: Path
    region: int
    """Bytes of the region that each sender gets."""
    timeout: float
    secret: bytes


class Transfer:
    """One file from one sender."""

    def __init__(self, line: Line, settings: Settings, advance: Callable[[int, int], None]) -> None:
        self._line, self._settings, self._advance = line, settings, advance
        self._mr = line.stack.enter_context(line.pd.alloc_mr(settings.region, REGION_ACCESS))
        region = Region(self._mr.rkey, self._mr.addr, self._mr.length)
        self.machine = Receiver(region, lambda who: key_of(settings.secret, who), room_in(settings.folder))
        self.path: Path | None = None
        """Where the file is, once it is there."""

    def run(self) -> None:
        """From the announcement to the sender's disconnect.  Fault when it comes to nothing."""
        try:
            with Incoming(self._settings.folder) as incoming:
                self._run(incoming)
        except Fault as fault:
            if fault.code not in (Code.LOST, Code.SILENT, Code.HASH):
                self._line.refuse(fault.message)
            raise
        except OSError as failure:
            text = failure.strerror or str(failure)
            self._line.refuse(text)
            raise Fault(Code.FAILED, f"{self.machine.doing}: {text}") from None

    def _run(self, incoming: Incoming) -> None:
        line, machine = self._line, self.machine
        action: Action = machine.receive(line.receive(machine.doing))
        while not isinstance(action, Send) or action.answer:
            if isinstance(action, Store):
                action = self._store(action, incoming)
            else:
                assert isinstance(action, Send)
                action = machine.receive(line.ask(action.message, machine.doing))
        self._send_last(action)
        if machine.state is ReceiverState.FAILED:
            raise Fault(
                Code.HASH, "the bytes do not have the SHA-256 that was announced: the file is dropped"
            )
        with suppress(Fault):  # the sender has its key: how it leaves is its own affair
            line.until(lambda: line.end is not None, machine.doing)

    def _send_last(self, action: Send) -> None:
        try:
            self._line.send(action.message, self.machine.doing)
        except Fault as fault:
            # Who has heard all that it wants may disconnect before its acknowledgement has come.
            if fault.code is not Code.LOST:
                raise

    def _store(self, store: Store, incoming: Incoming) -> Action:
        with self._mr.buf[: store.length] as view:
            incoming.write(view)
        action = self.machine.stored(incoming.sha256())
        self._advance(self.machine.stored_bytes, self.machine.length)
        if self.machine.state is ReceiverState.VERIFIED:
            self.path = incoming.keep()
        return action


class Server:
    """Listens, and serves many senders side by side."""

    def __init__(self, host: str, port: int, settings: Settings, console: Console) -> None:
        self._settings, self._console = settings, console
        self._threads: set[threading.Thread] = set()
        self.good = self.failed = 0
        self.interrupted = False
        with ExitStack() as stack:
            self._stop = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            stack.callback(os.close, self._stop)
            self._channel = stack.enter_context(EventChannel())
            self._listener = stack.enter_context(create_id(self._channel))
            self._listener.bind_addr((host, port))
            self._listener.listen()
            self._bars = bars(console)
            self._stack = stack.pop_all()

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._listener.get_src_port()

    def run(self, once: bool) -> int:
        """Serve until a signal, or one sender; the exit code."""
        with self._stack, self._bars, self._signals():
            host = self._listener.get_local_addr()[0]
            network.announce(host, self.port, self._client)
            try:
                if once:
                    return self._serve_one()
                while (request := self._next()) is not None:
                    self._start(request)
            finally:
                os.eventfd_write(self._stop, 1)
                for thread in list(self._threads):
                    thread.join()
        received, failed = counted(self.good, "file"), counted(self.failed, "transfer")
        say(self._console, f"{received} received, {failed} failed")
        return 0

    def _client(self, host: str) -> list[str]:
        return ["rnic", "lab3", "sender", host, "FILE", "--id", "NAME", "--port", str(self.port)]

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGINT and SIGTERM end the server in order; a second one ends it at once."""
        before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}

        def stop(number: int, _frame: object) -> None:
            self.interrupted = True
            os.eventfd_write(self._stop, 1)
            signal.signal(number, before[signal.Signals(number)])

        for one in before:
            signal.signal(one, stop)
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)

    def _next(self) -> CmId | None:
        """The next request; None when the server is to end."""
        poller = select.poll()
        poller.register(self._channel, select.POLLIN)
        poller.register(self._stop, select.POLLIN)
        while True:
            if any(fd == self._stop for fd, _ in poller.poll()):
                return None
            with suppress(TimeoutError), self._channel.get_cm_event(0) as event:
                if event.event is EventType.CONNECT_REQUEST:
                    return event.id
                if event.event is EventType.DEVICE_REMOVAL:
                    raise Fault(Code.FAILED, "the device is gone")

    def _serve_one(self) -> int:
        request = self._next()
        code = INTERRUPTED if request is None else self._serve(request)
        return INTERRUPTED if self.interrupted else code

    def _start(self, request: CmId) -> None:
        self._threads = {thread for thread in self._threads if thread.is_alive()}
        if len(self._threads) >= MAX_SENDERS:
            with request, suppress(OSError):
                request.reject(b"too many senders: try again later")
            return
        thread = threading.Thread(target=self._serve, args=(request,), name="rnic-lab3")
        try:
            thread.start()
        except RuntimeError:  # of threads there are no more
            with request, suppress(OSError):
                request.reject_busy()
            return
        self._threads.add(thread)

    def _serve(self, request: CmId) -> int:
        """One sender, whatever becomes of it; the exit code that it would be."""
        peer = name_of(request)
        task = self._bars.add_task(peer, total=None)

        def advance(done: int, total: int) -> None:
            self._bars.update(task, completed=done, total=total)

        try:
            with answer(request, self._settings.timeout, stop=self._stop) as line:
                transfer = Transfer(line, self._settings, advance)
                try:
                    transfer.run()
                finally:
                    line.hang_up()
            machine = transfer.machine
            key = key_of(self._settings.secret, machine.id)
            size = show_size(machine.length)
            say(
                self._console,
                f"{peer}: good: {size} from {machine.id}, in {transfer.path}, key {key}",
            )
            self.good += 1
        except (Fault, OSError, MemoryError) as failure:
            self.failed += 1
            say(self._console, f"{peer}: failed: {describe(failure)}")
            return failure.exit_code if isinstance(failure, Fault) else Code.FAILED
        finally:
            self._bars.remove_task(task)
        return 0


def name_of(request: CmId) -> str:
    """Where the sender is."""
    address = request.get_peer_addr()
    return f"{address[0]}:{address[1]}" if address else "a sender"


def describe(failure: Fault | OSError | MemoryError) -> str:
    """In words."""
    if isinstance(failure, Fault):
        return failure.message
    return "not enough memory" if isinstance(failure, MemoryError) else failure.strerror or str(failure)


def serve(host: str, port: int, settings: Settings, once: bool, console: Console) -> int:
    """Listen and serve; the exit code.  Failure, before it listens, when files cannot be written."""
    try:
        with Incoming(settings.folder):
            pass
    except OSError as error:
        where = settings.folder.resolve()
        raise Failure(f"{where} cannot be written to: {error.strerror}: choose another --dir") from None
    return Server(host, port, settings, console).run(once)
