# SPDX-License-Identifier: Apache-2.0
"""What a program has of RDMA-CM: open device files, ids by their numbers, events that it has not fetched."""

from __future__ import annotations

import itertools
import socket
import struct
from errno import EINVAL, ENOENT
from typing import TYPE_CHECKING

from rnic.enums import StreamEnd
from rnic.errors import VerbsError
from rnic.log import Log
from rnic.rdmacm import CmId, Event, EventChannel, EventType, IdState

if TYPE_CHECKING:
    from rnic.rdmacm.sockaddr import SockAddr

_log = Log("rnic.ucma")

_AT_ONCE = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
_UCRED = struct.Struct("3i")  # pid, uid and gid
MOST_BYTES = 64  # in a socket: more of them than events that a program fetches at a time are of no use


class Handle:
    """An id, as a program names it."""

    def __init__(self, number: int, uid: int, one: CmId, file: File) -> None:
        self.number = number
        self.uid = uid  # the program's own; 0: it has not told yet, as its id is of a request that waits
        self.one = one
        self.file = file
        self.service: int | None = None  # the service id, if it is bound to an address of InfiniBand
        self.reported = 0  # events that the program has fetched
        self.groups: set[int] = set()  # the numbers of its memberships


class Membership:
    """A multicast group that an id has joined; it has a number of its own."""

    def __init__(self, number: int, uid: int, handle: Handle, addr: SockAddr) -> None:
        self.number = number
        self.uid = uid
        self.handle = handle
        self.addr = addr
        self.reported = 0


class Channel(EventChannel):
    """The events of a file's ids. The program's end of the socket has a byte for each, as far as MOST_BYTES.

    Threads of the program take a byte, and then fetch an event. Bytes and such threads together are as many
    as events, whatever becomes of an event in the meantime.
    """

    def __init__(self, sock: socket.socket) -> None:
        super().__init__()
        self._sock = sock
        self._bytes = 0  # in the socket, or taken by threads that have not fetched yet; under the lock
        self.fetches = 0  # calls of fetch()

    def put(self, event: Event) -> None:
        """Add an event, and tell the program. As with a kernel, it hears nothing of an id before it has said
        what it calls it: an accept that comes too late fails by itself.
        """
        with self.lock:
            if event.event is EventType.CONNECT_REQUEST or _is_named(event.id):
                super().put(event)
                self._tell()

    def withdraw(self, _one: CmId) -> bool:
        """A request stays, as with a kernel: the program has been told that there is an event."""
        return False

    def fetch(self) -> Event | None:
        """The next event, for a thread that has taken a byte; None: the event has gone with its id."""
        with self.lock:
            self.fetches += 1
            self._bytes -= 1
            try:
                return self.get_cm_event(0)
            except TimeoutError:
                return None
            finally:
                self._tell()

    def undone(self) -> int:
        """How many bytes the program has to take back, as their events are gone: it will."""
        with self.lock:
            more = self._bytes - self._wanted()
            if more <= 0:
                return 0
            self._bytes -= more
            return more

    def missing(self, count: int) -> None:
        """Bytes could not be taken back: threads have taken them, and will find nothing."""
        with self.lock:
            self._bytes += count

    def returned(self, count: int) -> None:
        """Bytes have been taken, and their events were not fetched: they are announced again."""
        with self.lock:
            self._bytes = max(0, self._bytes - count)
            self._tell()

    def _wanted(self) -> int:
        return min(self.pending, MOST_BYTES)

    def _tell(self) -> None:
        while self._bytes < self._wanted():
            try:
                self._sock.send(b"\0", _AT_ONCE)
            except OSError:  # the program has gone, or its socket is full: it has enough to do
                return
            self._bytes += 1


def _is_named(one: CmId) -> bool:
    handle: Handle = one.context  # type: ignore[assignment] # what Table.add() says
    return handle.one is one and handle.uid != 0  # before a request is fetched, it is that of the listener


class File:
    """An open device file: a socket to a program."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.pid: int = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))[0]
        """The process that has opened it."""
        self.channel = Channel(sock)

    def close(self) -> None:
        """Close the socket and the channel, which has no ids any more."""
        self.sock.close()
        self.channel.drop_fd()


class Table:
    """The ids of all programs of a server, and their memberships, by number."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._handles: dict[int, Handle] = {}
        self._groups: dict[int, Membership] = {}
        self.abandoned = 0
        """Connections that were up when their program closed the file, or died."""

    def add(self, file: File, one: CmId, uid: int = 0) -> Handle:
        """Give an id a number."""
        handle = Handle(next(self._numbers), uid, one, file)
        self._handles[handle.number] = handle
        one.context = handle
        return handle

    def find(self, file: File, number: int) -> Handle:
        """The id with a number. Raises VerbsError: ENOENT if there is none, EINVAL in another file."""
        handle = self._handles.get(number)
        if handle is None:
            raise VerbsError(ENOENT, f"there is no id {number}", "rdma_cm")
        if handle.file is not file:
            raise VerbsError(EINVAL, f"id {number} belongs to another file", "rdma_cm")
        return handle

    def find_anywhere(self, number: int) -> Handle:
        """The id with a number, of whatever file. Raises VerbsError: ENOENT."""
        if number not in self._handles:
            raise VerbsError(ENOENT, f"there is no id {number}", "rdma_cm")
        return self._handles[number]

    def forget(self, handle: Handle) -> None:
        """Take its number from an id, and the numbers of its memberships."""
        for number in handle.groups:
            del self._groups[number]
        del self._handles[handle.number]

    def remove(self, handle: Handle) -> None:
        """Destroy an id, which leaves its groups."""
        handle.one.destroy()
        self.forget(handle)

    def join(self, handle: Handle, uid: int, addr: SockAddr) -> Membership:
        """Give a membership a number."""
        member = Membership(next(self._numbers), uid, handle, addr)
        self._groups[member.number] = member
        handle.groups.add(member.number)
        return member

    def find_group(self, file: File, number: int) -> Membership:
        """The membership with a number. Raises VerbsError: ENOENT, EINVAL as find()."""
        member = self._groups.get(number)
        if member is None:
            raise VerbsError(ENOENT, f"there is no membership {number}", "rdma_cm")
        if member.handle.file is not file:
            raise VerbsError(EINVAL, f"membership {number} belongs to another file", "rdma_cm")
        return member

    def has_group(self, member: Membership) -> bool:
        """Whether it has not been left yet."""
        return member.number in self._groups

    def leave(self, member: Membership) -> None:
        """Forget a membership."""
        del self._groups[member.number]
        member.handle.groups.discard(member.number)

    def remove_all(self, file: File) -> None:
        """Destroy the ids of a file: its program has closed it, or is dead."""
        for handle in [one for one in self._handles.values() if one.file is file]:
            self.abandoned += _is_up(handle.one)
            try:
                self.remove(handle)
            except VerbsError as error:
                _log.warning("%r is not destroyed: %s", handle.one, error)


def _is_up(one: CmId) -> bool:
    """Whether nobody has ended the connection. An iWARP one ends by itself when its program dies."""
    ended = one.stream_end is not None and one.stream_end.end is StreamEnd.CLOSED
    return one.state is IdState.CONNECT or (ended and not one.disconnecting)
