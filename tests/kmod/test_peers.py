# SPDX-License-Identifier: Apache-2.0
"""The modules' peers, with each other or with a client of the test: no machine is needed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

COURSE = Path(__file__).resolve().parents[2] / "examples/kernel"
PATIENCE = 60.0  # seconds that nothing takes
DEVICES = ["roce_lo", "iwarp_lo"]


@contextmanager
def peer(program: str | Path, *words: object) -> Iterator[subprocess.Popen[str]]:
    """One of them; it is killed at the end."""
    command = [sys.executable, "-u", COURSE / program, *map(str, words)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[str]) -> str:
    """The next line that it prints."""
    assert process.stdout
    return process.stdout.readline().rstrip("\n")


@pytest.mark.parametrize("device", DEVICES)
def test_a_client_that_stays_notices_that_its_server_was_killed(device: str) -> None:
    with peer("peer_listener.py", "--port", 0, "--device", device) as server:
        port = line(server).split()[3]
        words = ("127.0.0.1", "--port", port, "--device", device, "--count", 1, "--hold")
        with peer("peer_client.py", *words) as client:
            assert line(client) == "1 texts answered"
            server.kill()
            out, _ = client.communicate(timeout=PATIENCE)
    assert client.returncode == 1
    assert "the connection has ended: " in out


# peer_listener.py, which has no thread for its first client: so a limit of processes shows itself.
WITHOUT_THREAD = f"""
import runpy, sys
sys.path.insert(0, "{COURSE}")
import serving

def start(client):
    del serving.Client.start
    raise RuntimeError("can't start new thread")

serving.Client.start = start
runpy.run_path("{COURSE}/peer_listener.py", run_name="__main__")
"""


def test_a_server_without_a_thread_for_a_client_serves_the_next_one(tmp_path: Path) -> None:
    (program := tmp_path / "server.py").write_text(WITHOUT_THREAD)
    with peer(program, "--port", 0, "--device", "roce_lo") as server:
        words = ("127.0.0.1", "--port", line(server).split()[3], "--device", "roce_lo", "--count", 1)
        for returncode in (1, 0):
            with peer("peer_client.py", *words) as client:
                client.communicate(timeout=PATIENCE)
            assert client.returncode == returncode
        assert line(server).endswith("not accepted: can't start new thread")


def test_a_file_that_is_longer_than_the_size_stays_as_it_is(tmp_path: Path) -> None:
    """It might be a disk with somebody's data."""
    (file := tmp_path / "disk").write_bytes(data := bytes(range(256)) * 64)
    with peer("peer_memory.py", "--port", 0, "--size", "4K", "--file", file) as server:
        out, _ = server.communicate(timeout=PATIENCE)
    assert file.read_bytes() == data
    assert server.returncode == 1
    assert out.startswith(f"peer_memory.py: --size 4096: {file} has 16384 bytes, and would be cut")


@pytest.mark.parametrize(("size", "length"), [("8K", 8192), ("16K", 16384), (None, 8192)])
def test_a_file_grows_to_the_size(tmp_path: Path, size: str | None, length: int) -> None:
    (file := tmp_path / "disk").write_bytes(data := b"x" * 8192)
    words = ("--size", size) if size else ()
    with peer("peer_memory.py", "--port", 0, "--file", file, *words) as server:
        assert line(server).startswith(f"{length} bytes at port ")
    assert file.read_bytes() == data + bytes(length - len(data))


def test_a_file_that_cannot_have_the_size_is_said(tmp_path: Path) -> None:
    with peer("peer_memory.py", "--port", 0, "--size", f"{2**63}", "--file", tmp_path / "disk") as server:
        out, _ = server.communicate(timeout=PATIENCE)
    assert server.returncode == 1
    assert out.startswith(
        f"peer_memory.py: --size {2**63}: no space for so many bytes in {tmp_path / 'disk'}: "
    )
    assert not (tmp_path / "disk").stat().st_size
