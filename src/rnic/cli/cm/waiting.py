# SPDX-License-Identifier: Apache-2.0
"""Wait for the events of ids and for completions of their queue pairs, whichever comes first."""

from __future__ import annotations

import select
from collections.abc import Callable

import rnic
from rnic.cli import signals
from rnic.cli.params import Failure
from rnic.rdmacm import Event, EventChannel, EventType
from rnic.times import bounded, milliseconds

FAILURES = (
    EventType.ADDR_ERROR,
    EventType.ROUTE_ERROR,
    EventType.CONNECT_ERROR,
    EventType.UNREACHABLE,
    EventType.REJECTED,
    EventType.MULTICAST_ERROR,
    EventType.DEVICE_REMOVAL,
)
EXPLAINED_SECONDS = 1.0


class Waiter:
    """An event channel, the handler of its events, and a limit for every wait."""

    def __init__(self, channel: EventChannel, handle: Callable[[Event], None], seconds: float) -> None:
        self.channel = channel
        self.handle = handle  # of events that report no failure; those raise Failure
        self.seconds = seconds  # that may pass in which nothing happens; 0: any number

    def events(self, done: Callable[[], bool], doing: str, *, patient: Callable[[], bool] = bool) -> None:
        """Handle events until `done`; `patient` waits without a limit, as a server waits for its first
        client.
        """
        while not done():
            limit = None if patient() else self.seconds or None
            try:
                event = self.channel.get_cm_event(limit)
            except TimeoutError:
                raise self._nothing(doing) from None
            self._dispatch(event)

    def completion(self, cq: rnic.CQ, doing: str, gone: Callable[[], bool]) -> rnic.WC | None:
        """Wait for the next completion; None if there is none and `gone` says that none will come."""
        assert cq.channel is not None
        while not (found := self._poll(cq)):
            if gone():
                return None
            self._sleep(cq.channel, doing)
        if found[0].status is rnic.WCStatus.WR_FLUSH_ERR:
            return self._flushed(found[0], gone)
        return found[0]

    @staticmethod
    def _poll(cq: rnic.CQ) -> list[rnic.WC]:
        """A completion, if there is one; else arm the queue."""
        if found := cq.poll(1):
            return found
        cq.req_notify()
        return cq.poll(1)

    def _flushed(self, wc: rnic.WC, gone: Callable[[], bool]) -> rnic.WC | None:
        """Wait a moment for the event that says why the connection ended."""
        while not gone():
            try:
                event = self.channel.get_cm_event(EXPLAINED_SECONDS)
            except TimeoutError:
                return wc
            self._dispatch(event)
        return None

    def _sleep(self, completions: rnic.CompChannel, doing: str) -> None:
        """Sleep until there is something to check; events are handled here."""
        poll = select.poll()
        for fd in (self.channel.fileno(), completions.fileno()):
            poll.register(fd, select.POLLIN)
        ready = {fd for fd, _ in poll.poll(milliseconds(self.seconds or None))}
        if not ready:
            if bounded(self.seconds) is None:
                return
            raise self._nothing(doing)
        if self.channel.fileno() in ready:
            self._dispatch(self.channel.get_cm_event(0))
        if completions.fileno() in ready:
            with signals.unbroken():  # a queue with an event that is not acknowledged cannot be destroyed
                completions.get_cq_event(0).ack_events()

    def _dispatch(self, event: Event) -> None:
        with event:
            if event.event in FAILURES:
                raise Failure(event.explain())
            self.handle(event)

    def _nothing(self, doing: str) -> Failure:
        return Failure(f"{doing}: nothing happened for {self.seconds:g} s: does the peer answer?")
