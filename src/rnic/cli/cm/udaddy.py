# SPDX-License-Identifier: Apache-2.0
"""`rnic udaddy`: udaddy(1). The client finds the service and sends datagrams, the server answers them."""

from __future__ import annotations

import click

import rnic
from rnic.cli import params
from rnic.cli.cm import options
from rnic.cli.cm.node import Load, Node
from rnic.cli.cm.party import Asked, Party
from rnic.cli.command import command
from rnic.rdmacm import ConnParam, Option, PortSpace, UDParam

SPACES = {"udp": PortSpace.UDP, "ipoib": PortSpace.IPOIB}


def port_space(name: str | None, number: int | None) -> PortSpace:
    """The port space that -P names or -p numbers."""
    try:
        ps = PortSpace(number) if number is not None else SPACES[name or "udp"]
    except ValueError:
        raise click.BadParameter(f"{number:#x} is not a port space: {PortSpace.UDP:#x} is UDP") from None
    if ps is PortSpace.IPOIB:
        raise options.not_supported("port space ipoib", "IP over InfiniBand, which RoCE lacks")
    if ps is not PortSpace.UDP:
        raise click.BadParameter(f"port space {ps.name} is for connections, not for datagrams")
    return ps


@command()
@options.ends
@click.option(
    "-P",
    "space",
    type=click.Choice(list(SPACES), case_sensitive=False),
    help="Port space; ipoib: not supported.",
)
@click.option("-p", "space_number", type=params.number(0), help="Port space as a number, 0x111 for UDP.")
@options.port(7174, "--port")
@options.load
@options.timeout
def udaddy(
    server: str | None,
    bind: str | None,
    form: str,
    tos: int | None,
    space: str | None,
    space_number: int | None,
    port: int,
    connections: int,
    count: int,
    size: int,
    timeout: float,
) -> None:
    """Find a datagram service by RDMA-CM, send messages, get answers.

    Options and messages are those of udaddy; either end can be the original, which uses only port 7174.
    Both ends need the same -c, -C and -S. A lost datagram ends the run.

    \b
    rnic udaddy                      a server; then, on the other side, one of
    rnic udaddy -s ADDRESS
    udaddy -s ADDRESS
    """
    ps = port_space(space, space_number)
    where = options.look_up(server, bind, port, form=form, ps=ps)
    given = {} if tos is None else {Option.TOS: tos}
    asked = Asked(where, ps, connections, Load.of(count, size), timeout, given)
    with Udaddy(asked) as party:
        party.run()


class Udaddy(Party):
    """One end."""

    def prepare(self, node: Node) -> None:
        """Check that a message fits one packet."""
        node.check_size()
        super().prepare(node)

    def ask(self, node: Node) -> None:
        """Ask only where the service is."""
        node.id.connect(UDParam())

    def agree(self, node: Node) -> None:
        """Send the queue pair number; the client does not confirm it."""
        node.id.accept(UDParam())
        node.connected = True

    def found(self, node: Node, param: ConnParam | UDParam | None) -> None:
        """The service is found."""
        assert isinstance(param, UDParam)
        assert param.ah_attr is not None
        node.lead_to(param.ah_attr, param.qp_num, param.qkey)

    def run(self) -> None:
        """Run from the first event to the last datagram."""
        serving = self.asked.where.server is None
        self.meet()
        click.echo(f"{len(self.nodes)} connected")
        if not serving:
            self._send()
        for node in self.nodes:
            for wc in node.received(self.waiter):
                if not node.has_way:
                    self._lead_back(node, wc)
        if serving:
            self._send()
        click.echo(f"{self.asked.load.count} messages of {self.asked.load.size} bytes each way")

    def _send(self) -> None:
        for node in self.nodes:
            node.post_sends()
        for node in self.nodes:
            node.sent(self.waiter)

    @staticmethod
    def _lead_back(node: Node, wc: rnic.WC) -> None:
        """Answer to the sender of the first message."""
        assert node.id.verbs is not None
        assert node.id.qp is not None
        if wc.imm_data is None:
            raise params.Failure(
                f"connection {node.number}: the message does not tell a queue pair to answer to"
            )
        ah_attr = node.id.verbs.init_ah_from_wc(node.id.port_num, wc, node.buffer)
        qkey = node.id.qp.query()[0].qkey
        assert qkey is not None
        node.lead_to(ah_attr, wc.imm_data, qkey)
