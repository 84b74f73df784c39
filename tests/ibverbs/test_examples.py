# SPDX-License-Identifier: Apache-2.0
"""The examples in C, compiled with rdma-core's headers and with rnic's: at both ends, and against Python."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest

from ibverbs.programs import DEVICE, OURS, RDMACM, free_port, listens, needs_what_it_was_linked_with
from ibverbs.programs import compiled as make_program
from rnic.rdmacm import ConnParam, create_id
from ucma.under import HOST, Program, call, needs_libraries
from waiting import until

EXAMPLES = Path(__file__).parents[2] / "examples"
SOURCES = EXAMPLES / "c"
WITHOUT_CM = ("rc_example", "multicast_example")
SHARED = {"common.c", "cm.c"}
STRICT = ["-std=c11", "-Wextra"]
HEADERS = {
    "rdma-core": ["-libverbs", "-lrdmacm"],
    "rnic": [*OURS, RDMACM],
}
BOTH_KINDS = pytest.mark.parametrize("kinds", ["C C", "C Python", "Python C"])
GROUPS = count(os.getpid() % 200 * 256)

pytestmark = [pytest.mark.own_way, needs_libraries]
Compiled = Callable[[str], Path]


@pytest.fixture(scope="module", params=HEADERS)
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    """Compiles an example, once."""
    folder = tmp_path_factory.mktemp(request.param)

    def make(name: str) -> Path:
        program = folder / name
        parts = [f"{name}.c", "common.c", *([] if name in WITHOUT_CM else ["cm.c"])]
        if not program.exists():
            make_program(program, *STRICT, *[SOURCES / part for part in parts], *HEADERS[request.param])
        return program

    return make


def end(kind: str, name: str, compiled: Compiled, *options: object) -> Program:
    """An end in C or in Python."""
    if kind == "C":
        return Program(compiled(name), *options)
    return Program("env", "PYTHONUNBUFFERED=1", sys.executable, EXAMPLES / f"{name}.py", *options)


@pytest.mark.one_in(5)
@BOTH_KINDS
def test_rc(kinds: str, compiled: Compiled) -> None:
    first, second = kinds.split()
    port = free_port()
    options = ["-d", DEVICE, "-p", port]
    with end(first, "rc_example", compiled, *options) as server:
        until(lambda: listens(port) or server.process.poll() is not None, "the server listens")
        with end(second, "rc_example", compiled, *options, HOST) as client:
            said = client.good()
        assert "Contents of server buffer: 'RDMA write operation'" in server.good()
    assert "Message is: 'SEND operation      '" in said
    assert "Contents of server's buffer: 'RDMA read operation '" in said


@pytest.mark.one_in(2)
def test_rc_whose_peer_goes_away(compiled: Compiled) -> None:
    with socket.create_server((HOST, 0)) as listener:
        port = listener.getsockname()[1]
        with end("C", "rc_example", compiled, "-p", port, HOST) as client:
            with listener.accept()[0] as line:
                line.shutdown(socket.SHUT_WR)  # close() alone may reset the connection
                assert client.wait() == 1
            assert "has closed the TCP connection" in client.text


@pytest.mark.one_in(2)
def test_rc_without_such_a_device(compiled: Compiled) -> None:
    with socket.create_server((HOST, 0)) as listener:
        port = listener.getsockname()[1]
        with end("C", "rc_example", compiled, "-d", "mlx9_0", "-p", port, HOST) as client:
            assert (client.wait(), client.text) == (1, "mlx9_0: no such device\n")


@pytest.fixture
def port() -> int:
    """A port of RDMA-CM that nobody has."""
    with create_id() as probe:
        probe.bind_addr((HOST, 0))
        return probe.get_src_port()


@pytest.mark.one_in(2)
def test_rdma_cm(compiled: Compiled, port: int) -> None:
    with Program(compiled("cm_server"), HOST, port) as server:
        server.listens(port)
        assert call(compiled("cm_client"), HOST, port) == "client: read 'written by the client'\n"
        assert server.good().splitlines()[1:] == [
            "server: received 'hello'",
            "server: received 'done'",
            "server: in its memory is 'written by the client'",
        ]


@pytest.mark.one_in(2)
def test_rdma_cm_without_a_server(compiled: Compiled, port: int) -> None:
    with Program(compiled("cm_client"), HOST, port) as client:
        assert client.wait() == 1
        assert "RDMA_CM_EVENT_REJECTED (8) came instead of RDMA_CM_EVENT_ESTABLISHED" in client.text


@pytest.mark.one_in(2)
def test_rdma_cm_with_a_server_that_says_too_little(compiled: Compiled) -> None:
    with create_id() as listener, ExitStack() as stack:
        listener.bind_addr((HOST, 0))
        listener.listen()
        client = stack.enter_context(Program(compiled("cm_client"), HOST, listener.get_src_port()))
        request = stack.enter_context(listener.get_request())
        request.create_qp()
        request.accept(ConnParam(private_data=bytes(16)))
        assert client.wait() == 1
        assert "the server's region is too small" in client.text


@pytest.mark.one_in(5)
@BOTH_KINDS
def test_multicast(kinds: str, compiled: Compiled) -> None:
    number = next(GROUPS)
    options = ["-m", f"239.9.{number // 256}.{number % 256}", "-b", HOST]
    first, second = kinds.split()
    pause = ["-p", 0] if second == "C" else ["--pause", 0]
    with end(first, "multicast_example", compiled, *options) as member:
        until(lambda: "joined" in member.text or member.process.poll() is not None, "the member has joined")
        with end(second, "multicast_example", compiled, *options, "-s", *pause) as sender:
            assert "10 messages sent" in sender.good()
        lines = member.good().splitlines()[1:]
    assert len(lines) == 10
    assert all(line.startswith("100 bytes from queue pair ") and line.endswith("'to all'") for line in lines)


@pytest.mark.parametrize("name", ["rc_example", "cm_server", "cm_client", "multicast_example", "ring_writer"])
def test_usage(name: str, compiled: Compiled) -> None:
    words: list[str | Path] = [compiled(name), "-x", "too", "many", "words"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "usage: " in done.stderr


def test_make(tmp_path: Path) -> None:
    """The Makefile, where neither pkg-config nor rnic help: with what is said on its command line."""
    if not shutil.which("make") or not shutil.which("cc"):
        pytest.skip("needs make and a C compiler")
    folder = shutil.copytree(SOURCES, tmp_path / "c")
    libraries = f"RDMA={' '.join(HEADERS['rnic'])}"
    make: list[str | Path] = ["make", "-s", "-C", folder, "CFLAGS=-Werror -O0", libraries]
    done = subprocess.run(make, capture_output=True, text=True, check=False)
    needs_what_it_was_linked_with(done.stderr)
    assert (done.returncode, done.stderr) == (0, "")
    programs = {file.stem for file in folder.glob("*.c") if file.name not in SHARED}
    assert {file.name for file in folder.iterdir() if os.access(file, os.X_OK)} == programs
