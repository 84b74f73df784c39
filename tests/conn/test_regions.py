# SPDX-License-Identifier: Apache-2.0
"""Shared memory: READ, WRITE and atomics between two processes, checked byte by byte."""

from __future__ import annotations

import random

import pytest

import rnic
from conn.peers import HOST, WAIT, peer
from rnic import AccessFlags
from rnic.endpoint import LostError, Protocol, Region

SIZE = 1 << 20


def sharing(conn: rnic.Connection) -> None:
    """Shares memory, which is then asked for by messages: its bytes, or that it goes."""
    memory = bytearray(random.Random(1).randbytes(SIZE))
    region = conn.share(memory)
    for order in conn:
        if order == b"show":
            conn.send(memory, WAIT)
        elif order == b"withdraw":
            conn.withdraw(region, WAIT)
            conn.send(b"withdrawn", WAIT)


def test_write_read_and_atomics() -> None:
    with peer(sharing) as (port, _), rnic.connect(HOST, port) as conn:
        remote = conn.next_region(WAIT)
        expected = bytearray(random.Random(1).randbytes(SIZE))
        assert remote.length == SIZE
        local = bytearray(SIZE)
        conn.read(local, remote, timeout=WAIT)
        assert local == expected

        new = random.Random(2).randbytes(300_000)
        conn.write(new, remote, 4096, timeout=WAIT)
        expected[4096 : 4096 + len(new)] = new

        before = int.from_bytes(expected[8:16], "little")
        assert conn.fetch_add(remote, 5, 8, timeout=WAIT) == before
        assert conn.compare_swap(remote, before + 5, 77, 8, timeout=WAIT) == before + 5
        assert conn.compare_swap(remote, before, 78, 8, timeout=WAIT) == 77
        expected[8:16] = (77).to_bytes(8, "little")
        conn.send(b"show", WAIT)
        assert conn.recv(WAIT) == expected


def test_a_withdrawn_region_is_refused_here_and_the_connection_lives() -> None:
    with peer(sharing) as (port, _), rnic.connect(HOST, port) as conn:
        remote = conn.next_region(WAIT)
        conn.send(b"withdraw", WAIT)
        assert conn.recv(WAIT) == b"withdrawn"
        assert not conn.regions
        with pytest.raises(ValueError, match="not shared any more"):
            conn.write(b"x", remote, timeout=WAIT)
        conn.send(b"show", WAIT)
        assert len(conn.recv(WAIT)) == SIZE


def test_what_a_region_does_not_grant_is_refused_here() -> None:
    region = Region(1, 4096, 64, 7, AccessFlags.REMOTE_READ)
    with peer(sharing) as (port, _), rnic.connect(HOST, port) as conn:
        with pytest.raises(ValueError, match="not allowed"):
            conn.write(b"x", region)
        with pytest.raises(ValueError, match="beyond region"):
            conn.read(bytearray(65), region)
        with pytest.raises(ValueError, match="multiple of 8"):
            conn.fetch_add(conn.next_region(WAIT), 1, 4)


def test_a_wrong_key_ends_the_connection_and_names_the_status() -> None:
    with peer(pause, clean=False) as (port, _), rnic.connect(HOST, port) as conn:
        remote = conn.next_region(WAIT)
        wrong = Region(remote.id, remote.addr, remote.length, remote.rkey ^ 0x100, remote.access)
        protocol = conn._core.protocol
        assert isinstance(protocol, Protocol)
        protocol._regions[remote.id] = wrong
        with pytest.raises(LostError, match="REM_ACCESS_ERR"):
            conn.write(b"x", wrong, timeout=WAIT)
        with pytest.raises(LostError, match="REM_ACCESS_ERR"):
            conn.send(b"x")


def pause(conn: rnic.Connection) -> None:
    conn.share(bytearray(64))
    conn.recv(WAIT)


def test_read_only_memory_is_shared_for_reading() -> None:
    with peer(only_reads) as (port, _), rnic.connect(HOST, port) as conn:
        remote = conn.next_region(WAIT)
        assert remote.access == AccessFlags.REMOTE_READ
        local = bytearray(6)
        conn.read(local, remote, timeout=WAIT)
        assert local == b"stable"


def only_reads(conn: rnic.Connection) -> None:
    conn.share(b"stable")
    assert list(conn) == []
