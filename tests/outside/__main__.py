# SPDX-License-Identifier: Apache-2.0
"""Programs that people run, as the package indexes have them, each under `rnic run` for a while.

    PYTHONPATH=tests python -m outside --seconds 60

Wheels go into a virtual environment of their own. Programs of Debian are those that are installed: one that
is not there has not run, and the end says so.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import namespaces

HERE = Path(__file__).parent
ADDRESS, NETDEV = "10.9.0.1", "out0"
DEVICE = f"roce_{NETDEV}"
WHEELS = ("numpy", "nixl-cu12", "mooncake-transfer-engine-non-cuda")
ENDS = 120  # seconds that a program has beyond its time


@dataclass(frozen=True)
class Program:
    """A program that moves and compares data for as long as it is told."""

    words: tuple[str, ...]
    needs: tuple[str, ...]
    """A command that succeeds where it is installed."""
    package: str


PYTHON, SECONDS = "{python}", "{seconds}"
DEBIANS = "/usr/bin/python3"  # which has mpi4py and rados
BY_UCX = ("env", "UCX_TLS=rc_v", f"UCX_NET_DEVICES={DEVICE}:1", "OMPI_ALLOW_RUN_AS_ROOT=1")
OPEN_MPI = (
    "mpirun --oversubscribe -n 4 --mca pml ucx --mca osc ucx --mca btl ^openib,tcp,vader "
    "--mca opal_common_ucx_devices any"
)
PROGRAMS = {
    "NIXL": Program(
        ("env", "UCX_TLS=rc_v,ud_v", PYTHON, f"{HERE}/run_nixl.py", SECONDS),  # by verbs, not by memory
        (PYTHON, "-c", "import nixl_cu12"),
        "nixl-cu12 of PyPI",
    ),
    "Mooncake's transfer engine": Program(
        (PYTHON, f"{HERE}/run_mooncake.py", SECONDS, DEVICE),
        (PYTHON, "-c", "import mooncake.engine"),
        "mooncake-transfer-engine-non-cuda of PyPI",
    ),
    "QEMU's live migration": Program(
        (sys.executable, f"{HERE}/run_qemu.py", SECONDS, ADDRESS),
        ("qemu-system-x86_64", "--version"),
        "qemu-system-x86 of Debian",
    ),
    "iSER": Program(
        (sys.executable, f"{HERE}/run_iser.py", SECONDS, ADDRESS),
        ("sh", "-c", "command -v tgtd && command -v qemu-io && ls /usr/lib/*/qemu/block-iscsi.so"),
        "tgt, qemu-utils or qemu-block-extra of Debian",
    ),
    "fio": Program(
        (sys.executable, f"{HERE}/run_fio.py", SECONDS, ADDRESS),
        ("fio", "--enghelp=rdma"),
        "fio of Debian",
    ),
    "Ceph": Program(
        (DEBIANS, f"{HERE}/run_ceph.py", SECONDS, ADDRESS, DEVICE),
        ("sh", "-c", f"command -v ceph-mon && command -v ceph-osd && {DEBIANS} -c 'import rados'"),
        "ceph-mon, ceph-osd or python3-rados of Debian",
    ),
    "libfabric": Program(
        (sys.executable, f"{HERE}/run_libfabric.py", SECONDS, ADDRESS, DEVICE),
        ("fi_info", "--version"),
        "libfabric-bin of Debian",
    ),
    "Open MPI": Program(
        (
            *BY_UCX,
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
            *(sys.executable, f"{HERE}/run_again.py", SECONDS),
            *(*OPEN_MPI.split(), DEBIANS, f"{HERE.parent}/programs/mpi_ranks.py"),
        ),
        (DEBIANS, "-c", "import os, mpi4py; os.execlp('mpirun', 'mpirun', '--version')"),
        "openmpi-bin or python3-mpi4py of Debian",
    ),
}


def network() -> None:
    """An interface with an address: programs look for a device beside the loopback's."""
    namespaces.network_of_our_own(as_root=True)
    for words in (
        f"link add {NETDEV} type veth peer name out1",
        f"addr add {ADDRESS}/24 dev {NETDEV}",
        f"link set {NETDEV} up",
        "link set out1 up",
    ):
        subprocess.run(["ip", *words.split()], check=True)


def wheels(folder: Path) -> Path:
    """The Python of a virtual environment with the wheels that can be had."""
    python = folder / "bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    for wheel in WHEELS:  # what they need of CUDA, gigabytes, these programs do without
        pip = (python, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--no-deps", wheel)
        subprocess.run(pip, check=False)
    return python


def is_there(words: list[str]) -> bool:
    with suppress(OSError):
        return subprocess.run(words, capture_output=True, check=False).returncode == 0
    return False


def attempt(program: Program, python: Path, seconds: float) -> str:
    """What became of it: "ran", "failed: why" or "not run: why"."""

    def made(words: tuple[str, ...]) -> list[str]:
        return [word.format(python=python, seconds=seconds) for word in words]

    if not is_there(made(program.needs)):
        return f"not run: {program.package} is not installed, or does not work"
    command = [sys.executable, "-m", "rnic", "run", *made(program.words)]
    print(shlex.join(["rnic", *command[3:]]), flush=True)
    try:
        done = subprocess.run(command, timeout=seconds + ENDS, check=False)
    except subprocess.TimeoutExpired:
        return "failed: it did not end"
    return "ran" if done.returncode == 0 else f"failed: exit code {done.returncode}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="outside", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="that each program runs")
    parser.add_argument("--folder", type=Path, default=Path(".venv/outside"), help="for the wheels")
    args = parser.parse_args()
    python = wheels(args.folder.absolute())
    network()
    found = {name: attempt(program, python, args.seconds) for name, program in PROGRAMS.items()}
    for name, result in found.items():
        print(f"{name}: {result}")
    sys.exit(any(result.startswith("failed") for result in found.values()))


if __name__ == "__main__":
    main()
