# SPDX-License-Identifier: Apache-2.0
"""The entry of `rnic` in distributed's table of address schemes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from distributed.comm.tcp import BaseTCPBackend

from rnic.aio.leaving import close_late
from rnic.dask.comm import Comm
from rnic.dask.connector import Connector
from rnic.dask.listener import Listener


class Backend(BaseTCPBackend):
    """The scheme rnic://; its addresses are those of TCP: a host or its IP, and a port of RDMA-CM."""

    def get_connector(self) -> Connector:
        """Return what connects to addresses."""
        return Connector()

    def get_listener(
        self, loc: str, handle_comm: Callable[[Comm], Any], deserialize: bool, **connection_args: Any
    ) -> Listener:
        """Return a listener, which is not started, at "host:port"."""
        return Listener(loc, handle_comm, deserialize, **connection_args)


close_late()  # distributed closes clients and clusters at exit
