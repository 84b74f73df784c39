# SPDX-License-Identifier: Apache-2.0
"""Which process of this host a peer is, so that its death is noticed at once."""

from __future__ import annotations

from errno import EAGAIN, ECONNREFUSED, EMFILE, ENFILE, ENOBUFS, ENOMEM, ENOSPC
from time import monotonic_ns
from typing import TYPE_CHECKING

import rnic.cm as cm
from rnic.rdmacm.ibcm.gsi import Gsi, Peer
from rnic.rdmacm.ibcm.processes import Process, Processes

if TYPE_CHECKING:
    from rnic.rdmacm.agent import Agent

_SCARCE = (EMFILE, ENFILE, ENOMEM, ENOBUFS, ENOSPC, EAGAIN)  # what may be there the next time
_AGAIN_NS = 250 * 10**6  # until a peer is looked for again that could not be watched
_LAST_WORDS_NS = 10**8  # what a process sent before it died may be in the queues of others, who hand it on


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
