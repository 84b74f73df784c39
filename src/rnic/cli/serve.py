# SPDX-License-Identifier: Apache-2.0
"""`rnic serve`: the directory that `rnic cp` copies to and from."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import click

from rnic.cli import network, params, signals
from rnic.cli.command import command
from rnic.cli.copy import device_option, secret_option
from rnic.cli.limits import raise_descriptors
from rnic.files import Rights, Server
from rnic.files.options import PORT


@command()
@click.argument("folder", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--read-only", is_flag=True, help="Clients may only copy from it.")
@click.option("--write-only", is_flag=True, help="Clients may only copy to it.")
@click.option("--host", default="0.0.0.0", show_default=True, help="The address to listen at.")
@click.option(
    "-p",
    "--port",
    type=params.number(0, 65535),
    default=PORT,
    show_default=True,
    help="The port; 0 chooses a free one.",
)
@click.option(
    "--max-clients",
    type=params.number(1),
    default=16,
    show_default=True,
    help="Further clients are refused.",
)
@click.option("-v", "--verbose", is_flag=True, help="Print a line for each copy.")
@secret_option
@device_option
def serve(
    folder: Path,
    read_only: bool,
    write_only: bool,
    host: str,
    port: int,
    max_clients: int,
    verbose: bool,
    secret: bytes | None,
    device: str | None,
) -> None:
    """Serve a directory to `rnic cp`, until Ctrl-C.

    \b
    rnic serve DIR -v               its clients: rnic cp -r FOLDER HOST:
    rnic serve DIR --read-only      rnic cp HOST:FILE .

    No path leads out of it, and no symbolic link in it is followed. Without --secret-file anybody who reaches
    the port may copy. What is copied is not encrypted. A client without progress for 15 minutes
    is given up.
    """
    if read_only and write_only:
        raise click.UsageError("--read-only and --write-only exclude each other")
    rights = Rights(read=not write_only, write=not read_only)
    hear = click.echo if verbose else lambda _: None
    raise_descriptors()
    warn = partial(click.echo, err=True)
    server = Server(str(folder), rights, secret=secret, hear=hear, warn=warn)

    def client(port: int, address: str) -> list[str]:
        there = f"[{address}]:" if ":" in address else f"{address}:"
        words = ["FILE", there] if rights.write else [f"{there}FILE", "."]
        return ["rnic", "cp", *network.port_words(port), *words]

    may = " and ".join(word for word, so in (("read", rights.read), ("write", rights.write)) if so)
    note = None if secret else f"no --secret-file: whoever reaches the port may {may}"
    signals.run(_serve(server, host, port, max_clients, device, client, note))


async def _serve(
    server: Server,
    host: str,
    port: int,
    most: int,
    device: str | None,
    client: Callable[[int, str], list[str]],
    note: str | None,
) -> None:
    async with server.listen(host, port, max_connections=most, device=device) as listener:
        network.announce(host, listener.port, partial(client, listener.port))
        if note:
            click.echo(note, err=True)
        await listener.serve(server.attend)
