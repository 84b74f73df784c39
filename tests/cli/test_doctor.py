# SPDX-License-Identifier: Apache-2.0
"""`rnic doctor`: what it says of this machine, and of ones that lack something."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import namespaces
from cli.commands import Result, Start
from rnic.cli.doctor import machine, network, pair, programs, tools
from rnic.cli.doctor.command import line, summary
from rnic.cli.doctor.finding import Finding, State, degraded, good, missing

DOCTOR = [sys.executable, "-m", "rnic", "doctor", "--json"]
NO_NAMESPACE = 77
WITHIN = f"""
import namespaces, os, sys
try:
    namespaces.network_of_our_own(up={{up}}, as_root=True)
except OSError as error:
    print(error, file=sys.stderr)
    sys.exit({NO_NAMESPACE})
os.execvp(sys.argv[1], sys.argv[1:])
"""
HOLDER = """
import socket, subprocess, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as held:
    held.bind(("0.0.0.0", 4791))
    sys.exit(subprocess.run(sys.argv[1:]).returncode)
"""
NEIGHBOUR = """
import os, rnic, signal, subprocess, sys
ready, tell = os.pipe()
pid = os.fork()
if pid == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
    with rnic.open_device("roce_lo"):
        os.write(tell, b"!")
        signal.pause()
os.close(tell)
os.read(ready, 1)
status = subprocess.run(sys.argv[1:]).returncode
os.kill(pid, 9)
sys.exit(status)
"""


def within(*command: str, up: bool = True) -> Result:
    """A command in a network namespace of its own, with the right to change this network."""
    script = WITHIN.format(up=up)
    env = {**os.environ, "PYTHONPATH": str(Path(namespaces.__file__).parent)}
    done = subprocess.run(
        [sys.executable, "-c", script, *command],
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode == NO_NAMESPACE:
        pytest.skip(f"no network namespace of our own: {done.stderr}")
    return Result(done.returncode, done.stdout, done.stderr)


def by_name(text: str) -> dict[str, Finding]:
    """The report by what was looked at."""
    return {
        record["what"]: Finding(
            record["what"], State(record["state"]), record["found"], record["cure"], record["needed"]
        )
        for record in json.loads(text)
    }


def test_here_rnic_works(rnic: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RNIC_LOCAL", "on")
    result = rnic("doctor").wait()
    assert (result.status, result.err) == (0, "")
    first, *lines = result.out.splitlines()
    states = {line[:22].strip(): line[22:].split()[0] for line in lines}
    assert first.startswith(f"rnic works here ({[*states.values()].count('ok')} ok")
    assert set(states.values()) <= {"ok", "degraded", "missing", "not"}
    for what in ("kernel", "memory files", "devices", "UDP segmentation", "shared memory"):
        assert states[what] == "ok"


def test_what_is_not_ok_has_a_cure(rnic: Start) -> None:
    found = by_name(rnic("doctor", "--json").wait().out)
    assert {"UDP 4791 of lo", "rdma_rxe", "locked memory", "process_vm_readv", "tshark"} <= set(found)
    assert all(one.cure for one in found.values() if one.state is not State.OK)
    assert not any(one.needed for one in found.values())


def test_a_program_that_holds_the_port_is_named() -> None:
    result = within(sys.executable, "-c", HOLDER, *DOCTOR)
    assert result.status == 1, result.err
    port = by_name(result.out)["UDP 4791 of lo"]
    assert (port.state, port.needed) == (State.MISSING, True)
    assert "python" in port.found
    assert "namespace" in port.cure
    assert by_name(result.out)["shared memory"].state is State.MISSING


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_users_port_is_a_detour() -> None:
    result = within(sys.executable, "-c", NEIGHBOUR, *DOCTOR)
    assert result.status == 0, result.err
    port = by_name(result.out)["UDP 4791 of lo"]
    assert port.state is State.DEGRADED
    assert "another user" in port.found


def test_without_an_interface_nothing_works() -> None:
    result = within(*DOCTOR, up=False)
    assert result.status == 1, result.err
    found = by_name(result.out)
    assert (found["devices"].state, found["devices"].needed) == (State.MISSING, True)
    assert found["shared memory"].state is State.MISSING


def test_the_switch_is_seen(rnic: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RNIC_LOCAL", "off")
    result = rnic("doctor", "--json").wait()
    assert result.status == 0
    found = by_name(result.out)["shared memory"]
    assert (found.state, found.cure) == (State.DEGRADED, "unset RNIC_LOCAL")


def test_a_switch_without_a_value_is_none(rnic: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RNIC_LOCAL", "")
    result = rnic("doctor", "--json").wait()
    assert result.status == 0
    assert by_name(result.out)["shared memory"].state is State.OK


def test_a_wrong_switch_is_told(rnic: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RNIC_LOCAL", "yes")
    result = rnic("doctor", "--json").wait()
    assert result.status == 1
    assert "RNIC_LOCAL is 'yes'" in by_name(result.out)["UDP 4791 of lo"].found


# ---------------------------------------------------------------- judgements


@pytest.mark.parametrize(
    ("release", "state"),
    [("6.1.0-13-amd64", State.OK), ("5.1", State.OK), ("5.0.21", State.DEGRADED), ("4.19.0", State.DEGRADED)],
)
def test_kernels(monkeypatch: pytest.MonkeyPatch, release: str, state: State) -> None:
    monkeypatch.setattr(platform, "release", lambda: release)
    assert machine.kernel().state is state


def test_one_processor_is_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {3})
    assert machine.processors().state is State.DEGRADED


@pytest.mark.parametrize(
    ("refused", "state", "needed"),
    [
        (0, State.OK, False),
        (machine.F_SEAL_FUTURE_WRITE, State.DEGRADED, False),
        (fcntl.F_SEAL_SHRINK, State.MISSING, True),
    ],
)
def test_seals(monkeypatch: pytest.MonkeyPatch, refused: int, state: State, needed: bool) -> None:
    """Without the seal of Linux 5.1 rnic keeps in one file what it would have in several."""
    honest = fcntl.fcntl

    def older(fd: int, command: int, seals: int) -> int:
        if seals & refused:
            raise OSError(errno.EINVAL, "Invalid argument")
        return honest(fd, command, seals)

    monkeypatch.setattr(fcntl, "fcntl", older)
    finding = machine.memory_file()
    assert (finding.state, finding.needed) == (state, needed)


@pytest.mark.parametrize(
    ("scope", "words"),
    [("1", "ptrace_scope=0"), ("2", "CAP_SYS_PTRACE"), ("3", "next boot"), ("", "seccomp")],
)
def test_who_may_not_read_the_other_process_is_told_why(
    monkeypatch: pytest.MonkeyPatch, scope: str, words: str
) -> None:
    monkeypatch.setattr(pair, "text_of", lambda _path: scope)
    finding = pair.copies(errno.EPERM)
    assert finding.state is State.DEGRADED
    assert "staged copies" in finding.found
    assert words in finding.cure


def test_ways_to_the_other_process() -> None:
    assert pair.shared((3, 1)).state is State.OK
    assert "two copies" in pair.shared((3, 0)).found
    assert "only over UDP" in pair.shared((0, 0)).found


def test_own_memory_is_read_by_its_process_and_address() -> None:
    seen = ctypes.create_string_buffer(b"rnic", 8)
    assert pair.read_process(os.getpid(), ctypes.addressof(seen)) == 0
    assert pair.read_process(os.getpid(), 8) == errno.EFAULT
    other = ctypes.create_string_buffer(b"none", 8)
    assert pair.read_process(os.getpid(), ctypes.addressof(other)) == errno.EIO


def test_why_the_other_process_ended_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho first >&2; echo boom >&2; exit 3\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    *_, finding = pair.look("doctor-peer")
    assert finding.state is State.MISSING
    assert finding.found.endswith(": boom")


def test_the_kernel_that_holds_the_port_is_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = tmp_path / "rdma_rxe"
    module.mkdir()
    monkeypatch.setattr(network, "RXE", str(module))
    assert network.kernels_own().state is State.OK
    row = ["7:", "00000000:12B7", "00000000:0000", "07", "0:0", "0:0", "0", "0", "0", "9"]
    monkeypatch.setattr(network, "rows", lambda _table: iter([row]))
    assert network.kernels_own().state is State.DEGRADED


def test_programs_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    monkeypatch.setattr(tools, "find_library", lambda _name: None)
    assert {finding.state for finding in tools.look()} == {State.MISSING}


def test_a_program_of_the_machine_is_run() -> None:
    (finding,) = programs.look()
    if finding.state is State.NOT_RUN:
        pytest.skip(f"{finding.found}: {finding.cure}")
    assert finding.state is State.OK, finding


def test_a_program_that_fails_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.setattr(programs, "BOTH_ENDS", "echo no device >&2; exit 1")
    (finding,) = programs.look()
    assert (finding.state, finding.found) == (State.DEGRADED, "ibv_rc_pingpong does not run: no device")


def test_a_program_that_is_not_there_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    (finding,) = programs.look()
    assert (finding.state, finding.cure) == (State.NOT_RUN, "apt install ibverbs-utils")


def test_the_first_line_names_what_rnic_cannot_do_without() -> None:
    found = [good("kernel", "new"), missing("tshark", "", ""), missing("devices", "", "", needed=True)]
    assert summary(found) == "rnic cannot work here, for want of: devices (1 ok, 2 missing)"
    assert summary(found[:2]) == "rnic works here (1 ok, 1 missing)"


def test_lines() -> None:
    assert line(good("kernel", "Linux 6.1")) == "kernel                ok        Linux 6.1"
    assert line(degraded("a", "b", "c")) == "a                     degraded  b; cure: c"
    assert line(missing("a", "b", "c")).split() == ["a", "missing", "b;", "cure:", "c"]
