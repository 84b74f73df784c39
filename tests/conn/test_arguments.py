# SPDX-License-Identifier: Apache-2.0
"""Arguments that cannot be are refused at the call; the text names call, argument and cure."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable
from typing import Any

import pytest

import rnic
from conn.peers import HOST, WAIT
from conn.test_announced import ends
from conn.test_ends import pair, together
from rnic.enums import AccessFlags

NO_TAGS: list[tuple[object, str]] = [
    ("x", r"send\(\): a tag is a number, not str"),
    (5.0, r"send\(\): a tag is a number, not float"),
    (rnic.ANY, r"send\(\): tag=rnic\.ANY is not supported: give one tag, a number"),
]


def listen(**options: Any) -> None:
    rnic.listen(HOST, 0, **options).close()


def aio_listen(**options: Any) -> None:
    async def main() -> None:
        rnic.aio.listen(HOST, 0, **options).close()

    asyncio.run(main())


def connect(**options: Any) -> None:
    rnic.connect(HOST, 1, **options).close()


def aio_connect(**options: Any) -> None:
    async def main() -> None:
        await rnic.aio.connect(HOST, 1, **options)

    asyncio.run(main())


LISTENS = pytest.mark.parametrize("listen", [listen, aio_listen])


@pytest.mark.parametrize("call", [listen, aio_listen, connect, aio_connect])
@pytest.mark.parametrize("config", [{"receives": 3}, {}, 7])
def test_what_is_no_config(call: Callable[..., None], config: object) -> None:
    words = r"(connect|listen)\(\): config is an rnic\.Config, such as rnic\.Config\(receives=64\), not "
    with pytest.raises(TypeError, match=words):
        call(config=config)


@LISTENS
def test_what_is_no_admit(listen: Callable[..., None]) -> None:
    with pytest.raises(TypeError, match=r"listen\(\): admit is a function \(data, address\), not str"):
        listen(admit="x")


@LISTENS
def test_what_is_no_backlog(listen: Callable[..., None]) -> None:
    with pytest.raises(TypeError, match=r"listen\(\): backlog is a whole number, not '5'"):
        listen(backlog="5")
    with pytest.raises(rnic.VerbsError, match="backlog is -1; it is 1 at least, or 0 for 1024"):
        listen(backlog=-1)


@pytest.mark.parametrize(
    ("field", "value", "error", "words"),
    [
        ("spin", "x", TypeError, "spin is a number of seconds, not 'x'"),
        ("idle_interval", "1", TypeError, "idle_interval is a number of seconds, not '1'"),
        ("access", "rw", TypeError, r"access is AccessFlags, such as AccessFlags\.REMOTE_READ .* not 'rw'"),
        (
            "access",
            AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_READ,
            ValueError,
            r"access contains LOCAL_WRITE, it can be REMOTE_WRITE\|REMOTE_READ\|REMOTE_ATOMIC or a part",
        ),
    ],
)
def test_what_a_config_cannot_have(field: str, value: object, error: type[Exception], words: str) -> None:
    options: dict[str, Any] = {field: value}
    with pytest.raises(error, match=words):
        rnic.Config(**options)


@pytest.mark.parametrize(("tag", "words"), NO_TAGS)
def test_a_tag_that_send_cannot_have(tag: Any, words: str) -> None:
    async def tasks() -> None:
        async with ends(rnic.Config()) as (a, b):
            for call in a.send, a.post:
                with pytest.raises(TypeError, match=words):
                    await call(b"", tag=tag)
            await a.send(b"next", tag=1)
            assert await b.recv() == b"next"

    with pair() as (a, b):
        with pytest.raises(TypeError, match=words):
            a.send(b"", tag=tag)
        together(lambda: a.send(b"next", WAIT, tag=1), lambda: took(b, b"next"))
    asyncio.run(tasks())


def test_tags_that_recv_into_cannot_have() -> None:
    anything: Any = rnic.ANY
    words = r"recv_into\(\): tag=rnic\.ANY is not supported: use recv\(tag=rnic\.ANY\)"
    name: Any = "x"
    other = r"recv_into\(\): a tag is a number, not str"

    async def tasks() -> None:
        async with ends(rnic.Config()) as (a, _):
            with pytest.raises(TypeError, match=words):
                await a.recv_into(bytearray(8), tag=anything)
            with pytest.raises(TypeError, match=other):
                await a.recv_into(bytearray(8), tag=name)

    with pair() as (a, _):
        with pytest.raises(TypeError, match=words):
            a.recv_into(bytearray(8), tag=anything)
        with pytest.raises(TypeError, match=other):
            a.recv_into(bytearray(8), tag=name)
    asyncio.run(tasks())


def test_where_bytes_arrive_a_text_is_no_buffer() -> None:
    words = r"\(\) needs a buffer that can be written to, such as a bytearray or an array, not str$"
    text: Any = "abc"
    with pair() as (a, b):
        region = b.share(bytearray(8))
        for call in (lambda: a.recv_into(text), lambda: a.read(text, region)):
            with pytest.raises(TypeError, match=words):
                call()
        with pytest.raises(TypeError, match=words), a.batch(WAIT) as batch:
            batch.read(text, region)
        with pytest.raises(TypeError, match=r"write\(\) needs a buffer, .* give text\.encode\(\)"):
            a.write(text, region)


def test_a_connection_that_nobody_has_awaited_says_so() -> None:
    async def main() -> None:
        conn: Any = rnic.aio.connect(HOST, 1)
        with pytest.raises(TypeError, match=r"not a connection yet: write conn = await rnic\.aio\.connect"):
            await conn.send(b"x")
        conn.close()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # that it was never awaited
        asyncio.run(main())


def took(conn: rnic.Connection, message: bytes) -> None:
    assert conn.recv(WAIT) == message
