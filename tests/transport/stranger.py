# SPDX-License-Identifier: Apache-2.0
"""A process of this host with its own manners: a slot, and a lane to a device (src/nic/link/lane/lane.h)."""

from __future__ import annotations

import array
import errno
import fcntl
import mmap
import os
import select
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from rnic import GID, MTU, QP, AccessFlags, AHAttr, QPAttr, QPState, QPType, VerbsError
from waiting import until

HEAD = struct.Struct("=IHH")
MAGIC, VERSION = 0x524E4943, 1
HELLO, WELCOME, READY, WAKE, PARTY = 1, 2, 3, 4, 5
SLOTS, ADDRESSES = 16, 32

RING = 590016  # bytes of one direction, and where in it:
MARK, TAKEN, ASLEEP, STUCK, CELLS = 0, 64, 128, 132, 192
CELL, COUNT = 64, 1024
HUGE = 1 << 30  # bytes of the largest pages


def slot_of(qp_num: int) -> int:
    return qp_num >> 14


def qp_num_in(slot: int, index: int = 77) -> int:
    """One that the owner of the slot could have."""
    return slot << 14 | index


def party(slots: list[int], addresses: list[str]) -> bytes:
    """Who one says that one is."""
    own = struct.pack(f"={SLOTS}I", *slots, *[0] * (SLOTS - len(slots)))
    here = b"".join(GID(address).raw for address in addresses).ljust(16 * ADDRESSES, b"\0")
    return struct.pack("=II", len(slots), len(addresses)) + own + here


def is_done(call: Callable[[], object]) -> bool:
    """Whether it went through: EBUSY if a peer was inside a copy for a second."""
    try:
        call()
    except VerbsError as error:
        if error.errno != errno.EBUSY:
            raise
        return False
    return True


def message(kind: int, body: bytes = b"") -> bytes:
    return HEAD.pack(MAGIC, VERSION, kind) + body


def connect_to(qp: QP, qp_num: int, address: str) -> None:
    """Towards somebody who does no more than be there."""
    reliable = qp.qp_type is QPType.RC
    answers = {"max_dest_rd_atomic": 1, "min_rnr_timer": 1} if reliable else {}
    asks = {"timeout": 10, "retry_cnt": 1, "rnr_retry": 0, "max_rd_atomic": 1} if reliable else {}
    path = AHAttr(GID(address), sgid_index=0, port_num=1)
    qp.modify(QPAttr(qp_state=QPState.INIT, pkey_index=0, port_num=1, qp_access_flags=AccessFlags(0)))
    qp.modify(
        QPAttr(
            qp_state=QPState.RTR,
            path_mtu=MTU.MTU_1024,
            dest_qp_num=qp_num,
            rq_psn=0,
            ah_attr=path,
            **answers,
        )
    )
    qp.modify(QPAttr(qp_state=QPState.RTS, sq_psn=0, **asks))


def knock(to: int, times: int) -> tuple[int, float]:
    """Connects to the door of a slot's owner and hangs up: how often that went, and in how many seconds."""
    began, done = time.monotonic(), 0
    for _ in range(times):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as caller:
            done += caller.connect_ex(f"\0rnic/1/lane/{to}") == 0  # else the queue is full
    return done, time.monotonic() - began


class Stranger:
    """Asks for a lane to the owner of a slot, and says that `addresses` and `more` slots are its own.

    silent: it says nothing of its slot.  flags: of memfd_create, for the rings.
    """

    def __init__(
        self,
        to: int,
        addresses: tuple[str, ...] = ("127.0.0.1",),
        more: tuple[int, ...] = (),
        *,
        silent: bool = False,
        flags: int = 0,
    ) -> None:
        self.sockets: list[socket.socket] = []
        self.slot = next(number for number in range(1023, -1, -1) if self._claim(number))
        self.way = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.way.settimeout(60.0)
        try:
            self.way.connect(f"\0rnic/1/lane/{to}")
        except OSError:  # the queue is full
            for one in (self.way, *self.sockets):
                one.close()
            raise
        fd = os.memfd_create("stranger", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | flags)
        os.ftruncate(fd, HUGE if flags & os.MFD_HUGETLB else 2 * RING)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        if not flags:
            self.memory = mmap.mmap(fd, 2 * RING)
        self.slots = [*([] if silent else [self.slot]), *more]
        greeting = message(HELLO, party(self.slots, list(addresses)))
        answer, fds = b"", list[int]()
        with suppress(ConnectionError):  # it has hung up
            self.way.sendmsg([greeting], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])
            answer, fds, _, _ = socket.recv_fds(self.way, 4096, 2)
        os.close(fd)
        for received in fds:
            os.close(received)
        self.welcome = bool(answer) and HEAD.unpack_from(answer)[2] == WELCOME
        if self.welcome:
            self.way.send(message(READY))
            until(self.asleep, "the device takes up the lane")

    def asleep(self) -> bool:
        """Whether the device says that it sleeps until it is woken, in the ring that it reads."""
        return bool(struct.unpack_from("=I", self.memory, ASLEEP)[0])

    def _claim(self, number: int) -> bool:
        """A slot is its two names."""
        mail = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        life = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            mail.bind(f"\0rnic/1/slot/{number}")
            life.bind(f"\0life/rnic/1/slot/{number}")
        except OSError:
            mail.close()
            life.close()
            return False
        life.listen(64)
        self.sockets = [mail, life]
        return True

    def qp_num(self, index: int = 77) -> int:
        """One that would be its own."""
        return qp_num_in(self.slot, index)

    def mark(self, value: int) -> None:
        """Says that it is inside a copy (odd), or not."""
        struct.pack_into("=I", self.memory, MARK, value)

    def got(self) -> int:
        """Packets that the device has put into the ring, up to one lap."""
        at = RING + CELLS
        turns = [struct.unpack_from("=I", self.memory, at + i * CELL)[0] for i in range(COUNT)]
        return max(turns)

    def take(self, count: int) -> None:
        """Is done with so many packets in all, and tells nobody."""
        struct.pack_into("=I", self.memory, RING + TAKEN, count)

    def stuck(self, value: int | None = None) -> int:
        """Whether the device says that it waits for room; a value is written over that."""
        if value is not None:
            struct.pack_into("=I", self.memory, RING + STUCK, value)
        return int(struct.unpack_from("=I", self.memory, RING + STUCK)[0])

    def say_who(self, times: int) -> None:
        """Over and over; ConnectionError when the device has hung up."""
        for _ in range(times):
            self.way.send(message(PARTY, party(self.slots, ["127.0.0.1"])))

    def hung_up(self) -> bool:
        """Whether the device has."""
        while select.select([self.way], [], [], 0)[0]:
            try:
                heard = self.way.recv(4096)
            except ConnectionError:
                return True
            if not heard:
                return True
        return False

    def wake(self) -> None:
        self.way.send(message(WAKE))

    def close(self) -> None:
        """Goes, and leaves the memory as it is."""
        self.way.close()
        for one in self.sockets:
            one.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
