# SPDX-License-Identifier: Apache-2.0
"""`rnic vm`, with a stand-in for QEMU."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rnic.cli.main import run
from rnic.vm import Machine, client, running
from vm.conftest import DIE, furnish, is_there, need_tap
from waiting import PATIENCE, until

RNIC = [sys.executable, "-m", "rnic"]
Captured = pytest.CaptureFixture[str]


def rnic(*words: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*RNIC, "vm", *words], capture_output=True, timeout=PATIENCE, **options)


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A computer where one machine is up."""
    need_tap()
    with pytest.MonkeyPatch.context() as monkeypatch:
        computer = furnish(tmp_path_factory.mktemp("computer"), monkeypatch)
        assert run(["vm", "up"]) == 0
        yield computer
        assert run(["vm", "down"]) == 0
    assert not [*(computer / "run/rnic/vm").iterdir()]


# ---------------------------------------------------------------- one machine for all of these

alone = pytest.mark.usefixtures("box")


@alone
def test_list(capfd: Captured) -> None:
    assert run(["vm", "list"]) == 0
    assert capfd.readouterr().out.splitlines()[1].split()[:3] == ["box", "up", "rxe0"]
    assert run(["vm", "list", "--json"]) == 0
    (one,) = json.loads(capfd.readouterr().out)
    assert (one["name"], one["state"], one["devices"]) == ("box", "up", ["rxe0"])


@alone
@pytest.mark.parametrize(
    ("words", "status", "out", "err"),
    [
        (["echo one; echo two >&2; exit 3"], 3, "one\n", "two\n"),
        (["echo", "one", "--two"], 0, "one --two\n", ""),
        (["kill -TERM $$"], 128 + signal.SIGTERM, "", ""),
        (["-n", "other", "true"], 125, "", "rnic: no machine named other runs (No such file or directory)\n"),
    ],
)
def test_run(words: list[str], status: int, out: str, err: str, capfd: Captured) -> None:
    assert run(["vm", "run", *words]) == status
    assert capfd.readouterr() == (out, err)


@alone
def test_run_has_input_and_the_folder(tmp_path: Path) -> None:
    data = os.urandom(1 << 20)
    done = rnic("run", "pwd >&2; cat", input=data, cwd=str(tmp_path))
    assert (done.stdout, done.stderr) == (data, f"{tmp_path}\n".encode())


@alone
def test_run_whose_reader_has_seen_enough() -> None:
    """As a shell has it: `yes | head -1`."""
    command = subprocess.Popen([*RNIC, "vm", "run", "yes"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert command.stdout is not None
    assert command.stdout.read(2) == b"y\n"
    command.stdout.close()
    assert command.stderr is not None
    assert command.stderr.read() == b""
    assert command.wait(PATIENCE) == 128 + signal.SIGPIPE
    command.stderr.close()


@alone
def test_run_that_is_killed_leaves_no_command(tmp_path: Path) -> None:
    client = subprocess.Popen([*RNIC, "vm", "run", f"echo $$ >{tmp_path}/pid; exec sleep 1000"])
    try:
        until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "the command")
        pid = (tmp_path / "pid").read_text().strip()
    finally:
        client.kill()
        client.wait()
    until(lambda: not is_there(int(pid)), "its end")


@alone
def test_put_and_get(tmp_path: Path, capfd: Captured) -> None:
    (tmp_path / "file").write_text("content")
    there, back = tmp_path / "there", tmp_path / "back"
    back.mkdir()
    assert run(["vm", "put", "--to", str(there), str(tmp_path / "file")]) == 0
    assert run(["vm", "get", "--to", str(back), str(there / "file")]) == 0
    assert capfd.readouterr().out == f"{there}/file\n{back}/file\n"
    assert (back / "file").read_text() == "content"
    assert run(["vm", "get", "--to", str(back), "/not/there"]) == 125
    assert "/not/there could not be got" in capfd.readouterr().err


@alone
def test_exec_is_where_the_tap_device_is() -> None:
    with Machine.attach("box") as machine:
        netdev = machine.netdev
    assert netdev.encode() in rnic("exec", "--", "ip", "link").stdout
    assert rnic("exec", "sh", "-c", "exit 7").returncode == 7
    missing = rnic("exec", "/not/there")
    assert (missing.returncode, missing.stderr) == (1, b"rnic: /not/there: No such file or directory\n")


@alone
def test_log(capfd: Captured) -> None:
    assert run(["vm", "log"]) == 0
    assert "the machine's console" in capfd.readouterr().out


@alone
@pytest.mark.parametrize("words", [["box"], ["-n", "box"], ["box", "-n", "box"]])
def test_a_machine_is_named_with_and_without_an_option(words: list[str], capfd: Captured) -> None:
    assert run(["vm", "log", *words]) == 0
    assert "the machine's console" in capfd.readouterr().out
    assert rnic("sh", *words, input=b"echo here\n").stdout == b"here\n"
    assert run(["vm", "up", *words]) == 1
    assert "box runs already" in capfd.readouterr().err


@alone
def test_two_names_are_refused(capfd: Captured) -> None:
    for command in ("up", "down", "log", "sh"):
        assert run(["vm", command, "box", "-n", "other"]) == 2
        assert "two machines are named: box and other" in capfd.readouterr().err


@alone
def test_a_second_up(capfd: Captured) -> None:
    assert run(["vm", "up"]) == 1
    assert capfd.readouterr().err == "rnic: box runs already: rnic vm down box ends it\n"


@alone
def test_the_tab_key_completes_names() -> None:
    line = {"COMP_WORDS": "rnic vm down b", "COMP_CWORD": "3", "_RNIC_COMPLETE": "bash_complete"}
    done = subprocess.run(
        [sys.executable, "-c", "from rnic.cli.main import cli; cli(prog_name='rnic')"],
        env=os.environ | line,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.stdout == "plain,box\n"


# ---------------------------------------------------------------- the shell


class Terminal:
    """`rnic vm sh` at a terminal of 31 lines of 99 characters."""

    def __init__(self) -> None:
        self.screen = b""
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 31, 99, 0, 0))
        self.process = subprocess.Popen(
            ["setsid", "--ctty", "--wait", *RNIC, "vm", "sh"], stdin=theirs, stdout=theirs, stderr=theirs
        )
        os.close(theirs)

    def type(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def shows(self, text: bytes) -> None:
        limit = time.monotonic() + PATIENCE
        while text not in self.screen:
            ready, _, _ = select.select([self._ours], [], [], max(0, limit - time.monotonic()))
            assert ready, f"no {text!r}: {self.screen!r}"
            self.screen += os.read(self._ours, 4096)

    def echoes(self) -> bool:
        return bool(termios.tcgetattr(self._ours)[3] & termios.ECHO)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    terminal = Terminal()
    yield terminal
    terminal.close()


@alone
def test_a_shell_has_a_terminal_and_its_exit_code_counts(terminal: Terminal) -> None:
    terminal.type(b"stty size; echo grues\xc3\xbc-$((40 + 2))\r")
    terminal.shows(b"31 99")
    terminal.shows("gruesü-42".encode())
    terminal.type(b"pwd\r")
    terminal.shows(bytes(Path.cwd()) + b"\r\n")
    terminal.type(b"sh -c 'echo now-$((40 + 2)); exec sleep 1000'\r")
    terminal.shows(b"now-42")
    terminal.screen = b""
    terminal.type(b"\x03")  # Ctrl-C is for the shell there
    terminal.shows(b"# ")
    terminal.type(b"exit $((2 + 3))\r")
    assert terminal.process.wait(PATIENCE) == 5
    assert terminal.echoes()


@alone
def test_a_shell_can_be_left(terminal: Terminal) -> None:
    terminal.type(b"echo is-$((40 + 2))\r")
    terminal.shows(b"is-42")
    terminal.type(b"\x1d")
    assert terminal.process.wait(PATIENCE) == 0
    assert terminal.echoes()


@alone
def test_a_shell_without_a_terminal() -> None:
    done = rnic("sh", input=b"echo one\npwd\nexit 4\n")
    assert (done.returncode, done.stdout.decode()) == (4, f"one\n{Path.cwd()}\n")


# ---------------------------------------------------------------- machines of their own


@pytest.mark.usefixtures("machines")
def test_nothing_runs(capfd: Captured) -> None:
    for words in (["run", "true"], ["sh"], ["down"], ["log"], ["get", "x"], ["exec", "true"]):
        assert run(["vm", *words]) == 125
        assert capfd.readouterr().err == "rnic: no machine runs: rnic vm up starts one\n"
    assert run(["vm", "list"]) == 0
    assert capfd.readouterr().out == ""


@pytest.mark.usefixtures("machines")
def test_several_machines_have_names(capfd: Captured) -> None:
    assert run(["vm", "up", "one"]) == 0
    assert run(["vm", "up", "two", "--cpus", "2", "--mtu", "9000"]) == 0
    capfd.readouterr()
    assert run(["vm", "run", "true"]) == 125
    assert capfd.readouterr().err == "rnic: several machines run, name one with -n NAME: one, two\n"
    assert run(["vm", "log"]) == 125
    assert "-n NAME: one, two" in capfd.readouterr().err
    assert run(["vm", "run", "-n", "two", "echo here"]) == 0
    assert capfd.readouterr().out == "here\n"
    with Machine.attach("one") as one, Machine.attach("two") as two:
        assert one.keeper != two.keeper
        assert (two.facts["cpus"], two.facts["mtu"]) == (2, 9000)
    assert run(["vm", "down", "--all"]) == 0
    assert running() == []


@pytest.mark.usefixtures("machines")
def test_one_that_dies_says_why_and_comes_again(capfd: Captured) -> None:
    assert run(["vm", "up"]) == 0
    assert run(["vm", "run", DIE]) == 125
    assert "died (Kernel panic - not syncing: enough) during" in capfd.readouterr().err
    assert run(["vm", "run", "true"]) == 125
    told = capfd.readouterr().err
    assert told.startswith("rnic: the machine box died: Kernel panic - not syncing: enough\n")
    assert told.endswith("rnic vm up box starts it again\n")
    assert run(["vm", "up"]) == 0
    assert run(["vm", "run", "true"]) == 0
    assert run(["vm", "down"]) == 0


@pytest.mark.usefixtures("machines")
def test_the_log_is_followed_to_the_end() -> None:
    assert run(["vm", "up"]) == 0
    with subprocess.Popen([*RNIC, "vm", "log", "-f"], stdout=subprocess.PIPE) as following:
        assert following.stdout
        assert following.stdout.readline() == b"the machine's console\n"
        assert run(["vm", "run", DIE]) == 125
        assert following.stdout.readline().endswith(b"Kernel panic - not syncing: enough\n")
        assert following.poll() is None
        assert run(["vm", "down"]) == 0
        assert following.wait(PATIENCE) == 0


@pytest.mark.usefixtures("machines")
def test_one_that_cannot_be_asked_can_be_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "ANSWER", 0.1)
    assert run(["vm", "up"]) == 0
    with Machine.attach("box") as machine:
        os.kill(machine.keeper, signal.SIGSTOP)
    assert run(["vm", "down"]) == 0
    until(lambda: not running(), "its end")


def test_what_is_missing_is_named(tap: Path, monkeypatch: pytest.MonkeyPatch, capfd: Captured) -> None:
    monkeypatch.setenv("PATH", f"{tap}/programs")
    (tap / "programs/qemu-system-x86_64").unlink()
    assert run(["vm", "up"]) == 1
    assert "qemu-system-x86" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("variable", "says"),
    [
        ("XDG_CACHE_HOME", "no place for the kernel of machines: {}/rnic: No such file or directory"),
        ("XDG_RUNTIME_DIR", "no place for the files of a machine: {}/rnic: No such file or directory"),
    ],
)
@pytest.mark.usefixtures("tap")
def test_a_folder_that_holds_no_files_is_told(
    variable: str, says: str, monkeypatch: pytest.MonkeyPatch, capfd: Captured
) -> None:
    monkeypatch.setenv(variable, "/proc")  # where nothing can be made, also by root
    assert run(["vm", "up"]) == 1
    assert capfd.readouterr().err == f"rnic: {says.format('/proc')}; {variable} chooses another folder\n"
    assert run(["vm", "list"]) == 0


def test_a_folder_of_machines_that_cannot_be_read_is_told(
    computer: Path, monkeypatch: pytest.MonkeyPatch, capfd: Captured
) -> None:
    def refuse(_: Path) -> Iterator[Path]:
        raise PermissionError(errno.EACCES, "Permission denied", str(computer))

    (computer / "run/rnic/vm").mkdir(parents=True)
    monkeypatch.setattr(Path, "iterdir", refuse)
    assert run(["vm", "list"]) == 1
    assert capfd.readouterr().err == (
        f"rnic: {computer}: Permission denied; XDG_RUNTIME_DIR chooses another folder\n"
    )
