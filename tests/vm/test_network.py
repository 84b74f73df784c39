# SPDX-License-Identifier: Apache-2.0
"""Networks of machines, with a stand-in for QEMU, whose commands run in the namespace of the keeper."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from rnic.cli.main import run
from rnic.vm import Machine, MachineError, lock, network
from vm.conftest import is_there
from waiting import PATIENCE, until

pytestmark = pytest.mark.usefixtures("machines")


@pytest.fixture(autouse=True)
def bridges(machines: Path) -> None:  # noqa: ARG001 - a computer without tap devices is told first
    """A computer that can have a bridge."""
    made = subprocess.run(
        ["unshare", "-rn", "ip", "link", "add", "name", "rnicvm", "type", "bridge"], capture_output=True
    )
    if made.returncode:
        pytest.skip(f"no bridge in a namespace: {made.stderr.decode()}")


def namespace(machine: Machine) -> str:
    return machine.check("readlink /proc/self/ns/net")


def ports(machine: Machine) -> set[str]:
    """The tap devices that the machine's network joins."""
    found = json.loads(machine.check(f"ip -json link show master {network.BRIDGE}"))
    return {one["ifname"] for one in found}


def test_machines_of_one_network_share_a_bridge() -> None:
    with Machine("one", network="lab") as one, Machine("two", network="lab") as two:
        assert namespace(one) == namespace(two)
        assert ports(one) == {"rnicvm0", "rnicvm1"}
        assert [(m.ip, m.ip6, m.host_ip, m.netdev) for m in (one, two)] == [
            ("10.77.0.2", "fd77::2", "10.77.0.1", "rnicvm"),
            ("10.77.0.3", "fd77::3", "10.77.0.1", "rnicvm"),
        ]
        assert "10.77.0.1/24" in two.check("ip addr show rnicvm")


def test_the_computers_own_network_has_no_part_in_it() -> None:
    own = f"{Path('/proc/self/ns/net').readlink()}\n"
    before = subprocess.check_output(["ip", "-o", "addr"])
    with Machine("one", network="lab") as one:
        assert namespace(one) != own
        assert subprocess.check_output(["ip", "-o", "addr"]) == before
    assert subprocess.check_output(["ip", "-o", "addr"]) == before


def test_two_networks_are_apart() -> None:
    with Machine("one", network="lab") as one, Machine("two", network="other") as two:
        assert namespace(one) != namespace(two)
        assert (ports(one), ports(two)) == ({"rnicvm0"}, {"rnicvm0"})


@pytest.mark.one_in(2)
@pytest.mark.parametrize("end", ["close", "warden", "keeper"])
def test_a_network_outlives_its_first_machine(machines: Path, end: str) -> None:
    one = Machine("one", network="lab")
    with Machine("two", network="lab") as two:
        if end == "close":
            one.close()
        else:
            os.kill(one.facts[end], signal.SIGKILL)
            until(lambda: not (machines / "one").exists(), "the end of the first")
            one.close()
        until(lambda: ports(two) == {"rnicvm1"}, "the end of its tap device")
        with Machine("three", network="lab") as three:
            assert namespace(three) == namespace(two)
            assert (three.ip, ports(two)) == ("10.77.0.2", {"rnicvm0", "rnicvm1"})


def test_one_whose_keeper_hangs_is_joined() -> None:
    with Machine("one", network="lab") as one:
        there = namespace(one)
        os.kill(one.keeper, signal.SIGSTOP)
        try:
            with Machine("two", network="lab") as two:
                assert namespace(two) == there
        finally:
            os.kill(one.keeper, signal.SIGCONT)


def test_machines_that_start_at_once_are_in_one_network() -> None:
    def start(number: int) -> Machine:
        return Machine(f"m{number}", network="lab")

    with ThreadPoolExecutor(3) as pool:
        started = list(pool.map(start, range(3)))
    try:
        assert len({namespace(machine) for machine in started}) == 1
        assert len({machine.ip for machine in started}) == 3
    finally:
        for machine in started:
            machine.close()


@pytest.fixture
def held(machines: Path) -> Iterator[Callable[[], None]]:
    """The lock of networks, which this process has until it calls that."""
    machines.mkdir(parents=True)
    with ExitStack() as held:
        fd = os.open(machines, os.O_RDONLY)
        held.callback(os.close, fd)
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield held.close


@pytest.mark.parametrize("end", ["release", "ctrl-c", "kill"])
def test_one_that_waits_for_another_process_says_so(
    machines: Path, held: Callable[[], None], end: str
) -> None:
    command = [sys.executable, "-m", "rnic", "vm", "up", "one", "--network", "lab"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as up:
        assert up.stderr
        said = up.stderr.readline()
        assert said == f"rnic vm: waiting for process {os.getpid()}, which holds the lock on {machines}\n"
        if end == "release":
            held()
            assert up.wait(PATIENCE) == 0
            assert run(["vm", "down"]) == 0
        else:
            up.send_signal(signal.SIGINT if end == "ctrl-c" else signal.SIGKILL)
            up.wait(PATIENCE)
            until(lambda: not [*machines.iterdir()], "the end of its keeper")


@pytest.mark.usefixtures("held")
def test_one_waits_for_another_process_for_a_while_only(machines: Path) -> None:
    fd = os.open(machines, os.O_RDONLY)
    wanted = f"process {os.getpid()} has held the lock on {machines} for 0.01 s: end it"
    with pytest.raises(MachineError, match=wanted):
        lock.take(fd, machines, 0.01, pytest.fail)
    os.close(fd)


def test_nothing_stays_when_all_keepers_are_killed(machines: Path) -> None:
    with Machine("one", network="lab") as one, Machine("two", network="lab") as two:
        pids = [machine.facts[name] for machine in (one, two) for name in ("keeper", "warden", "qemu")]
        for machine in (one, two):
            os.kill(machine.keeper, signal.SIGKILL)
        until(lambda: not any(map(is_there, pids)) and not [*machines.iterdir()], "the end of all")
    with Machine("one", network="lab") as one:
        assert ports(one) == {"rnicvm0"}


def test_a_network_has_one_mtu() -> None:
    with Machine("one", network="lab", mtu=4200) as one:
        assert "mtu 4200" in one.check("ip link show rnicvm")
        with pytest.raises(
            MachineError, match="network lab, in which one is, has an MTU of 4200, not of 1500"
        ):
            Machine("two", network="lab")


def test_a_name_that_is_none() -> None:
    with pytest.raises(ValueError, match="is no name of a network"):
        Machine("one", network="../lab")


def test_the_command_of_an_ordinary_user() -> None:
    without_rights = ["setpriv", "--bounding-set", "-all,+setfcap", "--inh-caps", "-all"]

    def vm(*words: str) -> str:
        command = [*without_rights, sys.executable, "-m", "rnic", "vm", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done
        return done.stdout

    try:
        vm("up", "one", "--network", "lab")
        vm("up", "two", "--network", "lab")
        there = "readlink /proc/self/ns/user /proc/self/ns/net"
        assert vm("run", "-n", "one", there) == vm("run", "-n", "two", there)
        seen = vm("exec", "-n", "two", "--", "ip", "-o", "link")
        assert all(f"{port}:" in seen for port in ("rnicvm0", "rnicvm1"))
    finally:
        vm("down", "--all")


def test_the_command(capfd: pytest.CaptureFixture[str]) -> None:
    try:
        for name, ip in ("one", "10.77.0.2"), ("two", "10.77.0.3"):
            assert run(["vm", "up", name, "--network", "lab"]) == 0
            assert f"rxe0 at {ip}; this computer is 10.77.0.1 on rnicvm" in capfd.readouterr().out
        assert run(["vm", "list"]) == 0
        rows = [line.split() for line in capfd.readouterr().out.splitlines()]
        assert [row[3:6] for row in rows] == [
            ["address", "interface", "network"],
            ["10.77.0.2", "rnicvm", "lab"],
            ["10.77.0.3", "rnicvm", "lab"],
        ]
        command = [sys.executable, "-m", "rnic", "vm", "exec", "-n", "two", "--", "ip", "-o", "link"]
        seen = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE).stdout
        assert all(f"{device}:" in seen for device in ("rnicvm", "rnicvm0", "rnicvm1"))
    finally:
        assert run(["vm", "down", "--all"]) == 0
