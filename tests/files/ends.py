# SPDX-License-Identifier: Apache-2.0
"""A server of files, and clients, in one loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import rnic
import rnic.aio
from conn.peers import descriptors, quiet
from rnic.files import Options, Report, Rights, Server, copy_from, copy_to
from rnic.files.records import Ask, Go, Hello, Op, pack_paths
from rnic.files.talk import CONFIG, GREETING, Talk

HOST = "127.0.0.1"
ALL = Options(recursive=True)


class Place:
    """A served folder, and a folder of the client."""

    def __init__(self, root: Path) -> None:
        self.served, self.own = root / "served", root / "own"
        self.served.mkdir()
        self.own.mkdir()
        self.port = 0
        self.heard: list[str] = []
        self.warned: list[str] = []

    @asynccontextmanager
    async def server(
        self, rights: Rights | None = None, secret: bytes | None = None, **options: float
    ) -> AsyncIterator[None]:
        rights = Rights() if rights is None else rights
        options = {"quiet": 60} | options
        server = Server(
            str(self.served),
            rights,
            secret=secret,
            hear=self.heard.append,
            warn=self.warned.append,
            **options,
        )
        async with server.listen(HOST, 0) as listener:
            self.port = listener.port
            serving = asyncio.create_task(listener.serve(server.attend))
            try:
                yield
            finally:
                listener.close()
                await serving

    async def put(
        self, *names: str, to: str = "", options: Options = ALL, secret: bytes | None = None
    ) -> Report:
        report = Report()
        sources = [f"{self.own}/{name}" for name in names]  # a Path would lose "/."
        await copy_to(HOST, self.port, sources, to, options, report, secret=secret)
        return report

    async def get(
        self, *names: str, to: str = "", options: Options = ALL, secret: bytes | None = None
    ) -> Report:
        report = Report()
        to = f"{self.own}/{to}"
        await copy_from(HOST, self.port, list(names), to, options, report, secret=secret)
        return report

    @asynccontextmanager
    async def liar(self, op: Op = Op.PUT, path: bytes = b"", options: Options = ALL) -> AsyncIterator[Talk]:
        """A client up to the server's Go, that says what it likes then."""
        async with await rnic.aio.connect(HOST, self.port, config=CONFIG, data=GREETING) as conn:
            talk = Talk(conn)
            await talk.next(Hello)
            await talk.send(Ask(op, options.flags, bytes(32), bytes(32), pack_paths([path])))
            await talk.next(Go)
            yield talk


def run(main: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(60):
            await main
        assert asyncio.all_tasks() == {asyncio.current_task()}

    before = descriptors()
    asyncio.run(limited())
    quiet(before)


def content(root: Path) -> dict[str, bytes | None]:
    """All that is in a folder: bytes of files, None for folders."""
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None for path in root.rglob("*")
    }
