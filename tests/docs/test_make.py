# SPDX-License-Identifier: Apache-2.0
"""What make runs, how a build shows how far it is, and for which Pythons wheels are built."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ALL = "tests --ignore=tests/interop --ignore=tests/fuzz --ignore=tests/packaging --ignore=tests/toolchains"
NINJA = "print('  [1/2] Compiling C object a/b.c.o'); print('[2/2] Linking target x.so')"


def pytest_runs(args: str) -> list[str]:
    """The runs of pytest of `make test ARGS=...`, from `-m pytest` on."""
    make = shutil.which("make")
    if make is None:
        pytest.skip("this machine lacks make")
    plan = subprocess.run(
        [make, "-n", "test", f"ARGS={args}", "WORKERS="],
        cwd=ROOT,
        env={**os.environ, "MAKEFLAGS": "", "MAKELEVEL": "0"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    lines = [" ".join(line.split()) for line in plan.stdout.splitlines() if "-m pytest" in line]
    return [line.replace(".venv/bin/python -m pytest ", "") for line in lines]


def test_make_test_runs_everything_and_some_of_it_by_shared_memory_and_over_iwarp() -> None:
    whole, local, iwarp = (line.strip() for line in pytest_runs(""))
    assert whole == ALL
    assert local == "RNIC_LOCAL=on tests/conn tests/transport"
    setting, *files = iwarp.split()
    assert setting == "RNIC_TRANSPORT=iwarp"
    assert files
    folders = {ROOT / "tests" / name for name in ("conn", "lab3", "patterns", "transport")}
    assert all((ROOT / file).parent in folders and (ROOT / file).exists() for file in files)


@pytest.mark.parametrize(
    "args", ["tests/cli", "tests/cli -k perf", "tests/api/test_log.py::test_x", "-x tests/cm"]
)
def test_make_test_with_a_path_runs_that_alone(args: str) -> None:
    assert pytest_runs(args) == [args]


def test_make_test_with_an_expression_asks_all_tests() -> None:
    first, *others = pytest_runs("-k pingpong -x")
    assert first == f"{ALL} -k pingpong -x"
    for other in others:
        assert other.endswith("-k pingpong -x || [ $? -eq 5 ]"), "it may be that no test of this run is meant"


def progress(program: str) -> list[str]:
    return [sys.executable, str(ROOT / "tools/progress.py"), "building x", sys.executable, "-c", program]


def test_progress_without_a_terminal_is_two_lines() -> None:
    done = subprocess.run(progress(NINJA), capture_output=True, text=True, timeout=60, check=True)
    first, last = done.stdout.splitlines()
    assert first == "building x"
    assert last.startswith("building x: ")
    assert last.endswith(" s")
    assert done.stderr == ""


def test_progress_on_a_terminal_is_one_line_with_the_step() -> None:
    ours, theirs = pty.openpty()
    command = progress(f"{NINJA}; import sys; sys.stdout.flush(); sys.stdin.read()")
    environment = {**os.environ, "COLUMNS": "60"}
    shown = b""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=theirs, env=environment) as process:
        os.close(theirs)
        while b"Linking" not in shown:
            shown += os.read(ours, 4096)
        assert process.stdin
        process.stdin.close()
        while b"\n" not in shown:
            shown += os.read(ours, 4096)
    os.close(ours)
    assert process.returncode == 0
    *drawn, last = shown.decode().replace("\r\n", "").split("\r\x1b[K")
    assert any(line.endswith("s [2/2] Linking target x.so") for line in drawn)
    assert last.endswith(" s")
    assert max(map(len, drawn)) < 60


def test_progress_of_a_failure_shows_the_reason_and_keeps_the_exit_code() -> None:
    broken = "print('[1/2] a'); print('FAILED: b'); print('b.c:1: no such thing'); raise SystemExit(3)"
    done = subprocess.run(progress(broken), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3
    assert "building x: failed after" in done.stdout
    assert done.stderr.splitlines() == ["FAILED: b", "b.c:1: no such thing"]


def wheels(home: Path, path: Path) -> str:
    """Which Pythons tools/wheels.py finds, and which not."""
    code = """
from tools.wheels import interpreters
found, missing = interpreters(False)
print([(one.version, one.program.parent.name) for one in found], missing)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={"HOME": str(home), "PATH": str(path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.strip()


def test_wheels_names_the_pythons_that_are_missing(tmp_path: Path) -> None:
    every = "['3.11', '3.12', '3.13', '3.13t', '3.14', '3.14t']"
    assert wheels(tmp_path, tmp_path) == f"[] {every}"


def fake_python(file: Path, answer: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\necho '{answer}'\n")
    file.chmod(0o755)


def test_wheels_takes_the_first_python_that_can_build(tmp_path: Path) -> None:
    path, pyenv = tmp_path / "bin", tmp_path / ".pyenv/versions/3.12.9/bin"
    fake_python(path / "python3.11", "3.11 True")
    fake_python(path / "python3.12", "3.12 False")  # no headers
    fake_python(pyenv / "python3.12", "3.12 True")
    fake_python(path / "python3.13t", "3.13 True")  # not what its name says
    found = "[('3.11', 'bin'), ('3.12', 'bin')]"
    assert wheels(tmp_path, path) == f"{found} ['3.13', '3.13t', '3.14', '3.14t']"
