# SPDX-License-Identifier: Apache-2.0
"""Commands in a machine, with a stand-in for QEMU: one machine for all of these tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from rnic.vm import Machine, MachineError, running
from vm.conftest import furnish, is_there, need_tap
from waiting import PATIENCE, until


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    need_tap()
    with pytest.MonkeyPatch.context() as monkeypatch:
        furnish(tmp_path_factory.mktemp("computer"), monkeypatch)
        with Machine("box") as machine:
            yield machine


def test_it_says_what_it_is(machine: Machine) -> None:
    assert (machine.state, machine.devices, machine.facts["cpus"]) == ("up", ["rxe0"], 1)
    assert machine.ip.rpartition(".")[0] == machine.host_ip.rpartition(".")[0]
    assert running() == ["box"]


@pytest.mark.parametrize(
    ("command", "rc", "out"),
    [
        ("echo one; echo two >&2", 0, "one\ntwo\n"),
        ("exit 3", 3, ""),
        ("kill -9 $$", -9, ""),
        ("printf 'gr\\303\\274n'", 0, "grün"),
        ("read line || echo nothing", 0, "nothing\n"),
    ],
)
def test_commands_end_as_they_do(machine: Machine, command: str, rc: int, out: str) -> None:
    assert machine.run(command) == (rc, out)


def test_what_cannot_be_taken_ends_the_command_and_not_the_machine(machine: Machine) -> None:
    def take(_data: bytes) -> None:
        raise BrokenPipeError("enough")

    job = machine.spawn("while echo more; do :; done", output=take)
    with pytest.raises(BrokenPipeError, match="enough"):
        job.wait(PATIENCE)
    assert machine.run("echo and on") == (0, "and on\n")


def test_input_of_any_length_goes_through(machine: Machine) -> None:
    """More than may be under way at once, to a command that begins late."""
    data = os.urandom(3 << 20)
    got = bytearray()
    job = machine.spawn("sleep 0.1; cat", output=got.extend, input=True)
    job.write(data)
    job.close_input()
    assert job.wait(PATIENCE).rc == 0
    assert got == data


def test_a_command_that_reads_nothing_ends_all_the_same(machine: Machine) -> None:
    job = machine.spawn("exit 4", input=True)
    job.write(bytes(3 << 20))
    assert job.wait(PATIENCE).rc == 4


def test_stderr_apart(machine: Machine) -> None:
    out, err = bytearray(), bytearray()
    machine.spawn("echo one; echo two >&2", out.extend, err.extend).wait(PATIENCE)
    assert (bytes(out), bytes(err)) == (b"one\n", b"two\n")


def test_a_terminal(machine: Machine) -> None:
    job = machine.spawn("stty size; tty; read line; stty size", tty=[31, 99])
    job.expect(r"31 99\s+/dev/pts/")
    job.resize(50, 120)
    job.write(b"\n")
    assert "50 120" in job.wait(PATIENCE).out


def test_folders_and_variables(machine: Machine, tmp_path: Path) -> None:
    done = machine.run("pwd; echo $ONE", cwd=["/not/there", str(tmp_path)], env={"ONE": "1"})
    assert done.out == f"{tmp_path}\n1\n"


def test_one_that_takes_too_long_is_killed(machine: Machine) -> None:
    job = machine.spawn("echo begun; sleep 1000")
    job.expect("begun")
    with pytest.raises(MachineError, match="not finished after"):
        job.wait(0.01)
    assert job.rc == -signal.SIGKILL


def test_files_there_and_back(machine: Machine, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "below").mkdir(parents=True)
    (tree / "below/run me").write_text("#!/bin/sh\n")
    (tree / "below/run me").chmod(0o755)
    there = machine.put(tree, str(tmp_path / "machine's own"))
    (tmp_path / "back").mkdir()
    back = machine.get(there, tmp_path / "back")
    assert (back / "below/run me").read_text() == "#!/bin/sh\n"
    assert (back / "below/run me").stat().st_mode & 0o777 == 0o755
    with pytest.raises(MachineError, match="could not be got"):
        machine.get("/not/there", tmp_path)


# ---------------------------------------------------------------- several clients


def test_whoever_attaches_sees_the_same_and_leaves_it_running(machine: Machine) -> None:
    with Machine.attach("box") as other:
        assert other.facts == machine.facts
        assert other.check("echo $PPID") == machine.check("echo $PPID")
    assert machine.run("true").rc == 0


@pytest.mark.usefixtures("machine")
def test_who_leaves_leaves_no_commands() -> None:
    other = Machine.attach("box")
    job = other.spawn("echo $$; exec sleep 1000")
    pid = int(job.expect(r"\d+\n")[0])
    other.close()
    until(lambda: not is_there(pid), "the command's end")


def test_who_does_not_read_keeps_nobody_waiting(machine: Machine) -> None:
    stopped: list[bool] = []
    with Machine.attach("box") as other:
        deaf = other.spawn("yes", output=lambda _: until(lambda: stopped, "the end"))
        assert machine.run("seq 100000 | tail -n 1").out == "100000\n"
        stopped.append(True)
        deaf.kill()
