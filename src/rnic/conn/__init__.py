# SPDX-License-Identifier: Apache-2.0
"""Connections for Python programs: connect(), listen(), messages of any size, shared memory.

`core` drives rnic.endpoint over RDMA-CM and a queue pair, without waiting. `sync` adds calls that wait;
rnic.aio adds calls for asyncio.
"""

from rnic.conn.messages import ANY, AnyTag
from rnic.conn.remote import Batch
from rnic.conn.sync import Connection, Listener, connect, listen

__all__ = ["ANY", "AnyTag", "Batch", "Connection", "Listener", "connect", "listen"]
