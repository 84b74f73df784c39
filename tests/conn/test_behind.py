# SPDX-License-Identifier: Apache-2.0
"""Exceptions from outside behind calls of the machine, where the profiler of test_interrupts.py sees none."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import pytest

import rnic
from conn.frames import announce, frame, share
from conn.peers import HOST, WAIT, settle
from conn.test_ends import pair
from conn.test_hostile import dialled
from conn.test_regions import QUICK
from forked import FORKS
from rnic.conn.core import Core
from rnic.endpoint import Config, ProtocolError


class OutsideError(ValueError):
    """What a signal's handler raises; a ValueError, which calls also raise themselves."""


class Behind:
    """The machine of a connection; an exception comes behind its nth call, once."""

    def __init__(self, machine: Any, left: int, name: str = "") -> None:
        vars(self).update(machine=machine, left=left, only=name)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.machine, name)
        if not callable(found) or self.only not in ("", name):
            return found

        def call(*args: Any, **named: Any) -> Any:
            result = found(*args, **named)
            vars(self)["left"] -= 1
            if self.left == 0:
                raise OutsideError(name)
            return result

        return call

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.machine, name, value)


@contextmanager
def interrupted(conn: rnic.Connection, left: int, name: str = "") -> Iterator[Behind]:
    core = conn._core
    machine = core.machine
    behind = Behind(machine, left, name)
    places: list[Any] = [core, core.sharing, core.messages]
    for place in places:
        setattr(place, "machine" if place is core else "_machine", behind)
    try:
        with suppress(OutsideError):
            yield behind
    finally:
        for place in places:
            setattr(place, "machine" if place is core else "_machine", machine)


def calls(a: rnic.Connection, b: rnic.Connection) -> dict[str, Callable[[], object]]:
    """A call of each kind, for which all is ready at the other end."""
    theirs, buffer = bytearray(4096), bytearray(4096)
    b.share(theirs)
    region = a.next_region(WAIT)
    for _ in range(3):
        b.send(b"theirs", WAIT)
    mine = a.share(bytearray(64))

    def batch() -> None:
        with a.batch(WAIT) as many:
            many.read(buffer, region)
            many.fetch_add(region, 1)

    return {
        "send": lambda: a.send(b"mine", WAIT),
        "recv": lambda: a.recv(WAIT),
        "recv_into": lambda: a.recv_into(buffer, WAIT),
        "read": lambda: a.read(buffer, region, timeout=WAIT),
        "write": lambda: a.write(buffer, region, timeout=WAIT),
        "fetch_add": lambda: a.fetch_add(region, 1, timeout=WAIT),
        "batch": batch,
        "share": lambda: a.share(bytearray(64)),
        "withdraw": lambda: a.withdraw(mine, 0),  # b confirms it later
        "revoke": lambda: a.revoke(mine),
    }


KINDS = ["send", "recv", "recv_into", "read", "write", "fetch_add", "batch", "share", "withdraw", "revoke"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_connection_goes_on(kind: str) -> None:
    for nth in range(1, 12):
        with pair(QUICK) as (a, b):
            settle(a, b)
            call = calls(a, b)[kind]
            with suppress(TimeoutError):
                b.recv(0)
            with interrupted(a, nth) as behind, suppress(TimeoutError):
                call()
            a.send(b"last", WAIT)
            while b.recv(WAIT) != b"last":
                pass
            b.send(b"last", WAIT)
            while a.recv(WAIT) != b"last":
                pass
            for region in b.regions.values():  # each can be used
                b.read(bytearray(8), region, timeout=WAIT)
            if behind.left > 0:
                return
    raise AssertionError(f"{kind} calls the machine without end")


def test_a_message_is_sent_once() -> None:
    with pair(QUICK) as (a, b):
        settle(a, b)
        with interrupted(a, 1, "send"):
            a.send(b"once", WAIT)
        a.send(b"last", WAIT)
        assert [b.recv(WAIT), b.recv(WAIT)] == [b"once", b"last"]


def test_no_region_gets_lost() -> None:
    with pair(QUICK) as (a, b):
        settle(a, b)
        a.share(bytearray(64))
        with interrupted(b, 1, "regions"):
            b.next_region(WAIT)
        assert b.next_region(WAIT).length == 64


# ---------------------------------------------------------------- calls that must not turn in circles


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch, most: int) -> Iterator[None]:
    """So many pumps at most."""
    pumps, pump = 0, Core.pump

    def count(self: Core, now: float) -> None:
        nonlocal pumps
        pumps += 1
        pump(self, now)

    monkeypatch.setattr(Core, "pump", count)
    yield
    assert pumps <= most


def test_a_message_that_cannot_be_read_keeps_no_send_awake(monkeypatch: pytest.MonkeyPatch) -> None:
    big = Config(max_message=1 << 62, receives=4, receive_size=4096, send_size=4096, announce=None)
    hello = Config(receives=8, receive_size=2048).hello().emit()
    with rnic.listen(HOST, 0, config=big) as server, ThreadPoolExecutor(1) as pool:
        accepting = pool.submit(server.accept, WAIT)
        with dialled(server, hello) as peer:
            peer.post(announce(0, 1 << 50))
            conn = accepting.result(WAIT)
            with counted(monkeypatch, 100), pytest.raises(TimeoutError):
                conn.send(bytes(200_000), 0.5)
            with pytest.raises(MemoryError):
                conn.recv(WAIT)
            conn.abort()


def _breaks_a_rule(port: int, pipe: Any) -> None:
    class Server:
        pass

    server: Any = Server()
    server.port = port
    with dialled(server, QUICK.hello().emit()) as peer:
        peer.post(share(1, addr=4096, length=64, access=4))
        pipe.recv()
        peer.post(frame(99))
        pipe.send("said")
        os.kill(os.getpid(), signal.SIGSTOP)


def test_a_peer_that_breaks_a_rule_and_stops_ends_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = FORKS.Pipe()
    with rnic.listen(HOST, 0, config=QUICK) as server:
        process = FORKS.Process(target=_breaks_a_rule, args=(server.port, theirs))
        process.start()
        try:
            with server.accept(WAIT) as conn:
                region = conn.next_region(WAIT)
                ours.send("go")
                ours.recv()
                with counted(monkeypatch, 2000), pytest.raises(ProtocolError):
                    conn.read(bytearray(64), region, timeout=WAIT)
                conn.abort()
        finally:
            process.kill()
            process.join()


def test_a_call_in_a_forked_child_is_refused() -> None:
    with pair(QUICK) as (a, b):
        settle(a, b)
        ours, theirs = os.pipe()
        if (pid := os.fork()) == 0:
            try:
                a.recv(WAIT)
            except rnic.VerbsError as error:
                os.write(theirs, str(error).encode())
            finally:
                os._exit(0)
        os.close(theirs)
        with os.fdopen(ours) as words:
            assert "a device does not survive fork()" in words.read()
        os.waitpid(pid, 0)
        settle(a, b)


def test_no_room_at_all_is_too_little() -> None:
    with pair(QUICK) as (a, b):
        a.send(b"x", WAIT)
        with pytest.raises(ValueError, match="the next message has 1 bytes and the buffer 0"):
            b.recv_into(bytearray(), WAIT)
        assert b.recv(WAIT) == b"x"
        a.send(b"", WAIT)
        assert b.recv_into(bytearray(), WAIT) == 0
