# SPDX-License-Identifier: Apache-2.0
"""Two endpoints over a pair of simulated queue pairs, with a clock that only the test moves.

As on a reliable connection, SENDs arrive in order, each takes a receive that was posted, and a completion
comes some time after the arrival.  A SEND into an empty receive queue fails the test: there is no RNR retry.
"""

from __future__ import annotations

from collections import deque

from rnic.endpoint import Config, Event, Outgoing, Protocol, Role

SMALL = Config(receive_size=64, receives=3, max_message=4096, max_backlog=300, max_regions=4)


class End:
    """A protocol object, its queue pair, and all that its user got to see."""

    def __init__(self, config: Config, role: Role) -> None:
        self.protocol = Protocol(config, role)
        self.receives = 0  # posted and unused
        self.wire: deque[tuple[Outgoing, bytes]] = deque()  # posted, not arrived
        self.arrived: deque[Outgoing] = deque()  # arrived, not completed
        self.log: list[bytes] = []  # every SEND that arrived at the peer
        self.events: list[Event] = []
        self.memory: dict[int, bytes] = {}  # what it has announced, by address
        self.delivered: list[int] = []

    def post_receives(self) -> bool:
        number = self.protocol.receives_to_post()
        self.receives += number
        self.protocol.receives_posted(number)
        return number > 0

    def post_send(self) -> bool:
        """Post one work request; the bytes are taken when it arrives, as hardware does."""
        self.post_receives()
        out = self.protocol.next_send()
        if out is None:
            return False
        self.wire.append((out, bytes(out.payload)))
        return True

    def complete(self, now: float) -> bool:
        if not self.arrived:
            return False
        self.delivered += self.protocol.sent(self.arrived.popleft().number, now)
        return True

    def announce(self, data: bytes, tag: int = 0) -> int:
        """Announce a message that lies here."""
        addr = 0x1000 * (1 + len(self.memory))
        self.memory[addr] = data
        return self.protocol.announce(len(data), addr, 7, tag)

    def fetch(self, peer: End) -> bool:
        """READ what the peer has announced, when that is due."""
        if not self.protocol.may_fetch:
            return False
        offer = self.protocol.offer
        assert offer is not None
        self.protocol.begin_fetch()
        data = peer.memory.get(offer.addr)
        if data is None or len(data) < offer.total:
            self.protocol.lost("REM_ACCESS_ERR")
        else:
            self.protocol.fetched(data[: offer.total])
        return True

    def take_event(self) -> bool:
        event = self.protocol.next_event()
        if event is not None:
            self.events.append(event)
        return event is not None


class Pair:
    """Two ends after their handshake."""

    def __init__(self, a: Config = SMALL, b: Config = SMALL, hello: bool = True) -> None:
        self.now = 0.0
        self.a, self.b = End(a, Role.INITIATOR), End(b, Role.ACCEPTOR)
        self.ends = (self.a, self.b)
        for end in self.ends:
            end.post_receives()
        if hello:
            self.b.protocol.accept_hello(self.a.protocol.hello().ljust(56, b"\0"), self.now)
            self.a.protocol.accept_hello(self.b.protocol.hello().ljust(196, b"\0"), self.now)

    def peer(self, end: End) -> End:
        return self.b if end is self.a else self.a

    def arrive(self, end: End) -> bool:
        """The oldest work request of `end` arrives."""
        if not end.wire:
            return False
        out, payload = end.wire.popleft()
        end.arrived.append(out)
        if out.probe:
            assert not out.header
            assert not payload
            return True
        peer = self.peer(end)
        assert peer.receives > 0, "a SEND met an empty receive queue"
        assert bytes(out.payload) == payload, "the buffer changed while it was being sent"
        peer.receives -= 1
        data = out.header + payload
        assert len(data) <= peer.protocol.config.receive_size
        end.log.append(data)
        taken = peer.protocol.taken
        peer.protocol.receive(memoryview(data), self.now)
        if peer.protocol.taken != taken:
            peer.delivered.append(peer.protocol.taken)
        return True

    def step(self, end: End, take: bool = True) -> bool:
        """All that can happen at one end happens once."""
        steps = [
            end.fetch(self.peer(end)),
            end.post_receives(),
            end.post_send(),
            self.arrive(end),
            end.complete(self.now),
        ]
        return (
            any(steps)
            | (take and end.take_event())
            | end.protocol.may_fetch
            | (end.protocol.receives_to_post() > 0)
        )

    def run(self, takers: tuple[End, ...] | None = None) -> None:
        """Until nothing more happens; only `takers` take their events, all ends if None."""
        takers = self.ends if takers is None else takers
        limit = 100_000
        while self.step(self.a, self.a in takers) | self.step(self.b, self.b in takers):
            limit -= 1
            assert limit, "the two talk without end"

    def exchange(self, end: End, message: bytes) -> None:
        """A message, and all that follows from it."""
        end.protocol.send(message)
        self.run()
