# SPDX-License-Identifier: Apache-2.0
"""How many functions of Python a call runs: few, whatever else waits, and however long a message is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

import rnic
from conn.peers import WAIT
from conn.test_ends import pair

TIMES = 10
LONG = 2 << 20


def calls(what: Callable[[], object]) -> int:
    """Functions of Python that run in a call, this one's first step left out."""
    count = 0

    def profile(_frame: object, event: str, _arg: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(profile)
    try:
        what()
    finally:
        sys.setprofile(None)
    return count - 1


@pytest.mark.parametrize("others", [0, 1, 1000])
def test_messages_with_other_tags_make_no_call_longer(others: int) -> None:
    def say() -> None:
        for _ in range(others):
            b.send(b"other", WAIT, tag=1)
        for _ in range(TIMES + 1):
            b.send(b"this", WAIT, tag=2)

    with pair() as (a, b), ThreadPoolExecutor(1) as pool:
        said = pool.submit(say)
        assert a.recv(WAIT, tag=2) == b"this"
        said.result(WAIT)
        with pytest.raises(TimeoutError):
            a.recv(0, tag=3)  # all have come in
        assert max(calls(lambda: a.recv(WAIT, tag=2)) for _ in range(TIMES)) <= 8
        assert max(calls(lambda: a.send(b"back", WAIT, tag=2)) for _ in range(TIMES)) <= 8
        for _ in range(others):
            assert a.recv(WAIT, tag=1) == b"other"
        for _ in range(TIMES):
            b.recv(WAIT)


@pytest.mark.parametrize("size", [8, 100_000, LONG])
@pytest.mark.parametrize("announce", [None, 1 << 20])
def test_a_long_message_makes_no_call_longer(size: int, announce: int | None) -> None:
    message, buffer = bytes(size), bytearray(size)

    def echo() -> None:
        for _ in range(TIMES):
            b.send(b.recv(WAIT), WAIT)

    with pair(rnic.Config(announce=announce)) as (a, b), ThreadPoolExecutor(1) as pool:
        echoed = pool.submit(echo)
        counts = [
            (calls(lambda: a.send(message, WAIT)), calls(lambda: a.recv_into(buffer, WAIT)))
            for _ in range(TIMES)
        ]
        echoed.result(WAIT)
    for found in zip(*counts, strict=True):
        assert sorted(found)[TIMES // 2] <= 12, counts
