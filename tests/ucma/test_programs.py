# SPDX-License-Identifier: Apache-2.0
"""Debian's programs of RDMA-CM, unmodified: against themselves, and against rnic's own of the same name."""

from __future__ import annotations

import os
import signal
from itertools import count
from pathlib import Path

import pytest

from packages import need, need_package
from rnic.wire import PortSpace
from ucma.under import HOST, Program, call, compiled, needs_libraries, patient
from waiting import until

pytestmark = needs_libraries

RSPRELOAD = Path("/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so")
RDMACM, PERFTEST = "rdmacm-utils", "perftest"
_ports = count(7600 + os.getpid() % 1000 * 4)


def pair(
    server: str,
    client: str,
    package: str,
    *,
    ps: PortSpace = PortSpace.TCP,
    under: tuple[bool, bool] = (True, True),
) -> tuple[str, str]:
    """A server and a client: what they have said.  PORT in the words is a port."""
    port = next(_ports)
    words = [text.replace("PORT", str(port)).split() for text in (server, client)]
    for (program, *_), installed in zip(words, under, strict=True):
        if installed:
            need(program, package)
    for side, installed in zip(words, under, strict=True):
        if not installed:
            side[0] = side[0].replace("_", "-")  # as rnic's command is called
    with Program(*words[0], under=under[0]) as first:
        first.listens(port, ps)
        is_perftest = package == PERFTEST  # whose client must not come before its server is ready
        said = call(*words[1], under=under[1], again=not is_perftest, anew=is_perftest)
        return first.good(), said


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("server", "client"),
    [
        ("rping -s -a 127.0.0.1 -p PORT -C 10 -v -V", "rping -c -a 127.0.0.1 -p PORT -C 10 -v -V"),
        ("rping -s -a ::1 -p PORT -C 3", "rping -c -a ::1 -p PORT -C 3"),
        ("rping -s -a 127.0.0.1 -p PORT -C 3 -q", "rping -c -a 127.0.0.1 -p PORT -C 3 -q"),
        ("ucmatose -b 127.0.0.1 -p PORT -c 20", "ucmatose -s 127.0.0.1 -p PORT -c 20"),
        ("ucmatose -b 127.0.0.1 -p PORT -m", "ucmatose -s 127.0.0.1 -p PORT -m"),
        ("rdma_server -p PORT", "rdma_client -s 127.0.0.1 -p PORT"),
        ("rdma_xserver -p PORT", "rdma_xclient -s 127.0.0.1 -p PORT"),
        ("rdma_xserver -c x -p PORT", "rdma_xclient -c x -s 127.0.0.1 -p PORT"),
        ("rstream -b 127.0.0.1 -p PORT -S 4096 -C 20", "rstream -s 127.0.0.1 -p PORT -S 4096 -C 20"),
        ("riostream -b 127.0.0.1 -p PORT -S 4096 -C 20", "riostream -s 127.0.0.1 -p PORT -S 4096 -C 20"),
    ],
    ids=lambda words: words.split()[0],
)
def test_programs_of_connections(server: str, client: str) -> None:
    ps = PortSpace.IB if "-c x" in server else PortSpace.TCP  # XRC has a space of its own
    pair(server, client, RDMACM, ps=ps)


def test_udaddy() -> None:
    need("udaddy", RDMACM)
    with Program("udaddy", "-b", HOST) as server:
        server.listens(7174, PortSpace.UDP)
        call("udaddy", "-s", HOST)
        server.good()


def test_mckey() -> None:
    need("mckey", RDMACM)
    with Program("stdbuf", "-oL", "mckey", "-m", "239.7.7.7", "-b", HOST, "-C", 5) as receiver:
        until(lambda: "joined" in receiver.text or receiver.process.poll() is not None, "it has joined")
        with Program("mckey", "-m", "239.7.7.7", "-b", HOST, "-C", 5, "-s") as sender:
            sender.good()
            receiver.good()


def test_cmtime() -> None:
    port = next(_ports)
    need("cmtime", RDMACM)
    with Program("cmtime", "-b", HOST, "-p", port, "-c", 20) as server:  # for ever
        server.listens(port)
        assert "connect" in call("cmtime", "-s", HOST, "-p", port, "-c", 20)


@pytest.mark.parametrize("under", [(True, False), (False, True)], ids=["C serves", "rnic serves"])
@pytest.mark.parametrize(
    ("server", "client"),
    [
        ("rping -s -a 127.0.0.1 -p PORT -C 10", "rping -c -a 127.0.0.1 -p PORT -C 10"),
        ("ucmatose -b 127.0.0.1 -p PORT -c 10", "ucmatose -s 127.0.0.1 -p PORT -c 10"),
        ("rdma_server -p PORT", "rdma_client -s 127.0.0.1 -p PORT"),
    ],
    ids=["rping", "ucmatose", "rdma_server"],
)
def test_programs_of_both_kinds(server: str, client: str, under: tuple[bool, bool]) -> None:
    pair(server, client, RDMACM, under=under)


@pytest.mark.parametrize("tool", ["ib_send_bw", "ib_write_lat", "ib_read_bw"])
def test_perftest_by_rdma_cm(tool: str) -> None:
    words = f"{tool} -R -d roce_lo -n 50 -s 1024 -p PORT"
    patient(lambda: pair(words, f"{words} {HOST}", PERFTEST))


def test_perftest_of_datagrams_by_rdma_cm() -> None:
    words = "ib_send_bw -R -c UD -d roce_lo -n 50 -p PORT"
    patient(lambda: pair(words, f"{words} {HOST}", PERFTEST))


def test_sockets_of_an_ordinary_program(tmp_path: Path) -> None:
    if not RSPRELOAD.exists():
        need_package("librdmacm1")
    program, port = compiled("sockets", tmp_path), next(_ports)
    shell = ["sh", "-c", f'LD_PRELOAD={RSPRELOAD}:$LD_PRELOAD exec "$0" "$@"']
    with Program(*shell, program, port) as server:
        server.listens(port)  # by RDMA-CM
        assert call(*shell, program, port, "hello") == "hello\n"
        server.good()


def test_threads_of_a_channel(tmp_path: Path) -> None:
    with Program(compiled("threads", tmp_path, "-lrdmacm", "-libverbs", "-pthread")) as threads:
        threads.good()


# ---------------------------------------------------------------------- ends


def of_run(folder: Path) -> list[str]:
    return [one.name for one in folder.glob("rnic-run-*")]


def test_peer_of_a_killed_program_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    need("rping", RDMACM)
    port = next(_ports)
    client = ["rping", "-c", "-a", HOST, "-p", port, "-C"]
    with Program("stdbuf", "-oL", "rping", "-s", "-P", "-a", HOST, "-p", port, "-v") as server:
        server.listens(port)
        call(*client, 1)
        with Program(*client, 10**6) as victim:
            until(lambda: "rdma-ping-5:" in server.text, "pings come")
            children = Path(f"/proc/{victim.process.pid}/task/{victim.process.pid}/children").read_text()
            os.kill(int(children.split()[0]), signal.SIGKILL)
            assert victim.wait() == 128 + signal.SIGKILL
        until(lambda: server.text.count("DISCONNECT") == 2, "the server is told")
        call(*client, 1)
    assert not of_run(tmp_path)
