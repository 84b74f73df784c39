# SPDX-License-Identifier: Apache-2.0
"""How comms end: closed, aborted, cancelled, forgotten; and peers that are no Dask, or lie."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import dask
import numpy as np
import pytest
from distributed.comm import CommClosedError, connect, listen
from distributed.protocol import to_serialize

import rnic.aio
from dask_backend.comms import HERE, echo, pair, run, until
from rnic import RefusedError
from rnic.dask import Backend, Comm
from rnic.dask.frames import GREETING, OWN, WHOLE, pack

pytestmark = pytest.mark.usefixtures("quiet")
LARGE = to_serialize(np.full(30_000_000, 7, np.uint8))


async def fails(call: Awaitable[object], text: str) -> None:
    with pytest.raises(CommClosedError, match=text):
        await call


# ------------------------------------------------------------------ closed


def test_both_ends_of_a_comm_that_was_closed() -> None:
    """Reads that wait end, and so do later calls."""

    async def main() -> None:
        async with pair() as (client, server):
            waiting = [asyncio.create_task(comm.read()) for comm in (client, server)]
            await asyncio.sleep(0)
            await client.close()
            await fails(waiting[0], "closed here")
            await fails(waiting[1], "the peer has closed")
            for comm in (client, server):
                assert comm.closed()
                await fails(comm.read(), "closed")
                await fails(comm.write({}), "closed")
                await comm.close()
                await comm.close()
                comm.abort()

    run(main())


def test_a_handler_that_closes_at_once() -> None:
    async def main() -> None:
        async with listen(HERE, Comm.close) as listener:
            comm = await connect(listener.contact_address)
            await fails(comm.read(), "the peer has closed")
            comm = await connect(listener.contact_address)
            await until(comm.closed)

    run(main())


def test_an_idle_comm_notices_that_the_peer_has_closed() -> None:
    """As one of a pool, which nobody reads from."""

    async def main() -> None:
        async with pair() as (client, server):
            await server.close()
            await until(client.closed)
            await fails(client.write({}), "the peer has closed")

    run(main())


def test_what_was_written_before_close_is_read() -> None:
    async def main() -> None:
        async with pair() as (client, server):
            await client.write("first")
            await client.write({"data": LARGE})
            await client.write("last")
            closing = asyncio.create_task(client.close())
            await until(client.closed)
            assert not server.closed()
            assert await server.read() == "first"
            assert (await server.read())["data"].nbytes == 30_000_000
            assert await server.read() == "last"
            await closing
            await fails(server.read(), "the peer has closed")

    run(main())


def test_close_gives_up_on_a_peer_that_reads_nothing() -> None:
    async def main() -> None:
        async with pair() as (client, server):
            await client.write({"data": LARGE})
            with dask.config.set({"distributed.comm.timeouts.tcp": "50ms"}):
                await client.close()
            await fails(server.read(), "closed|aborted")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rnic.dask.comm.CLOSE", 0.05)
        run(main())


# ------------------------------------------------------------------ aborted, cancelled, forgotten


def test_abort_reaches_the_peer_with_its_reason() -> None:
    async def main() -> None:
        async with pair() as (client, server):
            await client.write({"data": LARGE})
            client.abort()
            assert client.closed()
            await fails(server.read(), "the comm was aborted")

    run(main())


def test_abort_from_another_thread() -> None:
    """As a finaliser may call it."""

    async def main() -> None:
        async with pair() as (client, server):
            thread = threading.Thread(target=client.abort)
            thread.start()
            await asyncio.to_thread(thread.join)
            await fails(server.read(), "the comm was aborted")

    run(main())


def test_a_read_that_is_cancelled_ends_the_comm() -> None:
    """Nobody can know how much of a message it has taken."""

    async def main() -> None:
        async with pair() as (client, server):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await server.read()
            assert server.closed()
            await fails(client.read(), "CancelledError")

    run(main())


def received(comm: Comm) -> int:
    """The number of messages of its connection."""
    assert comm._conn is not None
    return comm._conn.statistics().messages_received


def test_a_read_that_is_cancelled_within_an_array() -> None:
    async def main() -> None:
        async with pair() as (client, server):
            head, _ = pack([b"x", bytes(WHOLE)])
            conn = client._conn
            assert conn is not None
            reading = asyncio.create_task(server.read())
            before = received(server)
            await conn.post(head)  # and no more
            await until(lambda: received(server) > before)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            assert server.closed()

    run(main())


def test_a_close_that_is_cancelled_leaves_nothing_behind() -> None:
    async def main() -> None:
        async with pair() as (client, server):
            await client.write({"data": LARGE})
            closing = asyncio.create_task(client.close())
            await until(client.closed)
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
            await fails(server.read(), "aborted")

    run(main())


def test_a_comm_that_is_forgotten_is_closed() -> None:
    async def main() -> None:
        async with pair() as (client, server):
            with pytest.warns(ResourceWarning, match="unclosed"):
                client._conn = None
            await fails(server.read(), "goodbye|aborted")

    run(main())


def test_an_eof_while_a_message_is_unpickled_ends_the_comm() -> None:
    async def main() -> None:
        async with pair() as (client, server):
            await client.write({"data": to_serialize(Short())})
            await fails(server.read(), "less than they promise")
            assert server.closed()

    run(main())


class Short:
    """What cannot be unpickled."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[()]]:
        return ends, ()


def ends() -> None:
    raise EOFError


# ------------------------------------------------------------------ listeners that stop


def test_a_listener_that_stops_keeps_its_comms_and_takes_no_more() -> None:
    async def main() -> None:
        listener = await listen(HERE, echo)
        comm = await connect(listener.contact_address)
        listener.stop()
        listener.stop()
        await comm.write("still")
        assert await comm.read() == "still"
        await comm.close()
        with pytest.raises(CommClosedError, match="RefusedError"):
            await Backend().get_connector().connect(listener.contact_address)

    run(main())


def test_handshakes_are_ended_with_their_listener() -> None:
    async def main() -> None:
        listener = await listen(HERE, echo)
        comm = await Backend().get_connector().connect(listener.contact_address)
        assert await comm.read()  # what the listener says first
        listener.stop()
        listener.abort_handshaking_comms()
        await fails(comm.read(), "aborted")

    run(main())


# ------------------------------------------------------------------ peers that are no Dask, or lie


@asynccontextmanager
async def liar() -> AsyncIterator[tuple[rnic.aio.Connection, Comm]]:
    """A bare connection to a comm, which is behind its handshake."""
    came: asyncio.Queue[Comm] = asyncio.Queue()
    async with listen(HERE, came.put) as listener:
        conn = await rnic.aio.connect("127.0.0.1", listener.port, data=GREETING)
        first = await conn.recv()
        await conn.send(first)  # the same, as an answer
        comm = await came.get()
    try:
        yield conn, comm
    finally:
        comm.abort()
        conn.drop()


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([b"GET / HTTP/1.1\r\n\r\n"], "begins no message of Dask"),
        ([pack([b"x"])[0] + b"more"], "that claim"),
        ([pack([b"x", bytes(WHOLE)])[0], bytes(WHOLE + 1)], "more than the 1048576 bytes"),
        ([pack([b"x", bytes(WHOLE)])[0], bytes(OWN)], "32768 bytes for a frame of 1048576"),
    ],
    ids=["no message", "too much", "too long a frame", "too short a frame"],
)
def test_a_peer_that_lies_loses_the_comm_and_hears_why(messages: list[bytes], why: str) -> None:
    async def main() -> None:
        async with liar() as (conn, comm):
            for message in messages:
                await conn.post(message)
            await fails(comm.read(), why)
            assert comm.closed()
            with pytest.raises(rnic.AbortedError, match=why):
                await conn.recv()

    run(main())


def test_a_frame_that_is_longer_than_memory() -> None:
    async def main() -> None:
        async with liar() as (conn, comm):
            size = 1 << 60
            await conn.send(b"DASK" + (1).to_bytes(4, "little") + (size | 1 << 62).to_bytes(8, "little"))
            with pytest.raises(MemoryError):
                await comm.read()
            assert comm.closed()

    run(main())


def test_programs_that_are_not_dask_are_refused() -> None:
    async def main() -> None:
        async with listen(HERE, echo) as listener:
            with pytest.raises(RefusedError, match="a listener of Dask"):
                await rnic.aio.connect("127.0.0.1", listener.port)

    run(main())
