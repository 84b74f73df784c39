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
from typing import Self

from rnic.log import Log
from rnic.threads import Thread, begin
from rnic.ucma.commands import Commands
from rnic.ucma.failures import Failing, Failures
from rnic.ucma.files import File
from rnic.ucma.layouts import ANSWER, HEADER, MISSING

_log = Log("rnic.ucma")

_LONGEST = 1 << 16  # bytes of a message: more than a command with the value of an option
_BACKLOG = 1024  # programs that wait until the server looks
_MOST_FDS = 4  # in a message: one is expected
_FD_BYTES = array("i").itemsize
_PAUSE = 0.01  # seconds, when no descriptor is left for another program


class Server:
    """Serves the programs that connect to the socket `path`; a context manager.

    The end of a program, or close() of its device file, ends its ids: their peers are told. `failures` are
    calls that are to fail. Raises OSError if the socket cannot be made.
    """

    def __init__(self, path: str, failures: Iterable[Failing] = ()) -> None:
        self._commands = Commands(Failures(failures))
        self._files: dict[int, File] = {}
        self._stops = False
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
        self._poll.close()
        self._listener.close()
        os.close(self._wake)

    @property
    def abandoned(self) -> int:
        """Connections that programs have not disconnected: they have closed their device file, or died."""
        return self._commands.table.abandoned

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        parking = self._commands.parking
        while not self._stops:
            due = parking.deadline
            found = self._poll.poll(None if due is None else max(0.0, (due - monotonic_ns()) / 1e9))
            if due is not None:
                self._commands.expire(monotonic_ns())
            for fd, _ in found:
                try:
                    self._serve(fd)
                except Exception as error:  # of memory or descriptors: this file's turn is over
                    _log.error("file %d", fd, error=error)
                    sleep(_PAUSE)

    def _serve(self, fd: int) -> None:
        if fd == self._listener.fileno():
            self._admit()
        elif fd in self._files:
            self._receive(self._files[fd])

    def _admit(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except BlockingIOError:
            return
        sock.setblocking(False)
        file = File(sock)
        self._files[sock.fileno()] = file
        self._poll.register(sock, select.EPOLLIN)

    def _end(self, file: File) -> None:
        del self._files[file.sock.fileno()]
        self._poll.unregister(file.sock)
        self._commands.end(file)
        file.close()

    def _receive(self, file: File) -> None:
        try:
            message, control, _, _ = file.sock.recvmsg(
                _LONGEST, socket.CMSG_SPACE(_MOST_FDS * _FD_BYTES), socket.MSG_CMSG_CLOEXEC
            )
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
                _taken_back(file, message)
        finally:
            for fd in fds:
                os.close(fd)

    def _execute(self, file: File, message: bytes) -> tuple[int, int, int, bytes]:
        """The answer's result, how many bytes of events are to be taken back, and the data and their
        address.
        """
        events_of, address, data = file, 0, b""
        try:
            data, address, events_of = self._commands.run(file, message)
            result = 0
        except MemoryError:
            result = -ENOMEM
        except OSError as error:
            _log.debug("%s", error)
            result = -(error.errno or EINVAL)
        except Exception as error:  # nonsense that nobody has thought of
            _log.error("a command of %d bytes met a mistake in rnic", len(message), error=error)
            result = -EINVAL
        return result, events_of.channel.undone(), address, data

    def _answer(self, fd: int, result: int, undone: int, address: int, data: bytes) -> None:
        head = ANSWER.write(result=result, undone=undone, address=address, length=len(data))
        with contextlib.suppress(OSError):  # the thread that waited has gone
            os.set_blocking(fd, False)
            os.write(fd, head + data)


def _taken_back(file: File, message: bytes) -> None:
    head = HEADER.read(message)
    if head["cmd"] == MISSING:
        file.channel.missing(head["in"])
