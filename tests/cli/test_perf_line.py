# SPDX-License-Identifier: Apache-2.0
"""`rnic perf`: an end survives whatever the other one says, and says what was wrong with it."""

from __future__ import annotations

import errno
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli import perf_ends
from rnic.cli import exchange
from rnic.cli.exchange import PeerAddress
from rnic.cli.params import PRINTED, Failure, printable
from rnic.cli.perf import report, session
from rnic.cli.perf.command import measure, serve
from rnic.cli.perf.line import Gone, Line
from rnic.cli.perf.output import Output

SIZE = 8
PLAN = perf_ends.plan(f"read bw -n 5 -s {SIZE}")  # for which a server runs no loop
ESCAPE = "\x1b[2J"
NONSENSE = "said what makes no sense"
INFINITY, NAN = float("inf"), float("nan")


def said(kind: object, **more: object) -> bytes:
    """A line."""
    return json.dumps({"kind": kind, **more}).encode() + b"\n"


def hello(version: object = session.VERSION, **more: object) -> bytes:
    """A client's first words, with other things in its plan."""
    return said("hello", version=version, plan=PLAN.to_json() | more, device="roce_lo", iwarp=False)


def end(**more: object) -> bytes:
    """Of an end whose queue pair is not there."""
    address = PeerAddress(0, 0x12, 0, bytes(10) + b"\xff\xff" + socket.inet_aton("127.0.0.1"))
    return said("end", **{"qps": [address.encode().decode()], "mtu": 4096, "rd": 1, **more})


def linked(**more: object) -> bytes:
    return said("linked", **{"addr": 4096, "rkey": 1, "device": "roce_lo", "receives": 0, **more})


RUN = hello() + end() + linked()
RESULTS = RUN + said("run", size=SIZE) + said("over")


def served(words: bytes, output: Output) -> str:
    """How a server fails to whom a client says that, and nothing else."""
    with (
        exchange.listen(0, "127.0.0.1") as listener,
        exchange.connect("127.0.0.1", listener.getsockname()[1], 60) as client,
    ):
        client.sendall(words)
        client.shutdown(socket.SHUT_WR)
        with pytest.raises(Failure) as failed:
            serve(listener, {}, session.Where(), output)
    assert failed.value.message.isprintable()
    return failed.value.message


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "is not rnic perf"),
        (b"[" * 100_000 + b"\n", "is not rnic perf"),
        (b"1\n", "is not rnic perf"),
        (b"[]\n", "is not rnic perf"),
        (b"\xff\n", "is not rnic perf"),
        (b" " * (2 << 20), "talks too much"),
        (said("error", text=f"{ESCAPE}boom"), "client: \ufffd[2Jboom"),
        (said("error", text="\ud800"), "client: \ufffd"),
        (said("error"), "client: None"),
        (said(ESCAPE), 'said "\ufffd[2J" where "hello" belongs'),
        (said("hello"), NONSENSE),
        (said("hello", version=session.VERSION, plan=[]), NONSENSE),
        (hello(version=1), f"the client speaks version 1, this is {session.VERSION}: the releases differ"),
        (hello(version=ESCAPE), "the client speaks version \ufffd[2J"),
        (b"", "the client is gone"),
    ],
)
def test_server_that_hears_what_is_no_hello(words: bytes, why: str) -> None:
    assert why in served(words, Output(True, None))


NO_PLANS: dict[str, list[Any]] = {
    "iterations": [INFINITY, -1, "x", None],
    "inline": [-1, 4097, 2**40],
    "duration": [INFINITY, NAN, -1, 86401, []],
    "sizes": [[], [0], [INFINITY], [2**31], "ab", [[2]], [2] * 24, 5],
    "mtu": [1, -1, 8192],
    "qps": [0, 2**40],
    "depth": [0, 2**40],
    "test": ["recv", ESCAPE, None, []],
    "loop": ["fortran"],
    "metric": ["height"],
}
NO_ENDS: dict[str, list[Any]] = {
    "qps": [[1], [], ["x" * 100_000], 5, [None]],
    "rd": [-1, "x", INFINITY],
    "mtu": [5, -1, None],
}
NO_LINKS: dict[str, list[Any]] = {"addr": [2**70, -1, "x", NAN], "rkey": [2**40]}
NO_ROWS: list[Any] = [[], [1], [{}, {}], {"a": 1}, "x", 5, [{}] * 1000]


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in NO_PLANS.items() for value in values]
)
def test_server_that_hears_what_is_no_plan(name: str, value: object) -> None:
    assert NONSENSE in served(hello(**{name: value}), Output(True, None))


@pytest.mark.parametrize(
    ("words", "why"),
    [
        *[(hello() + end(**{name: one}), NONSENSE) for name, values in NO_ENDS.items() for one in values],
        (hello() + said("end"), NONSENSE),
        *[
            (hello() + end() + linked(**{name: one}), NONSENSE)
            for name, values in NO_LINKS.items()
            for one in values
        ],
        (hello() + end() + said("linked"), NONSENSE),
        (RUN + said("run"), NONSENSE),
        (RUN + said("run", size=ESCAPE), "the client runs \ufffd[2J bytes, 8 are next"),
        *[(RESULTS + said("results", rows=value), NONSENSE) for value in NO_ROWS],
        (RESULTS + said("results"), NONSENSE),
        (RESULTS, "the client is gone"),
    ],
)
def test_server_that_hears_nonsense_later(words: bytes, why: str) -> None:
    assert why in served(words, Output(True, None))


@pytest.mark.parametrize("as_json", [True, False])
def test_server_whose_rows_cannot_be_shown(tmp_path: Path, as_json: bool) -> None:
    output = Output(as_json, str(tmp_path / "a.svg"))
    assert NONSENSE in served(RESULTS + said("results", rows=[{}]), output)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "is not rnic perf"),
        (said("error", text=ESCAPE * 1000), "server: \ufffd[2J"),
        (said("hello", machine={}) + end(qps=[1]), NONSENSE),
        (said("hello", machine={}) + end() + linked(addr=2**70), NONSENSE),
        (said("hello", machine=[1]) + end() + linked(), NONSENSE),
        (said("hello") + end() + linked(), NONSENSE),
    ],
)
def test_client_that_hears_nonsense(words: bytes, why: str) -> None:
    with perf_ends.lines() as (far, near):
        far.sendall(words)
        with pytest.raises(Failure) as failed:
            measure(near, PLAN, session.Where(), Output(True, None))
        spoken = far.recv(1 << 20).splitlines()
    assert why in failed.value.message
    assert failed.value.message.isprintable()
    assert len(failed.value.message) < PRINTED + 100
    assert json.loads(spoken[-1])["kind"] == "error"


def test_heading_is_harmless() -> None:
    (record,) = perf_ends.measured("write lat -n 100")
    record["client"]["cpu"] = record["server"]["device"] = record["transport"] = f"{ESCAPE}{'x' * 1000}\n"
    lines = report.heading(record).splitlines()
    assert len(lines) == 6
    assert all(line.isprintable() and len(line) < PRINTED + 20 for line in lines)


def test_printable() -> None:
    assert printable("a\tb\x9bc\u202ed é") == "a\ufffdb\ufffdc\ufffdd é"
    assert printable(["x"]) == "['x']"
    assert printable("x" * 1000) == "x" * PRINTED


# ---------------------------------------------------------------------- waiting


@pytest.fixture
def line() -> Iterator[tuple[Line, socket.socket]]:
    """A client's line, and the server's socket."""
    with perf_ends.lines() as (far, near):
        yield Line(near, "server"), far


class Vanished:
    """A socket whose host is gone: the kernel has asked, and nobody answered."""

    def settimeout(self, seconds: float | None) -> None:
        pass

    def recv(self, _: int) -> bytes:
        raise TimeoutError(errno.ETIMEDOUT, "Connection timed out")


@pytest.mark.parametrize("seconds", [None, 5])
def test_host_that_vanishes_is_gone(line: tuple[Line, socket.socket], seconds: float | None) -> None:
    ours, _ = line
    vanished: Any = Vanished()
    ours.sock = vanished
    with pytest.raises(Gone, match="the server is gone"):
        ours.hear("over", seconds)


def test_one_who_dribbles_is_waited_for_no_longer_than_one_who_is_silent(
    line: tuple[Line, socket.socket],
) -> None:
    ours, theirs = line
    over = threading.Event()

    def dribble() -> None:
        for _ in range(3000):  # a minute
            theirs.send(b" ")
            if over.wait(0.02):
                return
        theirs.send(said("over"))

    thread = threading.Thread(target=dribble)
    thread.start()
    try:
        with pytest.raises(Failure, match=r'the server said no "over" within 0\.2 s'):
            ours.hear("over", 0.2)
    finally:
        over.set()
        thread.join()
