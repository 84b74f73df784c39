# SPDX-License-Identifier: Apache-2.0
"""A machine's life, and commands in it, with a stand-in for QEMU."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rnic.vm import HungError, Machine, MachineError, NoMachineError, accelerators, client, running
from vm.conftest import DIE, RELEASE, is_there
from waiting import PATIENCE, until

pytestmark = pytest.mark.usefixtures("machines")


@pytest.fixture
def machine(machines: Path) -> Iterator[Machine]:  # noqa: ARG001 - it is ended before they are counted
    with Machine("box") as machine:
        yield machine


def processes(machine: Machine) -> list[int]:
    return [machine.facts[name] for name in ("warden", "keeper", "qemu")]


def all_gone(machine: Machine, folder: Path) -> bool:
    return not any(map(is_there, processes(machine))) and not [*folder.iterdir()]


def test_two_of_one_name(machine: Machine) -> None:
    with pytest.raises(MachineError, match="a machine named box runs already"):
        Machine("box")
    assert machine.run("true").rc == 0


def test_a_machine_and_its_jobs_say_what_they_are(machine: Machine) -> None:
    assert repr(machine) == f"<Machine box: up, rxe0 at {machine.ip}>"
    job = machine.spawn("exec sleep 1000")
    assert repr(job) == "<Job 'exec sleep 1000' in box: runs>"
    job.kill()
    job.wait()
    assert repr(job) == "<Job 'exec sleep 1000' in box: signal 9>"
    job = machine.spawn("exit 3")
    job.wait()
    assert repr(job) == "<Job 'exit 3' in box: exit 3>"
    with pytest.raises(MachineError):
        machine.run(DIE)
    assert repr(machine).startswith("<Machine box: dead, Kernel panic - not syncing: enough, rxe0 at ")
    assert repr(Machine.__new__(Machine)) == "<Machine: not started>"


def test_a_transport_that_is_none() -> None:
    with pytest.raises(ValueError, match="'roce' is no transport of a machine: rxe, siw, both"):
        Machine(transport="roce")


@pytest.mark.parametrize("name", ["../x", "", ".x", "a b", "x" * 33])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(ValueError, match="is no name of a machine"):
        Machine.attach(name)


@pytest.mark.parametrize("command", ["a\0b", "echo \ud800"])
@pytest.mark.parametrize("options", [{}, {"tty": [24, 80]}])
def test_a_command_that_cannot_be_one(machine: Machine, command: str, options: dict[str, list[int]]) -> None:
    rc, out = machine.run(command, PATIENCE, **options)
    assert rc == 126
    assert out
    assert machine.run("true").rc == 0


# ---------------------------------------------------------------- ends


def test_nothing_stays_of_one_that_is_closed(machines: Path) -> None:
    with Machine() as machine:
        assert machine.name == running()[0]
    assert all_gone(machine, machines)


def test_one_that_was_let_go_lives_until_it_is_ended(machines: Path) -> None:
    with Machine("box") as machine:
        machine.detach()
    with Machine.attach("box") as other:
        assert other.run("true").rc == 0
        other.end()
        assert all_gone(machine, machines)
    with pytest.raises(NoMachineError, match="no machine named box runs"):
        Machine.attach("box")


@pytest.mark.parametrize("victim", ["warden", "keeper"])
def test_nothing_stays_when_one_of_its_processes_is_killed(machines: Path, victim: str) -> None:
    with Machine("box") as machine:
        job = machine.spawn("sleep 1000")
        os.kill(machine.facts[victim], signal.SIGKILL)
        with pytest.raises(MachineError, match="died"):
            job.wait(PATIENCE)
        until(lambda: all_gone(machine, machines), "the end of all")


OWNER = "import sys, rnic.vm; rnic.vm.Machine('box'); print('up', flush=True); sys.stdin.read()"


@pytest.mark.parametrize("when", ["up", "booting"])
def test_nothing_stays_when_its_owner_is_killed(
    machines: Path, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if when == "booting":
        monkeypatch.setenv("FAKE_QEMU", "mute")
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        until(lambda: running() == ["box"] and (machines / "box/socket").exists(), "the machine")
        with Machine.attach("box") as machine:
            client = machine._client
            assert client.wait_for(lambda: client.state == when, PATIENCE)
            owner.kill()
            until(lambda: all_gone(machine, machines), "the end of all")
    finally:
        owner.kill()
        owner.communicate()


def test_why_it_died(machine: Machine) -> None:
    with pytest.raises(MachineError, match=r"died .Kernel panic - not syncing: enough"):
        machine.run(DIE)
    assert (machine.state, machine.why) == ("dead", "Kernel panic - not syncing: enough")
    assert "the machine's console\nKernel panic" in machine.console()
    with pytest.raises(MachineError, match="died"):
        machine.run("true")


def test_one_whose_keeper_does_not_answer(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "ANSWER", 0.1)
    os.kill(machine.keeper, signal.SIGSTOP)
    try:
        with pytest.raises(HungError) as told:
            Machine.attach("box")
        assert told.value.pid == machine.keeper
    finally:
        os.kill(machine.keeper, signal.SIGCONT)


# ---------------------------------------------------------------- how it is started


@pytest.fixture
def kvm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The computer seems to have it."""
    (tmp_path / "kvm").touch()
    monkeypatch.setattr(accelerators, "KVM", tmp_path / "kvm")


@pytest.mark.usefixtures("kvm")
def test_kvm_is_tried_first() -> None:
    with Machine() as machine:
        assert machine.accelerator == "kvm"


@pytest.mark.usefixtures("kvm")
def test_where_kvm_fails_the_processor_is_emulated_and_the_next_time_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FAKE_QEMU", "no-kvm")
    for tried in (2, 1):
        with Machine() as machine:
            assert machine.accelerator == "tcg"
            assert machine.console().count("the machine's console") == tried


def test_one_that_cannot_boot_says_what_was_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_QEMU", "no-boot")
    with pytest.raises(MachineError, match=r"tcg: QEMU ended with status 1\n.*\nqemu: it does not work"):
        Machine()


def test_one_that_does_not_boot_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_QEMU", "mute")
    with pytest.raises(MachineError, match=r"has not booted in 0\.1 s"):
        Machine(patience=0.1)


def test_the_kernel_is_the_cached_one(machine: Machine) -> None:
    command = Path(f"/proc/{machine.facts['qemu']}/cmdline").read_text()
    assert f"boot/vmlinuz-{RELEASE}" in command
