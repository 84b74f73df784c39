# SPDX-License-Identifier: Apache-2.0
"""`rnic run`: exit codes, signals, what it leaves, what it says of a program."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cli.commands import Start
from packages import need_package
from rnic.programs.surroundings import HEAP
from ucma.under import needs_libraries
from waiting import until

pytestmark = needs_libraries


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where folders of `rnic run` are made."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def test_a_closed_stdout_is_no_error() -> None:
    words = ["sh", "-c", f"exec {sys.executable} -m rnic run sh -c 'exit 5' >&-"]
    ended = subprocess.run(words, stderr=subprocess.PIPE, text=True, check=False, timeout=300)
    assert (ended.returncode, ended.stderr) == (5, "")


@pytest.mark.parametrize(
    ("script", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -KILL $$", 137), ("kill -TERM $$", 143)]
)
def test_exit_code_is_the_programs(rnic: Start, runtime: Path, script: str, status: int) -> None:
    assert rnic("run", "sh", "-c", script).wait().status == status
    assert not list(runtime.iterdir())


@pytest.mark.parametrize(
    ("options", "script", "status"), [("", "kill -SEGV $$", 139), ("--fail alloc_pd=ENOMEM", "exit 7", 7)]
)
@pytest.mark.parametrize("way", ["2>/dev/full", "2>&1 | true"])
def test_exit_code_is_the_programs_where_nothing_can_be_reported(
    runtime: Path, options: str, script: str, status: int, way: str
) -> None:
    report, _, pipe = way.partition("|")
    line = f"{sys.executable} -m rnic run {options} sh -c 'sleep 0.1; {script}' {report}"
    words = f"set -o pipefail; {line} | {pipe}" if pipe else line
    ended = subprocess.run(["bash", "-c", words], capture_output=True, check=False, timeout=300)
    assert ended.returncode == status
    assert not list(runtime.iterdir())


def test_a_tally_that_cannot_be_read_is_said(rnic: Start, runtime: Path) -> None:
    script = (
        'for file in "$XDG_RUNTIME_DIR"/*/*/tally "$XDG_RUNTIME_DIR"/*/tally; do echo > "$file"; done; exit 7'
    )
    ended = rnic("run", "--fail", "alloc_pd=ENOMEM", "sh", "-c", script).wait()
    assert ended.status == 7
    assert "what came true of --fail and --fault cannot be read" in ended.err
    assert not list(runtime.iterdir())


def test_programs_that_cannot_be_started(rnic: Start, runtime: Path) -> None:
    missing = rnic("run", "no-such-program").wait()
    assert (missing.status, missing.err) == (127, "rnic: no-such-program: No such file or directory\n")
    assert rnic("run", "/").wait().status == 126
    assert rnic("run").wait().status == 125
    assert rnic("run", "--nonsense", "true").wait().status == 125
    wrong = rnic("run", "--fail", "regmr=EIO", "true").wait()
    assert (wrong.status, wrong.err) == (125, "rnic: --fail: there is no call regmr; did you mean reg_mr?\n")
    assert not list(runtime.iterdir())


def test_text_is_a_script_of_the_shell(rnic: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "script"
    script.write_text('echo "$0 $*"; exit 7\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    for name in (script, "script"):
        end = rnic("run", name, "a", "b").wait()
        assert (end.status, end.out) == (7, f"{script} a b\n")
    script.write_bytes(b"\0\0\0\0")
    end = rnic("run", script).wait()
    assert (end.status, end.err) == (126, f"rnic: {script}: Exec format error\n")


def test_what_is_no_file_is_not_opened(rnic: Start, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo, 0o755)
    for words in ([fifo], ["--check", fifo]):
        end = rnic("run", *words).wait()
        assert (end.status, "Permission denied" in end.err) == (125 if len(words) > 1 else 126, True)


def test_empty_word_is_no_program(rnic: Start) -> None:
    end = rnic("run", "").wait()
    assert (end.status, "name a program" in end.err) == (125, True)


def test_folder_has_an_absolute_path(rnic: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", ".")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert rnic("run", "sh", "-c", "echo $RNIC_RUN").wait().out.startswith(f"{tmp_path}/rnic-run-")


def test_nothing_is_left_where_descriptors_end(runtime: Path) -> None:
    words = 'ulimit -n 16; exec "$0" -m rnic run true'
    subprocess.run(["sh", "-c", words, sys.executable], capture_output=True, timeout=300, check=False)
    assert not list(runtime.iterdir())


def test_options_behind_the_program_are_its_own(rnic: Start) -> None:
    assert rnic("run", "echo", "--check", "--help", "-x").wait().out == "--check --help -x\n"
    assert rnic("run", "--local", "off", "--", "sh", "-c", "echo $RNIC_LOCAL").wait().out == "off\n"


def test_heap_is_switched_off(rnic: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    show = ("sh", "-c", "echo $LD_PRELOAD")
    assert HEAP in rnic("run", *show).wait().out
    assert HEAP not in rnic("run", "--heap", "off", *show).wait().out
    monkeypatch.setenv("RNIC_HEAP", "off")
    assert HEAP not in rnic("run", *show).wait().out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_signals_reach_the_program(rnic: Start, runtime: Path, number: signal.Signals) -> None:
    script = f"trap 'echo got; exit 9' {number.value}; touch {runtime}/ready; while :; do sleep 0.01; done"
    command = rnic("run", "sh", "-c", script)
    until((runtime / "ready").exists, "the program runs")
    command.process.send_signal(number)
    end = command.wait()
    assert (end.status, end.out) == (9, "got\n")


def test_process_1_of_a_container_reaps_orphans() -> None:
    box = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if not shutil.which(box[0]) or subprocess.run([*box, "true"], check=False).returncode:
        pytest.skip("needs unshare of util-linux, and the right to make a namespace of processes")
    orphans = "(sleep 0.1 &); sleep 0.2; until ! grep -qs ') Z 1 ' /proc/[0-9]*/stat"
    done = subprocess.run(
        [*box, sys.executable, "-m", "rnic", "run", "sh", "-c", f"{orphans}; do sleep 0.01; done; exit 6"],
        timeout=300,
        check=False,
    )
    assert done.returncode == 6


def test_server_has_more_descriptors_than_the_program(rnic: Start) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = min(256, most - 1)
    script = (
        f"while [ $(awk '/open files/ {{print $4}}' /proc/$PPID/limits) = {few} ]; do sleep 0.01; done;"
        " ulimit -S -n; awk '/open files/ {print $4}' /proc/$PPID/limits"
    )
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, most))
    try:
        command = rnic("run", "sh", "-c", script, anew=True)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert command.wait().out.split() == [str(few), str(most)]


def test_signal_before_the_program_starts_ends_the_command(rnic: Start, runtime: Path) -> None:
    command = rnic("run", "sleep", "100")
    until(lambda: list(runtime.iterdir()), "the folder is there")
    command.process.terminate()
    assert command.wait().status in (143, -signal.SIGTERM)
    assert not list(runtime.iterdir())


def test_program_has_the_terminal_and_ctrl_c(runtime: Path) -> None:
    import pty

    pid, terminal = pty.fork()
    if pid == 0:
        script = (
            "trap 'echo interrupted; exit 5' INT; test -t 0 && echo terminal; while :; do sleep 0.01; done"
        )
        os.execv(sys.executable, [sys.executable, "-m", "rnic", "run", "sh", "-c", script])
    said = b""
    while b"terminal" not in said:
        said += os.read(terminal, 999)
    os.write(terminal, b"\x03")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
    os.close(terminal)
    assert not list(runtime.iterdir())


def test_folder_of_a_killed_command_is_removed_by_the_next_one(rnic: Start, runtime: Path) -> None:
    command = rnic("run", "sh", "-c", "touch $RNIC_RUN/runs; exec sleep 1000")
    (folder,) = until(lambda: list(runtime.glob("rnic-run-*/runs")), "the program runs")
    (program,) = children_of(command.process.pid)
    command.process.kill()
    command.process.wait()
    until(lambda: not is_running(program), "the program has ended, too")
    os.utime(folder.parent, (0, 0))
    assert rnic("run", "true").wait().status == 0
    assert not list(runtime.iterdir())


def test_program_of_a_killed_command_gets_sighup(rnic: Start, runtime: Path) -> None:
    script = f"trap 'touch {runtime}/hup; exit' HUP; touch {runtime}/ready; while :; do sleep 0.01; done"
    command = rnic("run", "sh", "-c", script)
    until((runtime / "ready").exists, "the program runs")
    command.process.kill()
    until((runtime / "hup").exists, "the program is told")


def is_running(pid: int) -> bool:
    """Whether a process has neither ended nor is it a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children_of(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_variables_for_a_shell(rnic: Start) -> None:
    said = rnic("run", "--env").wait().out
    shown = subprocess.run(
        ["sh", "-c", f"{said} echo $LD_LIBRARY_PATH"], capture_output=True, text=True, check=True
    )
    assert (Path(shown.stdout.strip().split(":")[0]) / "libibverbs.so.1").exists()


def test_check_of_a_program(rnic: Start, tmp_path: Path) -> None:
    assert rnic("run", "--check", "sh").wait().status == 0
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    assert "a script for /bin/sh" in rnic("run", "--check", script).wait().out
    script.write_text("true\n")
    assert "a script for /bin/sh" in rnic("run", "--check", script).wait().out
    binary = f"./{os.path.relpath(shutil.which('sleep') or '')}"
    assert "a script for" not in rnic("run", "--check", binary).wait().out
    script.chmod(0o644)
    end = rnic("run", "--check", script).wait()
    assert (end.status, "it is there, but is no executable file" in end.err) == (126, True)
    text = tmp_path / "text"
    text.write_bytes(b"no program\0")
    text.chmod(0o755)
    end = rnic("run", "--check", text).wait()
    assert (end.status, "it is no ELF file" in end.out) == (1, True)


def test_check_of_a_static_program(rnic: Start, tmp_path: Path) -> None:
    source, static = tmp_path / "main.c", tmp_path / "static"
    source.write_text("int main(void) { return 0; }\n")
    done = subprocess.run(["cc", "-static", source, "-o", static], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("the C compiler links no static programs")
    end = rnic("run", "--check", static).wait()
    assert (end.status, "linked statically" in end.out) == (1, True)


def test_program_of_another_c_library(rnic: Start, tmp_path: Path) -> None:
    source, program, script = tmp_path / "main.c", tmp_path / "program", tmp_path / "script"
    source.write_text("int main(void) { return 0; }\n")
    loader = "-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1"
    if subprocess.run(["cc", source, loader, "-o", program], capture_output=True, check=False).returncode:
        need_package("gcc")
    script.write_text(f"#!{program}\n")
    script.chmod(0o755)
    said = (
        "its C library is musl, and that of rnic's libraries is glibc: "
        "install rnic for a Python whose C library is musl\n"
    )
    for one in (program, script):
        end = rnic("run", one).wait()
        assert (end.status, end.err) == (126, f"rnic: {one}: {said}")
    end = rnic("run", "--check", script).wait()
    assert (end.status, end.out.endswith(f"  cannot run on rnic's devices: {said}")) == (1, True)
