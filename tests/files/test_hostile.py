# SPDX-License-Identifier: Apache-2.0
"""A peer that lies gets an error with the reason, and the server goes on."""

from __future__ import annotations

import pytest

import rnic
import rnic.aio
from files.ends import ALL, HOST, Place, content, run
from rnic._disk import Found
from rnic.files.options import CHUNK, SLOTS, Options
from rnic.files.packs import pack
from rnic.files.records import (
    INLINE,
    Alive,
    Data,
    Done,
    End,
    Finish,
    Finished,
    Folder,
    Free,
    Go,
    Hello,
    Op,
    Open,
    Opened,
    Pack,
    Record,
    Resume,
    Stored,
    Would,
    encode,
)
from rnic.files.state import Sum
from rnic.files.talk import CONFIG, GREETING, Talk

NOTHING = bytes(16)


def small(number: int = 0, path: bytes = b"f", content: bytes = b"x", mtime: int = 0) -> Pack:
    folder, _, name = path.rpartition(b"/") if path[:1] != b"/" else (b"", b"", path)
    return pack(number, folder, [name], [Found(len(content), 0o644, mtime)], content)


LIES: list[tuple[list[Record], str]] = [
    ([small(1)], "entry 1"),
    ([small(), small()], "entry 0"),
    ([small()._replace(contents=b"xx")], "tells of 1 bytes, 2 have come"),
    ([small()._replace(contents=b"")], "tells of 1 bytes, 0 have come"),
    ([small()._replace(entries=2)], "of 2 files with a table of 19 bytes"),
    ([small()._replace(table=small().table + b"f")], "tells of 1 bytes"),
    ([small()._replace(entries=0)], "tells of 0 bytes"),
    ([small(content=bytes(INLINE + 1))], "a file of 65537 bytes in a Pack"),
    ([small(path=b"x" * 5000)], "a path of 5000"),
    ([small(path=b"x" * 5000 + b"/f")], "a path of 5002"),
    ([small(mtime=1 << 62)], "time or size"),
    ([Would(0, 0, 0, 0, b"f")], "dry run"),
    ([Data(0, 0, 1, 0, NOTHING)], "not open"),
    ([Open(0, 0, 0, 10, 0, b"f"), Data(0, 0, 11, 0, NOTHING)], "11 bytes at 0"),
    ([Open(0, 0, 0, 10, 0, b"f"), Data(0, 0, 1, SLOTS, NOTHING)], "slot"),
    ([Open(0, 0, 0, 10 * CHUNK, 0, b"f"), Data(0, 0, CHUNK + 1, 0, NOTHING)], "in a slot of"),
    ([Open(0, 0, 0, 10, 0, b"f"), Resume(0, 0)], "not offered"),
    ([End(0, NOTHING)], "not open"),
    ([Finish(1)], "after 1 entries"),
    ([Open(0, 0, 0, 10, 0, b"f"), Finish(1)], "after 1 entries"),
    ([Free(0)], "not its to send"),
    ([Go(NOTHING)], "not its to send"),
    ([Open(n, 0, 0, 10, 0, b"f%d" % n) for n in range(4 * SLOTS + 1)], "files at a time"),
]


@pytest.mark.parametrize(("lies", "why"), LIES, ids=[why for _, why in LIES])
def test_a_sender_that_lies(place: Place, lies: list[Record], why: str) -> None:
    async def main() -> None:
        async with place.server():
            with pytest.raises(rnic.EndpointError, match=why):
                async with place.liar() as talk:
                    await talk.send(*lies)
                    while True:
                        await talk.hear()
            (place.own / "f").write_text("after")
            await place.put("f")

    run(main())
    assert content(place.served) == {"f": b"after"}


@pytest.mark.parametrize("message", [b"\xff" * 20, b"\1", b"\5\0\0\0\0", b"\x12\xff\xff\xff\xff"])
def test_bytes_that_are_no_records(place: Place, message: bytes) -> None:
    async def main() -> None:
        async with place.server():
            with pytest.raises(rnic.EndpointError, match="the peer sent a"):
                async with place.liar() as talk:
                    await talk.conn.send(message)
                    while True:
                        await talk.hear()

    run(main())


@pytest.mark.parametrize("path", [b"../f", b"a/../../f", b"/f", b"", b"a\0b", b"up/f"])
def test_a_sender_that_leads_out(place: Place, path: bytes) -> None:
    (place.served / "up").symlink_to("..")

    async def main() -> None:
        async with place.server(), place.liar() as talk:
            await talk.send(small(0, path), Open(1, 0, 0, 10, 0, path), Folder(2, 0o700, 0, 0, path + b"/d"))
            await talk.send(End(1, Sum().digest()), Finish(3))
            done: dict[int, int] = {}
            while True:
                for one in await talk.hear():
                    if isinstance(one, Finished):
                        assert done == {0: 2, 1: 2, 2: 2}
                        return
                    assert isinstance(one, Done)
                    done[one.id] = one.status

    run(main())
    assert list(content(place.served)) == ["up"]
    assert not content(place.own)


def test_bytes_that_were_damaged(place: Place) -> None:
    async def main() -> None:
        async with place.server(), place.liar() as talk:
            await talk.send(small()._replace(digest=NOTHING))
            await talk.send(Open(1, 0, 0, 10, 0, b"g"), Data(1, 0, 10, 0, NOTHING), End(1, NOTHING))
            await talk.send(Open(2, 0, 0, 10, 0, b"h"), End(2, NOTHING), Finish(3))
            done: list[Done] = []
            while len(done) < 3:
                done += [one for one in await talk.hear() if isinstance(one, Done)]
            assert {one.status for one in done} == {2}
            assert all(b"digest" in one.text for one in done)

    run(main())
    assert not content(place.served)


def test_a_silent_client_is_given_up(place: Place) -> None:
    async def main() -> None:
        async with place.server(quiet=0.05):
            with pytest.raises(rnic.EndpointError, match="not asked for anything"):
                async with await rnic.aio.connect(HOST, place.port, config=CONFIG, data=GREETING) as conn:
                    await conn.recv()
                    await conn.recv()

    run(main())


@pytest.mark.parametrize("op", Op)
@pytest.mark.parametrize("useless", [encode(Alive()), b""])
def test_a_client_that_only_gives_signs_of_life_is_given_up(place: Place, op: Op, useless: bytes) -> None:
    (place.served / "large").write_bytes(bytes(CHUNK))

    async def main() -> None:
        async with place.server(stall=0):
            with pytest.raises(rnic.EndpointError, match="no progress for 0 s"):
                async with place.liar(op, b"large" if op == Op.GET else b"") as talk:
                    if op == Op.GET:
                        memory = talk.conn.alloc(SLOTS * CHUNK)
                        await talk.conn.share(memory.buf, rnic.AccessFlags.REMOTE_WRITE)
                    while True:
                        await talk.conn.send(useless)
            (place.own / "f").write_text("after")
            await place.put("f")

    run(main())
    assert place.warned == [f"{HOST}: the copy has made no progress for 0 s"]
    assert content(place.served)["f"] == b"after"


def test_a_stranger_is_told_what_this_is(place: Place) -> None:
    async def main() -> None:
        async with place.server():
            with pytest.raises(rnic.RefusedError, match="rnic cp"):
                await rnic.aio.connect(HOST, place.port)

    run(main())


@pytest.mark.parametrize(
    ("lie", "why"),
    [
        (Free(0), "slot 0"),
        (Done(5, 0, b""), "file 5"),
        (Stored(5, 1), "file 5"),
        (Finished(), "before everything"),
        (Opened(0, 0, 0, NOTHING), "not asked"),
        (Hello(1, 3, NOTHING), "not its to send"),
    ],
)
def test_a_receiver_that_lies(place: Place, lie: Record, why: str) -> None:
    (place.served / "f").write_text("f")

    async def main() -> None:
        async with place.server():
            with pytest.raises(rnic.EndpointError, match=why):
                async with place.liar(Op.GET, b"f") as talk:
                    memory = talk.conn.alloc(SLOTS * CHUNK)
                    await talk.send(lie)
                    await talk.conn.share(memory.buf)
                    while True:
                        await talk.hear()

    run(main())


def test_a_receiver_with_too_little_memory(place: Place) -> None:
    (place.served / "large").write_bytes(bytes(CHUNK))

    async def main() -> None:
        async with place.server():
            with pytest.raises(rnic.EndpointError, match="are needed"):
                async with place.liar(Op.GET, b"large") as talk:
                    await talk.conn.share(bytearray(100))
                    while True:
                        await talk.hear()

    run(main())


def test_a_server_that_sends_what_nobody_asked_for(place: Place) -> None:
    """As scp once did: files of other names, and folders."""

    async def serve(conn: rnic.aio.Connection) -> None:
        talk = Talk(conn)
        await talk.send(Hello(1, 3, NOTHING))
        await talk.hear()
        await talk.send(Go(NOTHING))
        await conn.send(encode(small(0, b".bashrc"), small(1, b"f"), Alive(), Finish(2)))
        async for _ in conn:
            pass

    async def folder(conn: rnic.aio.Connection) -> None:
        talk = Talk(conn)
        await talk.send(Hello(1, 3, NOTHING))
        await talk.hear()
        await talk.send(Go(NOTHING), small(0, b"f/x"))
        async for _ in conn:
            pass

    async def main() -> None:
        import asyncio
        import contextlib

        for agent in (serve, folder):
            async with rnic.aio.listen(HOST, 0, config=CONFIG) as listener:
                place.port = listener.port

                async def attend(conn: rnic.aio.Connection, agent: object = agent) -> None:
                    with contextlib.suppress(rnic.EndpointError):
                        await agent(conn)  # type: ignore[operator]

                task = asyncio.create_task(listener.serve(attend))
                if agent is serve:
                    report = await place.get("f", options=Options())
                    assert [path for path, _ in report.failures] == [".bashrc"]
                else:
                    with pytest.raises(ConnectionError, match="not asked for"):
                        await place.get("f", options=Options())
                listener.close()
                await task

    run(main())
    assert content(place.own) == {"f": b"x"}
    assert ALL.recursive
