# SPDX-License-Identifier: Apache-2.0
"""What make runs, how a build shows how far it is, and for which Pythons wheels are built."""

from __future__ import annotations

import os
import pty
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from packages import need

ROOT = Path(__file__).parents[2]
ALL = "tests --ignore=tests/interop --ignore=tests/fuzz --ignore=tests/packaging --ignore=tests/toolchains"
NINJA = "print('  [1/2] Compiling C object a/b.c.o'); print('[2/2] Linking target x.so')"


def parts(args: str) -> tuple[list[str], dict[str, list[str]]]:
    """The parts of `make test ARGS=...`: the options of all, and those of each."""
    need("make", "make")
    plan = subprocess.run(
        ["make", "-n", "test", f"ARGS={args}", "WORKERS="],
        cwd=ROOT,
        env={**os.environ, "MAKEFLAGS": "", "MAKELEVEL": "0"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    (line,) = [line for line in plan.stdout.splitlines() if "tests/parts.py" in line]
    first, *others = [shlex.split(part) for part in line.partition(".venv/parts")[2].split(" -- ")]
    return first, {words[0]: words[1:] for words in others}


def test_make_test_runs_everything_and_some_of_it_by_shared_memory_and_over_iwarp() -> None:
    common, found = parts("")
    assert (common, list(found)) == ([], ["over the wire", "by shared memory", "over iWARP"])
    assert found["over the wire"] == ALL.split()
    assert found["by shared memory"] == ["RNIC_LOCAL=on", "tests/conn", "tests/transport"]
    setting, *files = found["over iWARP"]
    assert setting == "RNIC_TRANSPORT=iwarp"
    assert files
    folders = {ROOT / "tests" / name for name in ("conn", "lab3", "patterns", "transport")}
    assert all((ROOT / file).parent in folders and (ROOT / file).exists() for file in files)


@pytest.mark.parametrize(
    "args", ["tests/cli", "tests/cli -k perf", "tests/api/test_log.py::test_x", "-x tests/cm"]
)
def test_make_test_with_a_path_runs_that_alone(args: str) -> None:
    assert parts(args) == (args.split(), {"chosen tests": []})


def test_make_test_with_an_expression_asks_all_tests() -> None:
    common, found = parts("-k 'pingpong or ud' -x")
    assert common == ["-k", "pingpong or ud", "-x"]
    assert len(found) == 3


FAILS = "import os\n\ndef test_it(): assert os.environ['SPEED'] == 'high'\n"
SKIPS = """
import pytest
from packages import need, need_package
def test_a(): need_package("zsh", "gcc", "fish")
def test_b(): need("no-such-program", "fish")
@pytest.mark.skipif(True, reason="not root, which making network devices needs")
def test_c(): pass
@pytest.mark.parametrize("n", [0, 0, 1])
def test_d(n): pytest.skip(f"the reason {n}")
"""
DPKG = "#!/bin/sh\necho 'ii gcc'; echo 'rc fish'\n"


def summary(folder: Path, *words: str) -> tuple[int, list[str]]:
    """Runs parts of tests of a folder; exit code, and the summary."""
    (folder / "test_fails.py").write_text(FAILS)
    (folder / "test_skips.py").write_text(SKIPS)
    (folder / "dpkg-query").write_text(DPKG)
    (folder / "dpkg-query").chmod(0o755)
    command = [sys.executable, str(ROOT / "tests/parts.py"), str(folder / "parts"), *words]
    with (folder / "said").open("w") as said:  # no pipe, which a child that was left behind would keep open
        done = subprocess.run(
            command,
            cwd=folder,
            env={
                **os.environ,
                "PATH": f"{folder}:{os.environ['PATH']}",
                "PYTHONPATH": str(ROOT / "tests"),
                "PYTEST_ADDOPTS": "",
            },
            stdout=said,
            stderr=said,
            timeout=1200,
            check=False,
        )
    return done.returncode, (folder / "said").read_text().partition("== summary\n")[2].splitlines()


def test_a_part_that_fails_keeps_no_other_from_running(tmp_path: Path) -> None:
    slow, fast = ["--", "slow part", "SPEED=low"], ["--", "fast part", "SPEED=high", "test_fails.py"]
    status, said = summary(tmp_path, "-q", *slow, *fast)
    assert status == 1
    assert said == [
        "slow part: 0 passed, 1 failed",
        "    test_fails.py::test_it",
        "fast part: 1 passed",
        "2 did not run for want of packages: apt-get install fish zsh",
        "1 did not run, as they need root",
        "3 did not run for other reasons, which ARGS=-rs names; 2: the reason 0",
    ]


def test_parts_without_tests_fail_only_if_all_are(tmp_path: Path) -> None:
    both = ["--", "one", "test_skips.py", "--", "other", "SPEED=high", "test_fails.py"]
    status, said = summary(tmp_path, "-k", "test_it", *both)
    assert (status, said) == (0, ["one: 0 passed", "other: 1 passed"])
    assert summary(tmp_path, "-k", "nothing", *both)[0] == 5


def test_a_part_that_cannot_begin_fails(tmp_path: Path) -> None:
    bad, good = ["--", "bad", "--no-such-option"], ["--", "good", "SPEED=high", "test_fails.py"]
    status, said = summary(tmp_path, *bad, *good)
    assert (status, said) == (4, ["bad: 0 passed, it ended with 4", "good: 1 passed"])


HAS = "def test_it(): pass\n"
DIES = """
import os, sys, time
from pathlib import Path
import pytest
@pytest.mark.parametrize("n", range(4))
def test_it(n):
    if n == 1 and {leaves_a_child} and not os.fork():
        Path("child").write_text(str(os.getpid()))
        time.sleep(3600)
    if n == 1:
        os._exit(3)
"""


@pytest.mark.parametrize("leaves_a_child", [False, True])
def test_a_worker_that_dies_fails_one_test_alone(tmp_path: Path, leaves_a_child: bool) -> None:
    (tmp_path / "test_dies.py").write_text(DIES.format(leaves_a_child=leaves_a_child))
    for i in range(6):
        (tmp_path / f"test_{i}.py").write_text(HAS)
    workers = ["-p", "conftest", "--dist", "loadfile", "--no-loadscope-reorder", "-n", "2"]
    try:
        status, said = summary(tmp_path, *workers, "--", "all", "SPEED=high")
    finally:
        if (child := tmp_path / "child").exists():
            os.kill(int(child.read_text()), signal.SIGKILL)
    assert status == 1
    assert said[:2] == ["all: 10 passed, 1 failed", "    test_dies.py::test_it[1]"]


def progress(program: str) -> list[str]:
    return [sys.executable, str(ROOT / "tools/progress.py"), "building x", sys.executable, "-c", program]


def test_progress_without_a_terminal_is_two_lines() -> None:
    done = subprocess.run(progress(NINJA), capture_output=True, text=True, timeout=300, check=True)
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
    done = subprocess.run(progress(broken), capture_output=True, text=True, timeout=300, check=False)
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
        timeout=300,
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
