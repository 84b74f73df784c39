# SPDX-License-Identifier: Apache-2.0
"""The server: a thread that reads the commands of all programs, and answers them one by one."""

from __future__ import annotations

import contextlib
import os
import select
import socket
from array import array
from collections.abc import Iterable
from errno import EINVAL, ENOMEM
from time import monotonic_ns, sleep
from typing import TYPE_CHECKING, Self

from rnic.log import Log
from rnic.threads import Thread, begin
from rnic.ucma.commands import Commands
from rnic.ucma.failures import Failing, Failures
from rnic.ucma.files import File
from rnic.ucma.layouts import ANSWER, HEADER, MISSING, RETURNED, Cmd
from rnic.ucma.orders import descriptors, pack, taken
from rnic.ucma.removals import Removal, Removals, remove

if TYPE_CHECKING:
    from rnic.rdmacm.service import Order

_log = Log("rnic.ucma")

_LONGEST = 1 << 16  # bytes of a message: more than a command with the value of an option
_BACKLOG = 1024  # programs that wait until the server looks
_MOST_FDS = 4  # in a message: one is expected
_FD_BYTES = array("i").itemsize
_CONTROL = socket.CMSG_SPACE(_MOST_FDS * _FD_BYTES)
_PAUSE = 0.01  # seconds, when memory is short
_REST_NS = 100_000_000  # of the listener, when no descriptor is left for another program


class Server:
    """Serves the programs that connect to the socket `path`; a context manager.

    The end of a program, or close() of its device file, ends its ids: their peers are told. `failures` are
    calls that are to fail, `removals` devices that are to go. Raises OSError if the socket cannot be made.
    """

    def __init__(self, path: str, failures: Iterable[Failing] = (), removals: Iterable[Removal] = ()) -> None:
        self._commands = Commands(Failures(failures))
        self._removals = Removals(removals)
        self._files: dict[int, File] = {}
        self._stops = False
        self._rests_until: int | None = None  # ns; until then no program is let in
        with contextlib.ExitStack() as undo:
            self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            undo.callback(os.close, self._wake)
            self._listener = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            self._listener.setblocking(False)
            self._listener.bind(path)
            self._listener.listen(_BACKLOG)
            self._poll = undo.enter_context(select.epoll())
            self._poll.register(self._wake, select.EPOLLIN)
            self._poll.register(self._listener, select.EPOLLIN)
            self._thread = Thread(target=self._run, name="rnic-ucma", daemon=True)
            begin(self._thread, "ucma")
            undo.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the ids of all programs, and the thread; a second call does nothing."""
        if self._stops:
            return
        self._stops = True
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        for file in list(self._files.values()):
            self._end(file)
        self._commands.parking.close()
        self._commands.keeping.close()
        self._poll.close()
        self._listener.close()
        os.close(self._wake)

    @property
    def abandoned(self) -> int:
        """Connections that programs have not disconnected: they have closed their device file, or died."""
        return self._commands.table.abandoned

    def has_open(self, pid: int) -> bool:
        """Whether a file is open that this process has opened. It closes shortly after the process ends."""
        return any(file.pid == pid for file in list(self._files.values()))

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        while not self._stops:
            try:
                self._turn()
            except Exception as error:  # of memory: what is due, and who waits, has the next turn
                _log.error("a turn", error=error)
                sleep(_PAUSE)

    def _turn(self) -> None:
        due = self._due()
        found = self._poll.poll(None if due is None else max(0.0, (due - monotonic_ns()) / 1e9))
        if due is not None:
            self._commands.expire(monotonic_ns())
            for pid, device in self._removals.take(monotonic_ns()):
                remove(pid, device)
            self._end_rest()
        for fd, _ in found:
            try:
                self._serve(fd)
            except Exception as error:  # of memory: this file's turn is over
                _log.error("file %d", fd, error=error)
                sleep(_PAUSE)

    def _due(self) -> int | None:
        """When something is due that no descriptor tells of."""
        parked, kept = self._commands.parking.deadline, self._commands.keeping.deadline
        due = (parked, kept, self._removals.deadline, self._rests_until)
        return min((at for at in due if at is not None), default=None)

    def _serve(self, fd: int) -> None:
        if (file := self._files.get(fd)) is not None:
            self._receive(file)
        elif fd == self._listener.fileno():
            self._admit()

    def _admit(self) -> None:
        with contextlib.ExitStack() as undo:
            try:
                sock = undo.enter_context(self._listener.accept()[0])
                sock.setblocking(False)
                file = File(sock)
                self._poll.register(sock, select.EPOLLIN)
            except BlockingIOError:
                return
            except OSError as error:
                self._rest(error)
                return
            self._files[sock.fileno()] = file
            self._removals.opened(file.pid, monotonic_ns())
            undo.pop_all()

    def _rest(self, error: OSError) -> None:
        """Programs wait to be let in, and nobody else waits with them."""
        _log.warning("no program is let in for %d ms: %s", _REST_NS // 1_000_000, error)
        self._poll.unregister(self._listener)
        self._rests_until = monotonic_ns() + _REST_NS

    def _end_rest(self) -> None:
        if self._rests_until is not None and monotonic_ns() >= self._rests_until:
            self._rests_until = None
            self._poll.register(self._listener, select.EPOLLIN)

    def _end(self, file: File) -> None:
        self._commands.end(file)
        self._removals.closed(file.pid)
        del self._files[file.sock.fileno()]
        self._poll.unregister(file.sock)
        file.close()

    def _receive(self, file: File) -> None:
        try:
            message, control, _, _ = file.sock.recvmsg(_LONGEST, _CONTROL, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except ConnectionError:
            message, control = b"", []
        fds = array("i")
        for level, kind, data in control:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds.frombytes(data[: len(data) - len(data) % _FD_BYTES])
        try:
            if not message:
                self._end(file)
            elif fds:
                self._answer(fds[0], *self._execute(file, message))
            else:
                _take_note(file, message)
        finally:
            for fd in fds:
                os.close(fd)

    def _execute(self, file: File, message: bytes) -> tuple[list[Order], int, int, int, bytes]:
        """What the program's queue pair is to do, the answer's result, how many bytes of events are to be
        taken back, and the data and their address.
        """
        events_of, address, data = file, 0, b""
        orders: list[Order] = []
        fetches = file.channel.fetches
        try:
            data, address, events_of = self._commands.run(file, message)
            orders, result = taken(self._commands.met), 0
        except MemoryError:
            result = -ENOMEM
        except OSError as error:
            _log.debug("%s", error)
            result = -(error.errno or EINVAL)
        except Exception as error:  # nonsense that nobody has thought of
            _log.error("a command of %d bytes met a mistake in rnic", len(message), error=error)
            result = -EINVAL
        if file.channel.fetches == fetches and _fetches(message):
            file.channel.returned(1)
        return orders, result, events_of.channel.undone(), address, data

    def _answer(
        self, fd: int, orders: list[Order], result: int, undone: int, address: int, data: bytes
    ) -> None:
        head = ANSWER.pack(result, undone, address, len(data), len(orders))
        try:
            sock = socket.socket(fileno=fd)  # OSError: a pipe, say
            try:
                sock.setblocking(False)
                socket.send_fds(sock, [head, data, *map(pack, orders)], descriptors(orders))
            finally:
                sock.detach()  # the caller closes it
        except OSError as error:
            _log.debug("no answer: %s", error)  # the thread that waited has gone
        finally:
            for order in orders:
                order.close()


def _fetches(message: bytes) -> bool:
    """Whether the thread has taken a byte."""
    return len(message) >= HEADER.size and HEADER.unpack(message)[0] == Cmd.GET_EVENT


def _take_note(file: File, message: bytes) -> None:
    """What asks for no answer; or a command whose socket found no free descriptor here."""
    head = HEADER.read(message)
    if head["cmd"] == MISSING:
        file.channel.missing(head["in"])
    elif head["cmd"] == RETURNED:
        file.channel.returned(head["in"])
    elif _fetches(message):
        file.channel.returned(1)
