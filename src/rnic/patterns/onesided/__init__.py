# SPDX-License-Identifier: Apache-2.0
"""One-sided structures: a store, locks, counters, barriers and all-reduce in the memory of a server, which
the clients use by READ, WRITE and atomics alone.

    with rnic.listen("0.0.0.0", 7471) as listener:            # the server
        memory = StoreMemory(listener.alloc, slots=1024, value_size=256)
        listener.serve(lambda conn: serve(conn, memory))

    with rnic.connect(host, 7471) as conn:                    # a client
        store = Store.over(conn)
        store.put(b"key", b"value")

The server's program has two tasks: it gives each client a number, and when the client's connection has ended,
it takes back what the client still held. It takes no part in anything else.

    guest    what all clients have: their way to the memory, the wait for others, locks
    serving  what all servers have: the invitation, and the end of a client
    table    the memory of a store            store   its clients
    words    locks and counters: the memory, and its clients
    group    barrier and all-reduce: the memory, and its members

All numbers in the memory are unsigned and little-endian. An atomic is so in the server's byte order, so the
server is a little-endian machine.
"""

from rnic.patterns.onesided.group import AsyncGroup, BrokenGroupError, Group, GroupMemory
from rnic.patterns.onesided.guest import HostileMemoryError
from rnic.patterns.onesided.serving import NoPlaceError, Shared, serve, serve_async
from rnic.patterns.onesided.store import AsyncStore, ConflictError, Entry, FullError, Store, StoreStatistics
from rnic.patterns.onesided.table import StoreMemory
from rnic.patterns.onesided.words import AsyncWords, WordMemory, Words

__all__ = [
    "AsyncGroup",
    "AsyncStore",
    "AsyncWords",
    "BrokenGroupError",
    "ConflictError",
    "Entry",
    "FullError",
    "Group",
    "GroupMemory",
    "HostileMemoryError",
    "NoPlaceError",
    "Shared",
    "Store",
    "StoreMemory",
    "StoreStatistics",
    "WordMemory",
    "Words",
    "serve",
    "serve_async",
]
