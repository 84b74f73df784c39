# SPDX-License-Identifier: Apache-2.0
"""Connections as a Python programmer expects them: connect(), listen(), messages of any size, shared memory.

`core` drives rnic.endpoint over RDMA-CM and a queue pair, without waiting; `sync` is a thin face of it that
waits, rnic.aio another.
"""

from rnic.conn.sync import Connection, Listener, connect, listen

__all__ = ["Connection", "Listener", "connect", "listen"]
