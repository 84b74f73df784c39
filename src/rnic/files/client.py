# SPDX-License-Identifier: Apache-2.0
"""Who asks for a copy: to a server, or from one."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import rnic
from rnic.files import secret as proofs
from rnic.files.options import Options, Report
from rnic.files.reading import Source
from rnic.files.receiver import Receiver
from rnic.files.records import NO_PROOF, VERSION, Ask, Go, Hello, Op, Right, pack_paths
from rnic.files.sender import Sender
from rnic.files.state import CopyError
from rnic.files.talk import CONFIG, GREETING, Talk, told
from rnic.files.tree import Named, Tree
from rnic.files.writing import Target
from rnic.records import replace

__all__ = ["copy_from", "copy_to"]


async def copy_to(
    host: str,
    port: int,
    sources: Sequence[str],
    destination: str,
    options: Options,
    report: Report,
    *,
    secret: bytes | None = None,
    device: str | None = None,
) -> None:
    """Copy files of this host to a path below the server's folder.

    What is wrong with single files goes to `report`. Raises CopyError if the server refuses or breaks off,
    EndpointError or VerbsError if it cannot be reached.
    """
    with ExitStack() as stack:
        found = [_source(stack, one) for one in sources if _can_open(one, report)]
        if not found:
            return
        if len(sources) > 1:
            options = replace(options, into=True)
        ask = Ask(Op.PUT, options.flags, b"", NO_PROOF, _paths([destination]))
        async with _asked(host, port, ask, secret, device) as talk:
            await Sender(talk, found, options, report).run()


async def copy_from(
    host: str,
    port: int,
    sources: Sequence[str],
    destination: str,
    options: Options,
    report: Report,
    *,
    secret: bytes | None = None,
    device: str | None = None,
) -> None:
    """Copy files below the server's folder to a path of this host; otherwise as copy_to()."""
    with ExitStack() as stack:
        names = [os.fsencode(one).rstrip(b"/").rpartition(b"/")[2] or b"." for one in sources]
        target = _target(stack, destination, options.into or len(sources) > 1, names)
        ask = Ask(Op.GET, options.flags, b"", NO_PROOF, _paths(sources))
        async with _asked(host, port, ask, secret, device) as talk:
            await Receiver(talk, target, options, report).run()


@asynccontextmanager
async def _asked(
    host: str, port: int, ask: Ask, secret: bytes | None, device: str | None
) -> AsyncIterator[Talk]:
    async with (
        await rnic.aio.connect(host, port, config=CONFIG, data=GREETING, device=device) as conn,
        told(conn, "the client was interrupted"),
    ):
        talk = Talk(conn)
        try:
            hello = await talk.next(Hello)
        except CopyError as error:
            raise CopyError(f"no greeting of rnic serve came from {host} port {port}: {error}") from None
        if hello.version != VERSION:
            raise CopyError(f"the server speaks version {hello.version}, this end version {VERSION}")
        if hello.rights & Right.SECRET and secret is None:
            raise CopyError("the server asks for a secret (--secret-file)")
        if secret is not None and not hello.rights & Right.SECRET:
            raise CopyError("the server has no secret: it cannot prove that it is the right one")
        ask = ask._replace(nonce=os.urandom(32))
        ask = ask._replace(proof=proofs.client_proof(secret, hello.nonce, ask))
        await talk.send(ask)
        go = await talk.next(Go)
        if not proofs.equal(go.proof, proofs.server_proof(secret, hello.nonce, ask.nonce)):
            raise CopyError("the server does not know the secret")
        yield talk


def _paths(paths: Sequence[str]) -> bytes:
    try:
        return pack_paths(list(map(os.fsencode, paths)))
    except ValueError as error:
        raise CopyError(str(error)) from None


def _can_open(path: str, report: Report) -> bool:
    try:
        Path(path).stat()
    except OSError as error:
        report.failed(os.fsencode(path), f"cannot stat '{path}': {error.strerror}")
        return False
    return True


def _source(stack: ExitStack, path: str) -> Source:
    """A path of the user's, who may use links and "..": what is below it may not."""
    name = path.rstrip("/").rpartition("/")[2]
    tree = Named(path)
    stack.callback(tree.close)
    plain = name not in ("", ".", "..")
    return Source(tree, (), os.fsencode(name) if plain else b".", os.fsencode(path))


def _target(stack: ExitStack, path: str, into: bool, names: list[bytes]) -> Target:
    if Path(path).is_dir():
        return Target(_tree(stack, path), (), names)
    if into or path.endswith("/"):
        raise CopyError(f"target '{path}' is not a directory")
    above, _, name = path.rpartition("/")
    above = above or ("/" if path.startswith("/") else ".")
    return Target(_tree(stack, above), (os.fsencode(name),), names)


def _tree(stack: ExitStack, path: str) -> Tree:
    tree = Tree(path)
    stack.callback(tree.close)
    return tree
