# SPDX-License-Identifier: Apache-2.0
"""How a server takes its memory back from a client that has gone.

A process that is stopped (SIGSTOP) in the middle of a copy keeps all regions, also those of other clients
(EBUSY). The server waits until that process goes on or dies: what a client held must not be given to others
while a write of the client can still come. A client that has said goodbye does not wait for that: its
connection is closed first.
"""

from __future__ import annotations

import asyncio
import errno
from contextlib import suppress
from time import sleep
from typing import TYPE_CHECKING

from rnic.endpoint import EndpointError
from rnic.errors import VerbsError

if TYPE_CHECKING:
    from rnic import Connection
    from rnic.aio import Connection as AsyncConnection
    from rnic.endpoint import Region

__all__ = ["take_back", "take_back_async"]

_PAUSE = 0.1  # seconds between two looks; the device tries less often


def take_back(conn: Connection, region: Region) -> None:
    """Revoke a region, and return when that is done."""
    while True:
        try:
            conn.revoke(region)
            return
        except VerbsError as error:
            if error.errno != errno.EBUSY:
                raise
        with suppress(EndpointError):
            conn.close()
        sleep(_PAUSE)


async def take_back_async(conn: AsyncConnection, region: Region) -> None:
    """The same for asyncio."""
    while True:
        try:
            await conn.revoke(region)
            return
        except VerbsError as error:
            if error.errno != errno.EBUSY:
                raise
        with suppress(EndpointError):
            await conn.close()
        await asyncio.sleep(_PAUSE)
