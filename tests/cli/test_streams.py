# SPDX-License-Identifier: Apache-2.0
"""Commands whose stdin, stdout or stderr is closed, or full: never a traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cli.commands import SECONDS, Start
from rnic.cli.main import cli

WAYS = ["<&-", ">&-", "2>&-", ">/dev/full", "2>/dev/full"]
WORK = [
    "devices",
    "info -v",
    "doctor",
    "config --cflags --libs",
    "completion bash",
    "run sh -c 'exit 1'",
    "run ''",
    "run --check true",
    "perf write lat --local -n 100 -d roce_lo",
    "demo --size 64K -d roce_lo",
    "pingpong rc 127.0.0.1 -p 1",
    "rping -c -a 127.0.0.1 -p 1",
    "ucmatose -s 127.0.0.1 -p 1",
    "udaddy --help",
    "mckey --help",
    "rdma-server --help",
    "rdma-client -s 127.0.0.1 -p 1",
    "kv get 127.0.0.1 key -p 1",
    "kv put 127.0.0.1 key - -p 1",
    "cp nothing 127.0.0.1: -p 1",
    "serve nothing",
    "vm list --json",
    "vm log a/b",
    "vm exec -n a/b ''",
    "vm run -n a/b true",
    "kmod list",
    "lab3 skeleton",
]


def shell(words: str, way: str, folder: Path) -> subprocess.CompletedProcess[str]:
    line = f"exec {sys.executable} -m rnic {words} {way}"
    command = ["sh", "-c", line]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, cwd=folder, check=False)


def test_all_commands_are_tried() -> None:
    assert {line.split()[0] for line in WORK} == {
        name for name, one in cli.commands.items() if not one.hidden
    }


@pytest.mark.one_in(3)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("words", WORK)
def test_there_is_no_traceback(words: str, way: str, tmp_path: Path) -> None:
    done = shell(words, way, tmp_path)
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert done.returncode in (0, 1, 2, 125, 126, 127)
    if way == ">/dev/full":
        assert done.returncode, "nothing could be written, and that was not said"


def test_a_wrong_command_line_has_its_exit_code_where_it_cannot_be_said(tmp_path: Path) -> None:
    assert shell("bogus", "2>/dev/full", tmp_path).returncode == 2


def test_what_cannot_be_read_is_not_put(rnic: Start, tmp_path: Path) -> None:
    server = rnic("kv", "serve", "-p", 0)
    port = server.listening()
    assert rnic("kv", "put", "127.0.0.1", "key", "old", "-p", port).wait().status == 0
    assert shell(f"kv put 127.0.0.1 key - -p {port}", "<&-", tmp_path).returncode == 1
    assert rnic("kv", "get", "127.0.0.1", "key", "-p", port).wait().out == "old\n"


def test_files_are_copied_without_a_word(rnic: Start, tmp_path: Path) -> None:
    (tmp_path / "served").mkdir()
    (tmp_path / "file").write_text("contents")
    server = rnic("serve", tmp_path / "served", "-p", 0)
    port = server.listening()
    for way in (">&-", "2>&-", "<&- >&- 2>&-"):
        done = shell(f"cp -p {port} file 127.0.0.1:'{way}'", way, tmp_path)
        assert done.returncode == 0
        assert (tmp_path / "served" / way).read_text() == "contents"
