# SPDX-License-Identifier: Apache-2.0
"""`rnic mckey`: mckey(1). Members of a multicast group get what a sender sends to it."""

from __future__ import annotations

import time
from contextlib import ExitStack

import click

from rnic.cli import params
from rnic.cli.cm import options
from rnic.cli.cm.node import Load, Node
from rnic.cli.cm.udaddy import port_space
from rnic.cli.cm.waiting import Waiter
from rnic.cli.command import command
from rnic.rdmacm import Event, EventChannel, EventType, JoinFlags, PortSpace, UDParam, create_id


@command()
@click.option("-m", "group", metavar="ADDRESS", help="The group: an IPv4 or IPv6 multicast address.")
@click.option("-M", "unmapped", metavar="GID", help="The group by its GID (not supported).")
@click.option("-s", "sender", is_flag=True, help="Send; without it: receive.")
@click.option("-b", "bind", metavar="ADDRESS", help="The local address to use.")
@options.load
@click.option("-p", "space_number", type=params.number(0), help="Port space, 0x111 for UDP.")
@click.option("-o", "send_only", is_flag=True, help="Join to send, not to receive.")
@click.option("-l", "no_loopback", is_flag=True, help="Join without loopback (not supported).")
@click.option(
    "--pause",
    type=click.FloatRange(0),
    default=3.0,
    show_default=True,
    help="Seconds that a sender waits for the others, and the switches, to join.",
)
@options.timeout
def mckey(
    group: str | None,
    unmapped: str | None,
    sender: bool,
    bind: str | None,
    connections: int,
    count: int,
    size: int,
    space_number: int | None,
    send_only: bool,
    no_loopback: bool,
    pause: float,
    timeout: float,
) -> None:
    """Join a multicast group by RDMA-CM; receive from it, or send to it.

    Options and messages are those of mckey; the other members can be the original. Without -b
    the route to the group decides the interface. A lost datagram ends the run of its receiver.

    \b
    rnic mckey -m 239.1.2.3 -b ADDRESS           a receiver; then one of
    rnic mckey -m 239.1.2.3 -b ADDRESS -s
    mckey -m 239.1.2.3 -b ADDRESS -s
    """
    ps = port_space(None, space_number)
    if unmapped is not None:
        raise options.not_supported("-M", "addresses of the family AF_IB")
    if no_loopback:
        raise options.not_supported("-l", "queue pairs that block multicast loopback")
    if group is None:
        raise click.UsageError("a group is needed: -m ADDRESS, such as -m 239.1.2.3")
    if send_only and not sender:
        raise click.UsageError("-o joins to send only: it goes with -s")
    where = options.look_up(group, bind, 1, ps=ps)
    flags = JoinFlags.SENDONLY_FULLMEMBER if send_only else JoinFlags.FULLMEMBER
    with ExitStack() as stack:
        members = Members(where, Load.of(count, size), flags, timeout, stack)
        members.join(connections, ps, receive=not sender)
        if sender:
            time.sleep(pause)
            members.send()
        else:
            members.receive()


class Members:
    """The ids of one end that are in the group."""

    def __init__(
        self, where: options.Where, load: Load, flags: JoinFlags, timeout: float, stack: ExitStack
    ) -> None:
        self.where, self.load, self.flags = where, load, flags
        self.receiving = False
        self.nodes: list[Node] = []
        self._stack = stack
        self.waiter = Waiter(stack.enter_context(EventChannel()), self._handle, timeout)

    def join(self, connections: int, ps: PortSpace, *, receive: bool) -> None:
        """Join so often."""
        assert self.where.server is not None
        self.receiving = receive
        for number in range(connections):
            node = Node(create_id(self.waiter.channel, ps), number, self.load)
            self._stack.callback(node.close)
            self.nodes.append(node)
            node.id.resolve_addr(self.where.source, self.where.server, options.RESOLVE_MS)
        self.waiter.events(lambda: all(node.connected for node in self.nodes), "joining")

    def send(self) -> None:
        """All messages, of every id."""
        for node in self.nodes:
            node.post_sends()
        for node in self.nodes:
            node.sent(self.waiter)
        click.echo(f"{self.load.count} messages of {self.load.size} bytes sent")

    def receive(self) -> None:
        """All messages, to every id."""
        for node in self.nodes:
            for _ in node.received(self.waiter):
                pass
        click.echo(f"{self.load.count} messages of {self.load.size} bytes received")

    def _handle(self, event: Event) -> None:
        node: Node = event.id.context  # type: ignore[assignment] # Node's own
        if event.event is EventType.ADDR_RESOLVED:
            node.check_size()
            node.create_qp()
            if self.receiving:
                node.post_recvs()
            assert self.where.server is not None
            node.id.join_multicast_ex(self.where.server, self.flags)
        elif event.event is EventType.MULTICAST_JOIN:
            assert isinstance(event.param, UDParam)
            assert event.param.ah_attr is not None
            node.lead_to(event.param.ah_attr, event.param.qp_num, event.param.qkey)
            node.connected = True
            click.echo(f"joined {event.param.ah_attr.dgid}")
