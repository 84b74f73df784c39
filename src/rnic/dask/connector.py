# SPDX-License-Identifier: Apache-2.0
"""Connections to listeners of Dask."""

from __future__ import annotations

from typing import Any

from distributed.comm import core
from distributed.comm.addressing import parse_host_port
from distributed.comm.core import CommClosedError, FatalCommClosedError

from rnic import EndpointError, NoHelloError, VersionError
from rnic.aio import connect
from rnic.dask.comm import CONFIG, PREFIX, Comm, reason, refuse_encryption
from rnic.dask.frames import GREETING


class Connector(core.Connector):
    """Makes Comms to addresses."""

    async def connect(self, address: str, deserialize: bool = True, **connection_args: Any) -> Comm:
        """Connect to "host:port".

        Dask sets the time limit, and tries again after an OSError: CommClosedError when nobody listens there.
        FatalCommClosedError when a program does with which Dask cannot talk.  RuntimeError when the
        configuration requires encryption, which there is none of; ValueError for an address without a port.
        """
        refuse_encryption(address, connection_args)
        host, port = parse_host_port(address)
        try:
            conn = await connect(host, port, timeout=None, config=CONFIG, data=GREETING)
        except (NoHelloError, VersionError) as error:
            raise FatalCommClosedError(f"{PREFIX}{address}: {reason(error)}") from error
        except EndpointError as error:
            raise CommClosedError(f"{PREFIX}{address}: {reason(error)}") from error
        return Comm(conn, PREFIX + address, deserialize)
