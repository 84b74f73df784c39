# SPDX-License-Identifier: Apache-2.0
"""`rnic ucmatose`: ucmatose(1). The server sends, the client answers, the server disconnects."""

from __future__ import annotations

import click

from rnic.cli import params
from rnic.cli.cm import options
from rnic.cli.cm.node import Load, Node
from rnic.cli.cm.party import Asked, Party
from rnic.cli.command import command
from rnic.rdmacm import ConnParam, EventChannel, Option, PortSpace

SPACES = {"tcp": PortSpace.TCP, "ib": PortSpace.IB}


@command()
@options.ends
@click.option(
    "-P", "space", type=click.Choice(list(SPACES), case_sensitive=False), default="tcp", help="Port space."
)
@options.port(7471, "-p", "--port")
@options.load
@click.option("-m", "migrate", is_flag=True, help="Move the ids to another event channel for the end.")
@click.option("-a", "ack_timeout", type=params.number(0, 31), help="ACK timeout: 4.096 us * 2**n.")
@options.timeout
def ucmatose(
    server: str | None,
    bind: str | None,
    form: str,
    tos: int | None,
    space: str,
    port: int,
    connections: int,
    count: int,
    size: int,
    migrate: bool,
    ack_timeout: int | None,
    timeout: float,
) -> None:
    """Connect many times by RDMA-CM, send messages both ways, disconnect.

    Options and messages are those of ucmatose; either end can be the original. Both ends need
    the same -c, -C and -S.

    \b
    rnic ucmatose -c 16 -C 100 -S 4096                  a server; then, on the other side, one of
    rnic ucmatose -c 16 -C 100 -S 4096 -s ADDRESS
    ucmatose -c 16 -C 100 -S 4096 -s ADDRESS
    """
    ps = SPACES[space]
    where = options.look_up(server, bind, port, form=form, ps=ps)
    settings = {Option.TOS: tos, Option.ACK_TIMEOUT: ack_timeout}
    given = {option: value for option, value in settings.items() if value is not None}
    asked = Asked(where, ps, connections, Load.of(count, size), timeout, given)
    with Ucmatose(asked) as party:
        party.run(migrate)


class Ucmatose(Party):
    """One end."""

    def ask(self, node: Node) -> None:
        """Connect with the depths and retries of the original."""
        node.id.connect(ConnParam(responder_resources=1, initiator_depth=1, retry_count=5, rnr_retry_count=0))

    def agree(self, node: Node) -> None:
        """Accept what the client asks for."""
        node.id.accept()

    def run(self, migrate: bool) -> None:
        """Run from the first event to the last."""
        serving = self.asked.where.server is None
        self.meet()
        click.echo(f"{len(self.nodes)} connected")
        if serving:
            self._send()
            for node in self.nodes:
                node.sent(self.waiter)
        self._receive()
        if not serving:
            self._send()
        click.echo(f"{self.asked.load.count} messages of {self.asked.load.size} bytes each way")
        if migrate:
            self._migrate()
        if serving:
            for node in self.nodes:
                node.id.disconnect()
        self.waiter.events(lambda: all(node.gone for node in self.nodes), "disconnecting")
        click.echo("disconnected")

    def _send(self) -> None:
        for node in self.nodes:
            node.post_sends()

    def _receive(self) -> None:
        for node in self.nodes:
            for _ in node.received(self.waiter):
                pass

    def _migrate(self) -> None:
        """Move all ids to another event channel."""
        old, new = self.waiter.channel, EventChannel()
        for cm_id in [node.id for node in self.nodes] + ([self.listener] if self.listener else []):
            cm_id.migrate_id(new)
        self.waiter.channel = new
        old.close()
