# SPDX-License-Identifier: Apache-2.0
"""The entry of `rnic` in distributed's table of address schemes."""

from __future__ import annotations

from distributed.comm.tcp import BaseTCPBackend

from rnic.dask.connector import Connector
from rnic.dask.listener import Listener


class Backend(BaseTCPBackend):  # type: ignore[misc]
    """The scheme rnic://; its addresses are those of TCP: a host or its IP, and a port of RDMA-CM."""

    _connector_class = Connector
    _listener_class = Listener
