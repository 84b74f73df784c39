# SPDX-License-Identifier: Apache-2.0
"""Many connections at once: how ucmatose and udaddy call a server, and how they are the server."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Self

import click

from rnic.cli.cm import options
from rnic.cli.cm.node import Load, Node
from rnic.cli.cm.waiting import Waiter
from rnic.rdmacm import CmId, ConnParam, Event, EventChannel, EventType, Option, PortSpace, UDParam, create_id
from rnic.records import Record


class Asked(Record):
    """The command line."""

    where: options.Where
    ps: PortSpace
    connections: int
    load: Load
    timeout: float
    settings: dict[Option, int]
    """Options for every id that calls."""


class Party:
    """One end; a subclass decides how two ids connect, and which messages they exchange."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.nodes: list[Node] = []
        self.listener: CmId | None = None
        self._stack = ExitStack()
        channel = self._stack.enter_context(EventChannel())
        self.waiter = Waiter(channel, self._handle, asked.timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: Any) -> None:
        self._stack.__exit__(*exc)

    # ------------------------------------------------------------------ what differs

    def prepare(self, node: Node) -> None:
        """Prepare the ids before the peer can send."""
        node.create_qp()
        node.post_recvs()

    def ask(self, node: Node) -> None:
        """The address is resolved: connect."""
        raise NotImplementedError

    def agree(self, node: Node) -> None:
        """Accept a request."""
        raise NotImplementedError

    def found(self, node: Node, param: ConnParam | UDParam | None) -> None:
        """The peer has agreed; a connected queue pair needs nothing more."""

    # ------------------------------------------------------------------ getting connected

    def meet(self) -> None:
        """Call the server, or wait for all clients."""
        if self.asked.where.server is None:
            self._listen()
        else:
            self._call()
        self.waiter.events(
            lambda: sum(node.connected for node in self.nodes) == self.asked.connections,
            "connecting",
            patient=lambda: not self.nodes,
        )

    def _listen(self) -> None:
        assert self.asked.where.source is not None
        self.listener = create_id(self.waiter.channel, self.asked.ps)
        self._stack.callback(self.listener.destroy)
        self.listener.bind_addr(self.asked.where.source)
        self.listener.listen()
        options.announce(self.listener, click.get_current_context().info_name or "", "-s")

    def _call(self) -> None:
        assert self.asked.where.server is not None
        for _ in range(self.asked.connections):
            node = self._add(create_id(self.waiter.channel, self.asked.ps))
            for option, value in self.asked.settings.items():
                node.id.set_option(option, value)
            node.id.resolve_addr(self.asked.where.source, self.asked.where.server, options.RESOLVE_MS)

    def _add(self, cm_id: CmId) -> Node:
        node = Node(cm_id, len(self.nodes), self.asked.load)
        self._stack.callback(node.close)
        self.nodes.append(node)
        return node

    # ------------------------------------------------------------------ events

    def _handle(self, event: Event) -> None:
        if handler := _HANDLERS.get(event.event):
            handler(self, event)

    def _addr_resolved(self, event: Event) -> None:
        event.id.resolve_route(options.RESOLVE_MS)

    def _route_resolved(self, event: Event) -> None:
        node: Node = event.id.context  # type: ignore[assignment] # Node's own
        self.prepare(node)
        self.ask(node)

    def _connect_request(self, event: Event) -> None:
        if len(self.nodes) == self.asked.connections:
            click.echo(f"refused {event.id.get_peer_addr()}: {self.asked.connections} have called", err=True)
            event.id.reject()
            event.id.destroy()
            return
        node = self._add(event.id)
        self.prepare(node)
        self.agree(node)

    def _established(self, event: Event) -> None:
        node: Node = event.id.context  # type: ignore[assignment] # Node's own
        self.found(node, event.param)
        node.connected = True

    def _disconnected(self, event: Event) -> None:
        event.id.context.gone = True  # type: ignore[attr-defined] # Node's own
        event.id.disconnect()


_HANDLERS: dict[EventType, Callable[[Party, Event], None]] = {
    EventType.ADDR_RESOLVED: Party._addr_resolved,
    EventType.ROUTE_RESOLVED: Party._route_resolved,
    EventType.CONNECT_REQUEST: Party._connect_request,
    EventType.ESTABLISHED: Party._established,
    EventType.DISCONNECTED: Party._disconnected,
}
