# SPDX-License-Identifier: Apache-2.0
"""Who answers: a folder that clients copy to and from."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import ExitStack

import rnic
from rnic.endpoint.text import clip, printable
from rnic.files import secret as proofs
from rnic.files.options import Options, Report
from rnic.files.reading import Source
from rnic.files.receiver import Receiver
from rnic.files.records import VERSION, Ask, Go, Hello, Op, Refused, Right, unpack_paths
from rnic.files.sender import Sender
from rnic.files.state import CopyError
from rnic.files.talk import CONFIG, GREETING, QUIET, STALL, StalledError, Talk, told
from rnic.files.tree import Tree, split
from rnic.files.writing import Target
from rnic.records import Record
from rnic.wording import counted

__all__ = ["Rights", "Server"]


class Rights(Record):
    """What clients may do."""

    read: bool = True
    """Copy from the folder."""
    write: bool = True
    """Copy to the folder."""


class Server:
    """Serves a folder to any number of clients, in the running loop."""

    def __init__(
        self,
        folder: str,
        rights: Rights,
        *,
        secret: bytes | None = None,
        quiet: float = QUIET,
        stall: float = STALL,
        hear: Callable[[str], None] = lambda _: None,
        warn: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`secret`: clients must know it. `quiet`: seconds after which a silent client is given up. `stall`:
        seconds of a copy without progress, after which its client is given up. `hear` is called with a line
        for each copy, `warn` with one for each client that was given up by `stall`. OSError if there is no
        such folder.
        """
        Tree(folder).close()
        self._folder, self._rights, self._secret = folder, rights, secret
        self._quiet, self._stall, self._hear, self._warn = quiet, stall, hear, warn

    def listen(
        self, host: str, port: int, *, max_connections: int | None = None, device: str | None = None
    ) -> rnic.aio.Listener:
        """A listener for serve(); port 0 chooses a free one."""
        return rnic.aio.listen(
            host, port, config=CONFIG, admit=_admit, max_connections=max_connections, device=device
        )

    async def attend(self, conn: rnic.aio.Connection) -> None:
        """One client, for Listener.serve(): what goes wrong ends its copy alone, and is told to `hear`."""
        peer = conn.peer_address
        name = f"{peer[0]}" if peer else "?"
        try:
            async with told(conn, "the server was stopped"):
                await self._attend(Talk(conn, self._quiet, self._stall), name)
        except StalledError as error:
            self._warn(f"{name}: {error}")
            await conn.abort(str(error))
        except (CopyError, rnic.EndpointError, rnic.VerbsError) as error:
            self._hear(f"{name}: {error}")
            await conn.abort(str(error))

    async def _attend(self, talk: Talk, name: str) -> None:
        nonce = os.urandom(32)
        rights = Right.READ * self._rights.read | Right.WRITE * self._rights.write
        rights |= Right.SECRET * (self._secret is not None)
        await talk.send(Hello(VERSION, rights, nonce))
        ask = await self._asked(talk)
        with ExitStack() as stack:
            try:
                end = self._prepare(talk, ask, nonce, stack)
            except (ValueError, OSError) as error:
                text = str(error)
                await talk.send(Refused(clip(text, 500)))
                self._hear(f"{name}: refused: {printable(text.encode(errors='replace'))}")
                return
            await talk.send(Go(proofs.server_proof(self._secret, nonce, ask.nonce)))
            await end.run()
            report = end.report
            verb = "to" if ask.op == Op.GET else "from"
            failed = f", {report.failed_count} failed" if report.failed_count else ""
            self._hear(f"{name}: {counted(report.files, 'file')}, {report.bytes} bytes {verb} it{failed}")

    async def _asked(self, talk: Talk) -> Ask:
        """What the client wants, which signs of life do not put off."""
        try:
            async with asyncio.timeout(self._quiet):
                return await talk.next(Ask)
        except TimeoutError:
            raise CopyError(f"the client has not asked for anything within {self._quiet:g} s") from None

    def _prepare(self, talk: Talk, ask: Ask, nonce: bytes, stack: ExitStack) -> Sender | Receiver:
        """The end that does what is asked; ValueError or OSError with the reason if it is refused."""
        if not proofs.equal(ask.proof, proofs.client_proof(self._secret, nonce, ask)):
            raise ValueError("the secret is wrong")
        options, paths = Options.of(ask.flags), unpack_paths(ask.paths)
        if not paths:
            raise ValueError("no path was given")
        tree = Tree(self._folder)
        stack.callback(tree.close)
        if ask.op == Op.GET:
            if not self._rights.read:
                raise ValueError("nothing may be copied from this server")
            return Sender(talk, [_source(tree, path) for path in paths], options, Report())
        if ask.op != Op.PUT or len(paths) != 1:
            raise ValueError("this is not known here")
        if not self._rights.write:
            raise ValueError("nothing may be copied to this server")
        target = Target(tree, split(paths[0]))
        if not target.inside and (options.into or paths[0].endswith(b"/")):
            raise ValueError(f"target '{printable(paths[0])}' is not a directory")
        return Receiver(talk, target, options, Report())


def _source(tree: Tree, path: bytes) -> Source:
    parts = split(path)
    last = path.rstrip(b"/").rpartition(b"/")[2]
    return Source(tree, parts, b"." if last in (b"", b".") else last, path)


def _admit(data: bytes, _peer: object) -> None:
    if data != GREETING:
        raise PermissionError("this is a server of files: use rnic cp")
