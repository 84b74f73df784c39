# SPDX-License-Identifier: Apache-2.0
"""Messages between two processes, over the synchronous face."""

from __future__ import annotations

import random

import pytest

import rnic
from conn.peers import HOST, SMALL, WAIT, peer
from rnic.endpoint import Config

SIZES = [0, 1, 7, 8, 2040, 2048, 16384, 16385, 100_000, 3 << 20]


def echo(conn: rnic.Connection) -> None:
    for message in conn:
        conn.send(message, WAIT)


def test_hello_there_and_back() -> None:
    with peer(echo) as (port, _):
        with rnic.connect(HOST, port) as conn:
            conn.send(b"hello", WAIT)
            assert conn.recv(WAIT) == b"hello"
        assert conn.closed


@pytest.mark.parametrize("config", [None, SMALL], ids=["default", "small"])
def test_every_size_comes_back(config: Config | None) -> None:
    with peer(echo, config=SMALL) as (port, _), rnic.connect(HOST, port, config=config) as conn:
        for size in SIZES:
            message = random.Random(size).randbytes(size)
            conn.send(message, WAIT)
            assert conn.recv(WAIT) == message
