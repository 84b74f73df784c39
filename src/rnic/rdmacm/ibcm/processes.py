# SPDX-License-Identifier: Apache-2.0
"""The processes of this host that peers are: the death of one is noticed at once.

One descriptor serves each process, which hangs up when the process dies.
"""

from __future__ import annotations

import os
import select
from errno import EAGAIN, ECONNREFUSED, EMFILE, ENFILE, ENOBUFS, ENOMEM, ENOSPC
from time import monotonic_ns
from typing import TYPE_CHECKING

import rnic.cm as cm
from rnic.rdmacm.ibcm.gsi import Gsi, Peer
from rnic.verbs.ah import GID
from rnic.verbs.context import Context

if TYPE_CHECKING:
    from rnic.rdmacm.agent import Agent

_SCARCE = (EMFILE, ENFILE, ENOMEM, ENOBUFS, ENOSPC, EAGAIN)  # what may be there the next time
_AGAIN_NS = 250 * 10**6  # until a peer is looked for again that could not be watched
_LAST_WORDS_NS = 10**8  # what a process sent before it died may be in the queues of others, who hand it on

Name = int | tuple[int, GID]
"""A slot; or a service at an address."""


class Process:
    """The process that had a slot, or a service, when we looked; not one that has it afterwards."""

    def __init__(self, name: Name, fd: int = -1) -> None:
        self.name = name
        self.fd = fd  # -1: it was dead when we looked


class Processes:
    """One watch for each slot and service, for any number of connections."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._own = context.cm_slot()
        self._epoll = select.epoll()
        self._known: dict[Name, Process] = {}

    def fileno(self) -> int:
        """A descriptor that is readable when dead() has something."""
        return self._epoll.fileno()

    def dead(self) -> list[Process]:
        """The processes that have died, until forget() is called for them."""
        gone = {fd for fd, _ in self._epoll.poll(0)} if self._known else set()
        return [one for one in self._known.values() if one.fd in gone]

    def forget(self, one: Process) -> None:
        """End the watch of a process."""
        del self._known[one.name]
        os.close(one.fd)

    def of_slot(self, slot: int) -> Process | None:
        """The current owner of a slot; None: this process. Raises OSError: ECONNREFUSED if the owner is dead.

        Call dead() before, or the owner may be the one that has just died.
        """
        return None if slot == self._own else self._find(slot)

    def of_service(self, service_id: int, gid: GID) -> Process:
        """The process that would get a request for a service, as of_slot(). EMFILE: it cannot be watched
        now.
        """
        return self._find((service_id, gid))

    def _find(self, name: Name) -> Process:
        found = self._known.get(name)
        if found is None:
            found = Process(name, self._watch(name))
            try:
                self._epoll.register(found.fd, 0)
                self._known[name] = found
            except BaseException:
                os.close(found.fd)
                raise
        return found

    def _watch(self, name: Name) -> int:
        if isinstance(name, int):
            return self._context.cm_watch(name)
        return self._context.cm_watch_service(*name)

    def close(self) -> None:
        """End all watches; also in a forked child, whose descriptors are copies."""
        for one in self._known.values():
            os.close(one.fd)
        self._known.clear()
        self._epoll.close()


class Meetings:
    """The exchanges of a communication manager, and the processes that their peers are."""

    def __init__(self, agent: Agent, manager: cm.IbCm, gsi: Gsi) -> None:
        self._agent, self._cm, self._gsi = agent, manager, gsi
        self.processes = Processes(agent.context)
        self._unmet: set[cm.Exchange] = set()

    def meet_all(self) -> None:
        """Look for the peers that more is known of since the last call."""
        while (exchange := self._cm.next_met()) is not None:
            try:
                self._meet(exchange)
            except MemoryError:
                self._cm.put_back(exchange)
                raise

    def _meet(self, exchange: cm.Exchange) -> None:
        """Find out which process the peer is.

        At an address of our device every process uses rnic: others cannot have UDP 4791 there. If the peer
        has died already, another process may have its slot. The death of that process, later, still tells the
        truth: the peer is dead.
        """
        assert isinstance(exchange.peer, Peer)
        if self._gsi.index_of(exchange.peer.gid) is None:
            return
        self.bury()
        try:
            exchange.process = self._process_of(exchange, exchange.peer)
            self._unmet.discard(exchange)
        except OSError as error:
            if error.errno in _SCARCE:
                self._meet_later(exchange)
            elif error.errno == ECONNREFUSED and exchange.peer_id:
                exchange.process = Process(cm.slot_of(exchange.peer_id))
                self._died(exchange.process)

    def _meet_later(self, exchange: cm.Exchange) -> None:
        """A peer that cannot be watched now, for want of a descriptor, could die unnoticed: try again
        later.
        """
        if not self._unmet:
            self._agent.at(monotonic_ns() + _AGAIN_NS, self._meet_unmet)
        self._unmet.add(exchange)

    def _meet_unmet(self, now: int) -> int | None:
        for exchange in list(self._unmet):
            if exchange.over:
                self._unmet.discard(exchange)
            else:
                self._meet(exchange)
        return now + _AGAIN_NS if self._unmet else None

    def _process_of(self, exchange: cm.Exchange, peer: Peer) -> Process | None:
        if exchange.peer_id:
            return self.processes.of_slot(cm.slot_of(exchange.peer_id))
        assert isinstance(exchange, cm.Connection | cm.Resolution)
        assert exchange.req is not None
        return self.processes.of_service(exchange.req.service_id, peer.gid)

    def bury(self) -> None:
        """Tell the exchanges of the processes that have died."""
        for process in self.processes.dead():
            self._died(process)
            self.processes.forget(process)

    def _died(self, process: object) -> None:
        """Handle the last messages of a dead process first: a process that ends in good order says so, and
        does not wait.
        """
        self._agent.at(monotonic_ns() + _LAST_WORDS_NS, lambda now: self._cm.died(process, now))
