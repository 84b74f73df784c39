# SPDX-License-Identifier: Apache-2.0
"""`rnic vm` for somebody who may not make network devices: the machine has a namespace of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from needs import EXTRA

from rnic.vm import Machine
from waiting import until

pytestmark = pytest.mark.interop

# Root, but for its rights; one of them is needed so that it stays root in a namespace.
WITHOUT_RIGHTS = ["setpriv", "--bounding-set", "-all,+setfcap", "--inh-caps", "-all"]
RNIC = [sys.executable, "-m", "rnic"]
SECONDS = 120  # that nothing takes


def vm(*words: str, **options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*WITHOUT_RIGHTS, *RNIC, "vm", *words], capture_output=True, text=True, timeout=SECONDS, **options
    )


def checked(*words: str, **options: str) -> str:
    done = vm(*words, **options)
    assert done.returncode == 0, done
    return done.stdout


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """One that is up, and after which nothing is left."""
    run, before = tmp_path_factory.mktemp("run"), network_devices()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(run))
        assert "rxe0 and siw0 at 10.77.0.2" in checked(
            *(
                "up",
                "--transport",
                "both",
                "--mtu",
                "4200",
                "--tools",
                *(f"--package={name}" for name in EXTRA),
            )
        )
        assert network_devices() == before  # its own is in its namespace
        with Machine.attach("box") as machine:
            pids = [machine.facts[name] for name in ("warden", "keeper", "qemu")]
            yield machine
        checked("down")
        until(lambda: not any(map(is_there, pids)), "the end of its processes")
        assert not [*(run / "rnic/vm").iterdir()]


def network_devices() -> list[Path]:
    """Of this computer; another machine may be up."""
    return sorted(Path("/sys/class/net").iterdir())


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}/exe").exists()


@pytest.mark.usefixtures("machine")
def test_its_devices_and_its_network() -> None:
    devices = checked("run", "ibv_devices")
    assert "rxe0" in devices
    assert "siw0" in devices
    assert "mtu 4200" in checked("run", "ip link show eth0")
    assert "rnicvm0" in checked("exec", "--", "ip", "link")


@pytest.mark.usefixtures("machine")
def test_it_has_a_package_that_is_not_here_and_all_modules_of_its_kernel() -> None:
    assert "nvme version" in checked("run", "nvme version")
    assert checked("run", "modprobe nvme-rdma; lsmod | grep -c ^nvme_rdma") == "1\n"


@pytest.mark.usefixtures("machine")
def test_it_has_what_modules_are_built_with_where_a_system_has_it() -> None:
    version = checked("run", "make -sC /lib/modules/$(uname -r)/build kernelversion; uname -r").split()
    assert version[1].startswith(version[0].rpartition(".")[0])
    assert checked("run", "modinfo -F filename rdma_rxe").startswith(f"/lib/modules/{version[1]}/")


@pytest.mark.parametrize("transport", ["roce", "iwarp"])
def test_rnic_on_this_computer_pings_the_kernel(machine: Machine, transport: str) -> None:
    server = machine.spawn("rping -s -a 0.0.0.0 -C 2 -v")
    try:
        machine.check("until rdma resource show cm_id | grep -q 7174; do sleep .1; done", 20)
        said = checked(
            *("exec", "--", "env", f"RNIC_TRANSPORT={transport}", *RNIC),
            *("rping", "-c", "-a", machine.ip, "-C", "2", "-v"),
        )
        assert said.count("ping data: rdma-ping-") == 2
    finally:
        server.kill()
        server.wait(20)


@pytest.mark.usefixtures("machine")
def test_a_file_that_changes_here_changes_there(tmp_path: Path) -> None:
    for text in ("one", "another"):
        (tmp_path / "file").write_text(text)
        assert checked("run", "cat file; pwd", cwd=str(tmp_path)) == f"{text}{tmp_path}\n"


def test_what_modules_print_is_in_the_log(machine: Machine) -> None:
    machine.check("echo 'a message' >/dev/kmsg")
    assert "a message" in until(lambda: "a message" in (said := checked("log")) and said, "the message")


def test_silence_is_told(machine: Machine) -> None:
    os.kill(machine.facts["qemu"], signal.SIGSTOP)
    try:
        until(lambda: machine.state == "silent", "the news")
        assert "has not answered for 10 s" in checked("list")
    finally:
        os.kill(machine.facts["qemu"], signal.SIGCONT)
    until(lambda: machine.state == "up", "the news that it lives")


def test_a_shell(machine: Machine) -> None:
    job = machine.spawn("exec bash", tty=[24, 80], cwd=["/run"], env={"TERM": "dumb"})
    job.expect("# ")
    job.write(b"stty size; exit 5\n")
    job.expect("24 80")
    assert job.wait().rc == 5
