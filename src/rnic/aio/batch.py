# SPDX-License-Identifier: Apache-2.0
"""Batches of operations, for asyncio."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

from rnic.conn.batch import BatchFace

if TYPE_CHECKING:
    from rnic.aio.connection import Connection


class Batch(BatchFace):
    """The operations of an `async with conn.batch()` block; BatchFace has its calls. It waits at the end of
    the block.
    """

    def __init__(self, conn: Connection) -> None:
        super().__init__(conn._core, "async with")
        self._conn = conn

    async def __aenter__(self) -> Self:
        self.begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()
        if kind is None:
            await self._conn._end_batch(self)
