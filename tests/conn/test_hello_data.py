# SPDX-License-Identifier: Apache-2.0
"""What two programs say with the hello: a token, an answer, a refusal."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

import pytest

import rnic
import rnic.aio
from conn.peers import HOST, WAIT, speak
from rnic.conn.handshake import Admit
from rnic.rdmacm.sockaddr import SockAddr


def meet(admit: Admit, data: bytes) -> tuple[bytes, bytes]:
    """What each end has heard."""
    heard: list[bytes] = []
    with rnic.listen(HOST, 0, admit=admit) as server:

        def serve() -> None:
            with server.accept(WAIT) as conn:
                heard.append(conn.peer_data)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with rnic.connect(HOST, server.port, data=data) as conn:
                heard.append(conn.peer_data)
        finally:
            if not heard:
                server.close()
            thread.join(WAIT)
    there, here = heard
    return there, here


def test_a_token_goes_with_the_request_and_an_answer_comes_back() -> None:
    seen: list[tuple[bytes, SockAddr]] = []

    def admit(data: bytes, address: SockAddr) -> bytes:
        seen.append((data, address))
        return b"a" * 164

    token = bytes(range(24))
    assert sorted(meet(admit, token)) == sorted((token, b"a" * 164))
    [(data, address)] = seen
    assert data == token
    assert address[0] == HOST


def test_nothing_is_said_where_nobody_says_anything() -> None:
    assert meet(lambda *_: None, b"") == (b"", b"")


def test_an_old_peer_hears_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    speak(1, monkeypatch)
    assert meet(lambda data, _: data + b"answer", b"token") == (b"", b"")


def refuse(data: bytes, _: SockAddr) -> bytes:
    if data != b"right":
        raise PermissionError("this token is not known here")
    return b"welcome"


def too_long(_data: bytes, _: SockAddr) -> bytes:
    return bytes(165)


def broken(_data: bytes, _: SockAddr) -> bytes:
    raise KeyError("a mistake")


def test_who_is_not_admitted_hears_why_and_the_next_one_is_served() -> None:
    heard: list[bytes] = []

    async def main() -> None:
        async with rnic.aio.listen(HOST, 0, admit=refuse) as server:
            accepting = asyncio.create_task(server.accept())
            with pytest.raises(rnic.endpoint.RefusedError, match="this token is not known here"):
                await rnic.aio.connect(HOST, server.port, data=b"wrong")
            conn = await rnic.aio.connect(HOST, server.port, data=b"right")
            there = await accepting
            heard.extend((conn.peer_data, there.peer_data))
            await asyncio.gather(conn.close(), there.close())

    asyncio.run(main())
    assert heard == [b"welcome", b"right"]


@pytest.mark.parametrize(
    ("admit", "words"), [(too_long, "165 bytes, a reply has room for 164"), (broken, "a mistake")]
)
def test_an_admit_that_fails_refuses_that_one_and_says_so(
    admit: Callable[[bytes, SockAddr], bytes], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with rnic.aio.listen(HOST, 0, admit=admit) as server:
            accepting = asyncio.create_task(server.accept())
            with pytest.raises(rnic.endpoint.RefusedError, match="could not decide about the request"):
                await rnic.aio.connect(HOST, server.port)
            accepting.cancel()

    with caplog.at_level(logging.ERROR, logger="rnic"):
        asyncio.run(main())
    assert words in caplog.text


def test_data_that_has_no_room_is_refused_at_the_call() -> None:
    with pytest.raises(ValueError, match="data has 25 bytes, there is room for 24"):
        rnic.connect(HOST, 1, data=bytes(25))


@pytest.mark.parametrize("said", ["token", 7, None])
def test_data_that_is_no_bytes_is_named(said: object) -> None:
    with pytest.raises(
        TypeError, match=r"connect\(data=...\) needs a buffer.* not (str: give text|int|NoneType)"
    ):
        rnic.connect(HOST, 1, data=said)  # type: ignore[arg-type]
