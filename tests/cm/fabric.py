# SPDX-License-Identifier: Apache-2.0
"""Communication managers on a virtual clock, and a network between them that loses, repeats and reorders."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from ipaddress import IPv6Address
from random import Random
from typing import Any

from rnic.cm import Connection, Event, EventType, IbCm, Listener, Send, State, iba_ns
from rnic.wire import CmAttr, CmPath, PortSpace, Rep, Req, service_id

MS = 1_000_000
SERVICE = service_id(PortSpace.TCP, 7471)
ACK_TIMEOUT = 8  # 1 ms: short times, so that TIMEWAIT is not what a test waits for
WAIT = 2 * iba_ns(7) + iba_ns(12)  # what the client waits for an answer
SERVER_WAIT = iba_ns(12)


def a_req(**changed: object) -> Req:
    """A REQ as an application fills it in."""
    fields: dict[str, object] = {
        "service_id": SERVICE,
        "local_qpn": 0x111,
        "starting_psn": 0x123456,
        "remote_cm_timeout": 12,  # 16.8 ms
        "local_cm_timeout": 12,
        "max_cm_retries": 7,
        "retry_count": 7,
        "rnr_retry_count": 7,
        "path_mtu": 3,
        "primary": CmPath(
            local_gid=IPv6Address("::ffff:10.0.0.1"),
            remote_gid=IPv6Address("::ffff:10.0.0.2"),
            ack_timeout=ACK_TIMEOUT,
        ),
    }
    return Req(**(fields | changed))  # type: ignore[arg-type]


def a_rep(**changed: object) -> Rep:
    fields: dict[str, object] = {"local_qpn": 0x222, "starting_psn": 0x654321, "target_ack_delay": 5}
    return Rep(**(fields | changed))  # type: ignore[arg-type]


@dataclass
class Faults:
    """What happens to a datagram on its way; `lose` says it by number, the rest by chance."""

    rng: Random = field(default_factory=lambda: Random(0))
    loss: float = 0.0
    repeat: float = 0.0
    jitter: int = 0  # ns: what is sent later can arrive earlier
    delay: int = 100_000  # ns
    lose: frozenset[tuple[str, int]] = frozenset()  # ("RTU", 0): the first RTU
    _seen: dict[str, int] = field(default_factory=dict)

    def arrivals(self, name: str) -> Iterator[int]:
        """The delays after which copies of a datagram arrive."""
        number = self._seen.get(name, 0)
        self._seen[name] = number + 1
        if (name, number) in self.lose:
            return
        for _ in range(1 + (self.rng.random() < self.repeat)):
            if self.rng.random() >= self.loss:
                yield self.delay + (self.rng.randrange(self.jitter) if self.jitter else 0)


class Node:
    """A manager, its address, and an application that answers events by a function for each."""

    def __init__(self, name: str, slot: int, guid: int, seed: int) -> None:
        self.name = name
        self.cm = IbCm(slot, guid, rng=Random(seed))
        self.answers: dict[EventType, Callable[[Event, int], None]] = {}
        self.events: list[Event] = []

    def seen(self) -> list[str]:
        return [event.type.name for event in self.events]

    def on(self, kind: EventType, answer: Callable[[Event, int], None]) -> None:
        self.answers[kind] = answer


class Fabric:
    """Nodes by address; time jumps to whatever is next."""

    def __init__(self, faults: Faults | None = None) -> None:
        self.now = 0
        self.faults = faults or Faults()
        self.nodes: dict[str, Node] = {}
        self.trace: list[tuple[int, str, str, str]] = []  # time, from, to, message
        self.tids: list[int] = []
        self._flying: list[tuple[int, int, str, str, bytes]] = []
        self._serial = 0

    def node(self, name: str, slot: int = 1, guid: int | None = None) -> Node:
        guid = guid if guid is not None else 0xA0 + len(self.nodes)
        node = Node(name, slot, guid, seed=len(self.nodes))
        self.nodes[name] = node
        return node

    def settle(self) -> None:
        """Hand out what nodes have to say until they say no more."""
        busy = True
        while busy:
            busy = False
            for node in self.nodes.values():
                for send in node.cm.take_sends():
                    self._transmit(node, send)
                for event in node.cm.take_events():
                    busy = True
                    node.events.append(event)
                    if event.type in node.answers:
                        node.answers[event.type](event, self.now)

    def _transmit(self, node: Node, send: Send) -> None:
        name = CmAttr(send.mad.attr_id).name
        dest = str(send.dest)
        self.trace.append((self.now, node.name, dest, name))
        self.tids.append(send.mad.tid)
        for delay in self.faults.arrivals(name):
            self._serial += 1
            entry = (self.now + delay, self._serial, node.name, dest, send.mad.emit())
            heapq.heappush(self._flying, entry)

    def next_time(self) -> int | None:
        times = [time for node in self.nodes.values() if (time := node.cm.deadline()) is not None]
        if self._flying:
            times.append(self._flying[0][0])
        return min(times, default=None)

    def run(self, until: int | None = None) -> None:
        """Until nothing is left to happen, or a time."""
        for _ in range(100_000):
            self.settle()
            following = self.next_time()
            if following is None or (until is not None and following > until):
                self.now = max(self.now, until or self.now)
                return
            self.now = max(self.now, following)
            while self._flying and self._flying[0][0] <= self.now:
                _, _, source, dest, data = heapq.heappop(self._flying)
                if dest in self.nodes:
                    self.nodes[dest].cm.input(data, source, self.now)
                self.settle()
            for node in self.nodes.values():
                node.cm.timer(self.now)
        raise AssertionError("the fabric does not come to rest")

    def names(self) -> list[str]:
        return [name for _, _, _, name in self.trace]


# -------------------------------------------------------------------------------- two applications


def conn_of(event: Event) -> Connection:
    assert isinstance(event.source, Connection)
    return event.source


def accepting(node: Node, **changed: object) -> Listener:
    """A server that accepts whoever calls and lets go whoever leaves."""
    node.on(EventType.REQ_RECEIVED, lambda event, now: conn_of(event).send_rep(a_rep(**changed), now))
    node.on(EventType.DREQ_RECEIVED, lambda event, now: conn_of(event).send_drep(now))
    return node.cm.listen(SERVICE, 0)


def confirming(node: Node) -> None:
    """A client that confirms every REP."""
    node.on(EventType.REP_RECEIVED, lambda event, now: conn_of(event).send_rtu(now))
    node.on(EventType.DREQ_RECEIVED, lambda event, now: conn_of(event).send_drep(now))


def server_and_client(faults: Faults | None = None) -> tuple[Fabric, Node, Node]:
    fabric = Fabric(faults)
    server, client = fabric.node("server"), fabric.node("client")
    accepting(server)
    confirming(client)
    return fabric, server, client


def call(fabric: Fabric, client: Node, to: str = "server", **changed: object) -> Connection:
    conn = client.cm.connection(to, packet_life_time=7)
    conn.send_req(a_req(**changed), fabric.now)
    return conn


def accepted(server: Node, number: int = 0) -> Connection:
    """The server's end of a connection, in the order of their REQs."""
    requests = [event for event in server.events if event.type is EventType.REQ_RECEIVED]
    return conn_of(requests[number])


def lost(*what: tuple[str, int]) -> tuple[Fabric, Node, Node]:
    return server_and_client(Faults(lose=frozenset(what)))


def connected(fabric: Fabric, server: Node, client: Node, **changed: Any) -> tuple[Connection, Connection]:
    """Both ends, the active one first."""
    conn = call(fabric, client, **changed)
    fabric.run(until=fabric.now + 1000 * MS)
    assert conn.state is State.ESTABLISHED
    return conn, accepted(server, server.seen().count("REQ_RECEIVED") - 1)
