# SPDX-License-Identifier: Apache-2.0
"""A key-value store: a client gets values by RDMA READs of the server's table, and puts them by messages.

get() costs the server's processor nothing.  The server may change an entry while a client reads it: so each
entry has a checksum, and a client that finds a wrong one reads again.  Both ends are in one program here.
"""

import asyncio
import struct
from collections.abc import Iterator
from zlib import crc32

import rnic
from rnic import AccessFlags

ENTRY = 128  # bytes
ENTRIES = 4096
PROBES = 16  # entries in which a key can be, one behind the other
HEAD = struct.Struct("<IBB")  # the checksum of all that follows, length of the key, length of the value
CHECKSUM = 4
ROOM = ENTRY - HEAD.size


def pack(key: bytes, value: bytes) -> bytes:
    """An entry, which is as long as all others."""
    if len(key) + len(value) > ROOM:
        raise ValueError(f"{len(key)} and {len(value)} bytes: key and value have {ROOM} together")
    content = (bytes((len(key), len(value))) + key + value).ljust(ENTRY - CHECKSUM, b"\0")
    return crc32(content).to_bytes(CHECKSUM, "little") + content


def unpack(entry: memoryview) -> tuple[bytes, bytes] | None:
    """Key and value; no key: it is empty; None: the entry was being changed while it was read."""
    checksum, key, value = HEAD.unpack_from(entry)
    if crc32(entry[CHECKSUM:]) != checksum:
        return None
    middle = HEAD.size + key
    return bytes(entry[HEAD.size : middle]), bytes(entry[middle : middle + value])


def places(key: bytes) -> Iterator[int]:
    """Where in the table a key can be."""
    first = crc32(key)
    return ((first + i) % ENTRIES * ENTRY for i in range(PROBES))


class Table:
    """The server's side: the memory that clients read."""

    def __init__(self, memory: memoryview) -> None:
        self.memory = memory
        memory[:] = pack(b"", b"") * ENTRIES

    def put(self, key: bytes, value: bytes) -> None:
        """Set a value; KeyError when there is no room for the key."""
        entry = pack(key, value)
        for at in places(key):
            there = unpack(self.memory[at : at + ENTRY])
            assert there is not None  # nobody else writes
            if there[0] in (key, b""):
                self.memory[at : at + ENTRY] = entry
                return
        raise KeyError(f"there is no room for {key!r}")

    async def serve(self, conn: rnic.aio.Connection) -> None:
        """Carry out one client's puts, until it says goodbye."""
        await conn.share(self.memory, AccessFlags.REMOTE_READ)
        async for message in conn:
            length = message[0]
            try:
                self.put(message[1 : 1 + length], message[1 + length :])
            except (KeyError, ValueError) as error:
                await conn.send(str(error).encode())
            else:
                await conn.send(b"")


class Client:
    """What a program has of the store."""

    def __init__(self, conn: rnic.Connection) -> None:
        self._conn = conn
        self._table = conn.next_region()
        self._entry = memoryview(bytearray(ENTRY))
        self.torn = 0  # entries that were being changed while they were read

    def get(self, key: bytes) -> bytes | None:
        """The value of a key; None: there is none."""
        for at in places(key):
            found, value = self._read(at)
            if found == key:
                return value
            if not found:
                break
        return None

    def _read(self, at: int) -> tuple[bytes, bytes]:
        while True:
            self._conn.read(self._entry, self._table, at)
            if (found := unpack(self._entry)) is not None:
                return found
            self.torn += 1

    def put(self, key: bytes, value: bytes) -> None:
        """Set a value; when it returns, every client gets it."""
        self._conn.send(bytes((len(key),)) + key + value)
        if refused := self._conn.recv():
            raise ValueError(refused.decode())


def use(port: int) -> None:
    """Put and get."""
    with rnic.connect("127.0.0.1", port) as conn:
        store = Client(conn)
        for number in range(100):
            store.put(b"key %d" % number, b"value %d" % number)
        store.put(b"key 42", b"the answer")
        print(store.get(b"key 7"), store.get(b"key 42"), store.get(b"key 100"))


async def main() -> None:
    """The server; a client in a thread of its own."""
    async with rnic.aio.listen("127.0.0.1", 0) as server:
        table = Table(server.alloc(ENTRIES * ENTRY).buf)
        serving = asyncio.create_task(server.serve(table.serve))
        await asyncio.to_thread(use, server.port)
        server.close()
        await serving


if __name__ == "__main__":
    asyncio.run(main())
