# SPDX-License-Identifier: Apache-2.0
"""What the door of RoCE hears by: a socket of all addresses, the mailbox of a name, and the kernel's news."""

from __future__ import annotations

import ctypes
import socket
import struct
from collections.abc import Callable
from contextlib import ExitStack
from ipaddress import ip_address
from typing import TYPE_CHECKING

from rnic.rdmacm.ibcm.handing import ROCE_PORT, life, name_of_any, sockaddr
from rnic.rdmacm.routes import Changes
from rnic.rdmacm.sockaddr import IP
from rnic.wire import GSI_QPN, CmAttr, MgmtClass

if TYPE_CHECKING:
    from rnic.rdmacm.ibcm.door import IbDoor

_UCRED = struct.Struct("=iII")
_MOST = 1 << 16
_AT_ONCE = 8  # datagrams of a socket that are taken before others have a turn
_SO_ATTACH_REUSEPORT_CBPF, _IP_PKTINFO, _UDP_NO_CHECK6_RX = 51, 8, 102
_IP_MULTICAST_ALL, _IPV6_MULTICAST_ALL = 49, 29
SO_ATTACH_FILTER, _RANDOM = 26, 0xFFFFF000 + 56  # SKF_AD_OFF + SKF_AD_RANDOM
_SHARERS = 8  # processes of one user with a door, over which requests are spread evenly
_UD_SEND_ONLY = 0x64

Step = tuple[int, int, int, int]  # of classic BPF: code, jump if true, if false, constant
_BYTE, _HALF, _WORD, _EQUAL, _BIT, _RETURN = 0x30, 0x28, 0x20, 0x15, 0x45, 0x06
_BTH = 8  # where it is, behind UDP's header
_MAD = _BTH + 12 + 8


def _is(load: int, at: int, value: int) -> list[Step]:
    """Drop the packet unless a field has this value."""
    return [(load, 0, 0, at), (_EQUAL, 1, 0, value), (_RETURN, 0, 0, 0)]


REQUESTS_ALONE = [
    *_is(_BYTE, _BTH, _UD_SEND_ONLY),
    *_is(_BYTE, _BTH + 5, 0),
    *_is(_HALF, _BTH + 6, GSI_QPN),
    *_is(_BYTE, _MAD + 1, MgmtClass.CM),
    (_HALF, 0, 0, _MAD + 16),
    (_EQUAL, 3, 0, CmAttr.REQ),
    (_EQUAL, 2, 0, CmAttr.SIDR_REQ),
    (_EQUAL, 1, 0, CmAttr.DREQ),
    (_RETURN, 0, 0, 0),
    (_RETURN, 0, 0, _MOST),
]
"""What looks like a message of the communication manager that has to be answered though nobody knows its
sender: a request, and a farewell to a process that has gone. Anybody can send the rest, at any rate.
"""
BY_LOT = [
    (_WORD, 0, 0, _RANDOM),
    *(step for i in range(_SHARERS) for step in ((_BIT, 0, 1, 1 << i), (_RETURN, 0, 0, i))),
    (_RETURN, 0, 0, _SHARERS),
]
"""Which socket of the group gets a packet: the next one has half of the chances of the one before. Where
there are not so many, the kernel chooses by the packet's ports.
"""


def attach(sock: socket.socket, option: int, steps: list[Step]) -> None:
    """Attach a program of classic BPF to a socket."""
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    sock.setsockopt(socket.SOL_SOCKET, option, struct.pack("HP", len(steps), ctypes.addressof(code)))


class Ear:
    """UDP port 4791 of all addresses of a version of IP."""

    def __init__(self, door: IbDoor, version: int) -> None:
        self._door, self._version = door, version
        family = socket.AF_INET if version == 4 else socket.AF_INET6
        self.sock = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            self._prepare()
        except BaseException:
            self.sock.close()
            raise

    def _prepare(self) -> None:
        set_option = self.sock.setsockopt
        attach(self.sock, SO_ATTACH_FILTER, REQUESTS_ALONE)
        set_option(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if self._version == 4:
            set_option(socket.IPPROTO_IP, _IP_PKTINFO, 1)
            set_option(socket.IPPROTO_IP, _IP_MULTICAST_ALL, 0)
        else:
            set_option(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            set_option(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
            set_option(socket.IPPROTO_IPV6, _IPV6_MULTICAST_ALL, 0)
            set_option(socket.IPPROTO_UDP, _UDP_NO_CHECK6_RX, 1)  # rdma_rxe sends none
        self.sock.bind(("0.0.0.0" if self._version == 4 else "::", ROCE_PORT))
        # So a repeated request does not come to the same stopped process for ever.
        attach(self.sock, _SO_ATTACH_REUSEPORT_CBPF, BY_LOT)

    def fileno(self) -> int:
        """The descriptor."""
        return self.sock.fileno()

    def ready(self, _events: int) -> None:
        """Datagrams have come."""
        for _ in range(_AT_ONCE):
            try:
                data, control, _, peer = self.sock.recvmsg(_MOST, 64)
            except OSError:
                return
            if (dst := self._destination(control)) is not None:
                src = ip_address(peer[0].partition("%")[0]), peer[1], peer[3] if len(peer) == 4 else 0
                self._door.heard(data, sockaddr(*src), *dst)

    def _destination(self, control: list[tuple[int, int, bytes]]) -> tuple[IP, int] | None:
        for level, _, value in control:
            if level == socket.IPPROTO_IP:
                return ip_address(value[8:12]), 0
            if level == socket.IPPROTO_IPV6:
                return ip_address(value[:16]), struct.unpack_from("=I", value, 16)[0]
        return None

    def close(self) -> None:
        """Give the port back."""
        self.sock.close()


class Mailbox:
    """The name of an id for a version of IP: others hand requests to its socket, and see whether it lives."""

    def __init__(self, door: IbDoor, service: int, version: int) -> None:
        self._door = door
        self.name = name_of_any(service, version)
        with ExitStack() as undo:
            self.sock = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
            self.sock.setblocking(False)
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            self.sock.bind(self.name)
            self._life = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            self._life.bind(life(self.name))
            self._life.listen(4096)  # nobody is taken in: those that wait hear of the end as well
            undo.pop_all()

    def fileno(self) -> int:
        """The descriptor."""
        return self.sock.fileno()

    def ready(self, _events: int) -> None:
        """Other processes have said something."""
        for _ in range(_AT_ONCE):
            try:
                # Room for credentials alone: the kernel closes descriptors that somebody sends.
                said, control, _, sender = self.sock.recvmsg(_MOST, socket.CMSG_SPACE(_UCRED.size))
            except OSError:
                return
            uid = _UCRED.unpack(control[0][2][: _UCRED.size])[1] if control else -1
            self._door.handed(said, uid, self.sock, sender)

    def close(self) -> None:
        """Give the name back."""
        self.sock.close()
        self._life.close()


class News(Changes):
    """Addresses that come and go, for who cannot hear at all of them at once."""

    def __init__(self, changed: Callable[[], None]) -> None:
        super().__init__()
        self._changed = changed

    def ready(self, _events: int) -> None:
        """Something has changed; the kernel may have kept less than all of it."""
        self.take()
        self._changed()
