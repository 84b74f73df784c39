# SPDX-License-Identifier: Apache-2.0
"""Comms of two ends in one loop: echo, large, many, and what addresses say."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any

import dask
import numpy as np
import pytest
from distributed.comm import (
    CommClosedError,
    connect,
    get_address_host,
    get_address_host_port,
    get_local_address_for,
    listen,
    resolve_address,
)
from distributed.protocol import Serialized, deserialize, to_serialize

from dask_backend.comms import HERE, echo, pair, run
from rnic.dask import Backend

pytestmark = pytest.mark.usefixtures("quiet")


def test_echo() -> None:
    async def main() -> None:
        async with listen(HERE, echo) as listener:
            comm = await connect(listener.contact_address)
            messages: list[object] = [{"op": "ping", "n": 1}, "text", (), {"raw": bytes(100)}, {"none": None}]
            for message in messages:
                await comm.write(message)
                assert await comm.read() == message
            await comm.close()

    run(main())


@pytest.mark.parametrize("size", [0, 1, 40_000, 1 << 20, (1 << 20) + 1, 20_000_001])
def test_arrays_come_as_they_went_and_may_be_written_to(size: int) -> None:
    async def main() -> None:
        array = np.random.default_rng(size).integers(0, 255, size, np.uint8)
        async with pair() as (client, server):
            await client.write({"data": to_serialize(array), "more": [to_serialize(array[: size // 2])]})
            found = await server.read()
            assert np.array_equal(found["data"], array)
            assert np.array_equal(found["more"][0], array[: size // 2])
            assert found["data"].flags.writeable

    run(main())


def no_copy(buffers: list[memoryview]) -> memoryview:
    raise AssertionError(f"{len(buffers)} shards were copied")


def test_shards_of_an_array_are_not_put_together_by_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dask splits it, and the shards come into one buffer."""

    async def main() -> None:
        array = np.arange(3_000_000, dtype=np.uint32)
        async with pair() as (client, server):
            await client.write({"data": to_serialize(array)})
            assert np.array_equal((await server.read())["data"], array)

    module = sys.modules["distributed.protocol.serialize"]  # whose name is also that of a function
    monkeypatch.setattr(module, "host_array_from_buffers", no_copy)
    with dask.config.set({"distributed.comm.shard": "4 MiB"}):
        run(main())


def test_other_layouts_and_kinds_of_arrays() -> None:
    async def main() -> None:
        square = np.arange(640_000, dtype=np.float64).reshape(800, 800)
        arrays = [square.T, square[::2, ::3], np.asfortranarray(square), square.astype("M8[s]"), np.array(5)]
        async with pair() as (client, server):
            for array in arrays:
                await client.write(to_serialize(array))
                assert np.array_equal(await server.read(), array)

    run(main())


def test_a_write_waits_for_no_reader() -> None:
    """Both ends write much before either reads, in one task."""

    async def main() -> None:
        async with pair() as (client, server):
            for number in range(20):
                await client.write({"n": number, "data": to_serialize(np.full(3_000_000, number, np.uint8))})
                await server.write(number)
                await server.write("x" * 100_000)
            for number in range(20):
                found = await server.read()
                assert found["n"] == number
                assert found["data"].min() == found["data"].max() == number
                assert await client.read() == number
                assert len(await client.read()) == 100_000

    run(main())


def opened(found: Serialized) -> Any:
    return deserialize(found.header, found.frames)


def test_frames_that_are_not_deserialized_go_on_as_they_are() -> None:
    """As those that a scheduler passes on."""

    async def main() -> None:
        array = np.arange(500_000)
        async with pair(deserialize=False) as (client, server):
            await client.write({"data": to_serialize(array), "x": [to_serialize("abc")]})
            found = await server.read()
            assert isinstance(found["data"], Serialized)
            await server.write(found)
            back = await client.read()
            assert np.array_equal(opened(back["data"]), array)
            assert opened(back["x"][0]) == "abc"

    run(main())


def test_many_comms_at_once() -> None:
    async def main() -> None:
        async with listen(HERE, echo) as listener:

            async def talk(number: int) -> int:
                comm = await connect(listener.contact_address)
                data = np.full(1000 * number, number, np.uint8)
                for _ in range(3):
                    await comm.write({"n": number, "data": to_serialize(data)})
                    found = await comm.read()
                    assert np.array_equal(found["data"], data)
                await comm.close()
                return int(found["n"])

            assert await asyncio.gather(*map(talk, range(40))) == list(range(40))

    run(main())


def test_many_listeners() -> None:
    async def main() -> None:
        listeners = [await listen(HERE, echo) for _ in range(20)]
        assert len({listener.contact_address for listener in listeners}) == 20
        for listener in listeners:
            listener.stop()

    run(main())


def test_a_loop_in_another_thread() -> None:
    """As a Client's: the two ends have loops of their own."""
    address: list[str] = []
    listens, over = threading.Event(), threading.Event()

    async def serve() -> None:
        async with listen(HERE, echo) as listener:
            address.append(listener.contact_address)
            listens.set()
            await asyncio.to_thread(over.wait, 60)

    async def use() -> None:
        comm = await connect(address[0])
        data = np.arange(1_000_000)
        await comm.write(to_serialize(data))
        assert np.array_equal(await comm.read(), data)
        await comm.close()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert listens.wait(60)
        run(use())
    finally:
        over.set()
        thread.join(60)


# ------------------------------------------------------------------ addresses


def test_addresses_of_a_connection() -> None:
    async def main() -> None:
        async with pair() as (client, server):
            assert client.peer_address == server.local_address
            assert client.local_address == server.peer_address
            assert client.same_host
            assert client.local_address in repr(server)
            assert "closed" not in repr(client)
            await client.close()
            assert "closed" in repr(client)

    run(main())


@pytest.mark.parametrize(
    ("given", "host"), [(HERE, "127.0.0.1"), ("rnic://", "0.0.0.0"), ("rnic://0.0.0.0", "0.0.0.0")]
)
def test_addresses_of_a_listener(given: str, host: str) -> None:
    async def main() -> None:
        async with listen(given, echo, default_host="127.0.0.1") as listener:
            assert get_address_host_port(listener.listen_address) == (host, listener.port)
            assert listener.contact_address == f"{HERE}:{listener.port}"
            comm = await connect(listener.contact_address, whatever="is ignored")
            assert comm.peer_address == listener.contact_address
            await comm.close()

    run(main())


def test_addresses_without_a_connection() -> None:
    assert get_address_host("rnic://127.0.0.1:80") == "127.0.0.1"
    assert resolve_address("rnic://localhost:80") == "rnic://127.0.0.1:80"
    assert get_local_address_for("rnic://127.0.0.1:80") == "rnic://127.0.0.1"
    with pytest.raises(ValueError, match="port"):
        get_address_host_port("rnic://127.0.0.1")


def test_the_address_of_a_listener_that_was_not_started() -> None:
    with pytest.raises(ValueError, match="not started"):
        _ = Backend().get_listener("127.0.0.1", echo, True).listen_address


def test_a_port_that_is_in_use() -> None:
    async def main() -> None:
        async with listen(HERE, echo) as listener:
            with pytest.raises(OSError, match="in use"):
                await listen(listener.listen_address, echo)

    run(main())


# ------------------------------------------------------------------ what is refused


def test_encryption_is_refused() -> None:
    """There is none."""

    async def main() -> None:
        with pytest.raises(RuntimeError, match="encryption required"):
            await listen(HERE, echo, require_encryption=True)
        with pytest.raises(RuntimeError, match="encryption required"):
            await connect(f"{HERE}:1", require_encryption=True)

    run(main())


def test_nobody_listens() -> None:
    async def main() -> None:
        with pytest.raises(CommClosedError, match="RefusedError"):
            await Backend().get_connector().connect("127.0.0.1:1")
        with pytest.raises(OSError, match="Timed out trying to connect to rnic://"):
            await connect(f"{HERE}:1", timeout=0.2)

    run(main())
