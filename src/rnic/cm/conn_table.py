# SPDX-License-Identifier: Apache-2.0
"""The exchange that a message belongs to: exchanges by their ids, and the free ids.

A communication id carries the slot of its owner in its upper 10 bits. So a process that receives a datagram
for all processes of a host knows whose it is. The other 22 bits are an index. The message types differ in
which id is the receiver's: `receiver_id()` knows.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from errno import EADDRINUSE, ENOMEM
from typing import Any

from rnic.cm.connection import Connection
from rnic.cm.events import Address
from rnic.cm.exchange import Exchange
from rnic.cm.sidr import Listener, Resolution
from rnic.errors import VerbsError
from rnic.wire import CmMessage, Req, SidrRep, SidrReq
from rnic.wire.header import fit

_Entry = tuple[dict[Any, Any], Any, object]
"""A table, a key, and what is to be there."""

SLOT_BITS = 10
INDEX_BITS = 32 - SLOT_BITS


def slot_of(comm_id: int) -> int:
    """The slot in a communication id of this host."""
    return comm_id >> INDEX_BITS


def receiver_id(message: CmMessage) -> int | None:
    """The id that the receiver gave out; None if the message goes by service id (REQ, SIDR_REQ).

    It may be 0 in a REJ for a timeout, whose sender never heard of one.
    """
    if isinstance(message, Req | SidrReq):
        return None
    if isinstance(message, SidrRep):
        return message.request_id
    found: int = getattr(message, "remote_comm_id")  # noqa: B009 - all the others have it
    return found


def random_bits(count: int) -> int:
    """An unpredictable number of this many bits."""
    return int.from_bytes(os.urandom(-(-count // 8))) >> -count % 8


class ConnTable:
    """Exchanges and listeners of one owner."""

    def __init__(self, slot: int, draw: Callable[[int], int]) -> None:
        self.slot = fit("slot", slot, SLOT_BITS)
        self.listeners: dict[int, Listener] = {}  # by service id
        self._by_local: dict[int, Exchange] = {}
        self._by_remote: dict[tuple[int, int], Connection] = {}  # by the peer's CA GUID and comm id
        self._by_qpn: dict[tuple[int, int], Connection] = {}  # by the peer's CA GUID and queue pair
        self._asked: dict[tuple[int, Address], Resolution] = {}  # by the peer's request id and address
        # Those whose REQs are out, by service id and address, and by our id.
        self._calling: dict[tuple[int, Address], dict[int, Connection]] = {}
        # A counter, so that an id comes back as late as can be, behind a mask, so that it says little.
        self._counter = draw(INDEX_BITS)
        self._mask = draw(INDEX_BITS)

    def __len__(self) -> int:
        return len(self._by_local)

    def exchanges(self) -> list[Exchange]:
        """All exchanges, including those in TIMEWAIT."""
        return list(self._by_local.values())

    # ------------------------------------------------------------------ ids

    def allocate(self) -> int:
        """An id that no exchange has, not even one in TIMEWAIT; never 0. Raises ENOMEM if there is none."""
        if len(self._by_local) >= (1 << INDEX_BITS) - 1:
            raise VerbsError(ENOMEM, f"all communication ids of slot {self.slot} are in use", "create_id")
        while True:
            self._counter = (self._counter + 1) % (1 << INDEX_BITS)
            found = self.slot << INDEX_BITS | self._counter ^ self._mask
            if found and found not in self._by_local:
                return found

    # ------------------------------------------------------------------ registering

    def add(self, exchange: Exchange) -> None:
        """Enter an exchange under its own id."""
        self._by_local[exchange.local_comm_id] = exchange

    def add_call(self, conn: Connection) -> None:
        """Enter an exchange whose REQ was sent."""
        self._calling.setdefault(_called(conn), {})[conn.local_comm_id] = conn

    def add_remote(self, conn: Connection) -> None:
        """Enter a connection under its peer's ids; it is no longer a call."""
        theirs = self._theirs(conn)
        try:
            for known, key, _ in theirs:
                known.setdefault(key, conn)
            _take_out(self._call(conn))
        except BaseException:
            _take_out(theirs)
            raise

    def release(self, conn: Connection) -> None:
        """The connection is in TIMEWAIT: the peer's queue pair may be used for another connection."""
        _take_out([*self._call(conn), self._qpn(conn)])

    def add_question(self, one: Resolution) -> None:
        """Enter a resolution under its peer's id."""
        known, key, _ = self._question(one)
        known[key] = one

    def remove(self, exchange: Exchange) -> None:
        """Remove an exchange or a listener; its id may be given out again."""
        found: list[_Entry] = [(self._by_local, exchange.local_comm_id, exchange)]
        if isinstance(exchange, Connection):
            found += [*self._call(exchange), *self._theirs(exchange)]
        elif isinstance(exchange, Resolution):
            found.append(self._question(exchange))
        elif isinstance(exchange, Listener):
            found.append((self.listeners, exchange.service_id, exchange))
        _take_out(found)

    def listen(self, listener: Listener) -> None:
        """Register a service id; EADDRINUSE when another listener has it."""
        if listener.service_id in self.listeners:
            raise VerbsError(EADDRINUSE, f"service id {listener.service_id:#018x} has a listener", "listen")
        self.listeners[listener.service_id] = listener

    # ------------------------------------------------------------------ where an exchange is known

    def _qpn(self, conn: Connection) -> _Entry:
        return self._by_qpn, (conn.remote_ca_guid, conn.remote_qpn), conn

    def _theirs(self, conn: Connection) -> list[_Entry]:
        return [(self._by_remote, (conn.remote_ca_guid, conn.remote_comm_id), conn), self._qpn(conn)]

    def _call(self, conn: Connection) -> list[_Entry]:
        """Among the calls to that service, which are nothing without it if it is the only one."""
        calls = self._calling.get(_called(conn), {})
        found: list[_Entry] = [(calls, conn.local_comm_id, conn)]
        if list(calls) == [conn.local_comm_id]:
            found.append((self._calling, _called(conn), calls))
        return found

    def _question(self, one: Resolution) -> _Entry:
        return self._asked, (one.req.request_id if one.req else 0, one.peer), one

    # ------------------------------------------------------------------ finding

    def find(self, local_comm_id: int) -> Exchange | None:
        """The exchange with this id of ours."""
        return self._by_local.get(local_comm_id)

    def find_connection(self, local_comm_id: int, remote_comm_id: int) -> Connection | None:
        """The connection with this id of ours and this id of the peer; 0: the peer's is not known yet."""
        found = self._by_local.get(local_comm_id)
        if isinstance(found, Connection) and found.remote_comm_id == remote_comm_id:
            return found
        return None

    def find_remote(self, ca_guid: int, comm_id: int) -> Connection | None:
        """The connection with this CA GUID and communication id of the peer."""
        return self._by_remote.get((ca_guid, comm_id))

    def find_qpn(self, ca_guid: int, qpn: int) -> Connection | None:
        """The connection with this CA GUID and queue pair of the peer, which serves one connection at a
        time.
        """
        return self._by_qpn.get((ca_guid, qpn))

    def find_question(self, request_id: int, peer: Address) -> Resolution | None:
        """The resolution with this id of the peer."""
        return self._asked.get((request_id, peer))

    def is_calling(self, service_id: int, peer: Address) -> bool:
        """Whether a REQ to this service of this peer was sent: two peers may call each other."""
        return bool(self._calling.get((service_id, peer)))


def _called(conn: Connection) -> tuple[int, Address]:
    return conn.req.service_id if conn.req else 0, conn.peer


def _take_out(entries: list[_Entry]) -> None:
    """Those that are still so; all of them or none, as what may fail comes first."""
    found = [(known, key) for known, key, one in entries if known.get(key) is one]
    for known, key in found:
        del known[key]
