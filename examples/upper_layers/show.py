# SPDX-License-Identifier: Apache-2.0
"""Protocols above RDMA, between two virtual machines with the Linux kernel's own soft RoCE.

    python show.py nvme|nfs|rds|all [--capture FOLDER]

The machines are in a network of their own; the first serves, the second uses. What they say to each other is
captured, read by tshark and counted. What each protocol does here is in a file of its name beside this one.
The machines need what `rnic vm` needs; the captures need Debian's tshark. Exit status 1: something failed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType

import nfs
import nvme
import rds

from rnic.vm import Machine, MachineError
from rnic.vm.host import CommandError
from wire import Capture, counts, require_tshark

LAYERS: dict[str, ModuleType] = {"nvme": nvme, "nfs": nfs, "rds": rds}
MTU = 4200  # RDMA packets of 4096 bytes


def main() -> int:
    """Show what is asked for; the exit status."""
    parser = argparse.ArgumentParser(description="Protocols above RDMA, between two virtual machines.")
    parser.add_argument("layer", choices=[*LAYERS, "all"])
    parser.add_argument("--capture", metavar="FOLDER", type=Path, help="keep NAME.pcap there")
    asked = parser.parse_args()
    names = list(LAYERS) if asked.layer == "all" else [asked.layer]
    require_tshark()
    with ExitStack() as stack:
        folder = asked.capture or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            parser.error(f"argument --capture: {folder}: {error.strerror}")
        packages = [package for name in names for package in LAYERS[name].PACKAGES]
        try:
            server, client = start_two(stack, packages)
        except (MachineError, CommandError) as error:
            sys.exit(f"the machines do not start: {error}")
        good = [show(name, server, client, folder / f"{name}.pcap") for name in names]
    return 0 if all(good) else 1


def start_two(stack: ExitStack, packages: list[str], transport: str = "rxe") -> list[Machine]:
    """Two machines in one network, which end with the stack; the one with the lower address is first."""

    def start(_: int) -> Machine:
        network = f"upper{os.getpid()}"
        return Machine(transport=transport, mtu=MTU, memory_mb=768, packages=packages, network=network)

    with ThreadPoolExecutor(2) as pool:
        started = [stack.enter_context(machine) for machine in pool.map(start, range(2))]
    return sorted(started, key=lambda machine: machine.ip)


def show(name: str, server: Machine, client: Machine, pcap: Path) -> bool:
    """Run one protocol and print what came of it; whether it worked."""
    layer = LAYERS[name]
    print(f"{name}: {layer.TITLE}", flush=True)
    try:
        for machine in (server, client):
            load(machine, layer.MODULES)
        with Capture(server, pcap):
            for line in layer.show(server, client):
                print(f"  {line}", flush=True)
        for line in [*counts(pcap), *layer.on_the_wire(pcap)]:
            print(f"  {line}", flush=True)
    except (MachineError, TimeoutError, ValueError) as error:
        print(f"  failed: {error}", flush=True)
        return False
    return True


def load(machine: Machine, modules: list[str]) -> None:
    """Load modules of the machine's kernel, which may lack one."""
    for module in modules:
        rc, said = machine.run(f"modprobe {module}")
        if rc:
            kernel = machine.facts["kernel"]
            raise MachineError(f"the module {module} of Linux {kernel} cannot be loaded: {said}")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)  # as a shell tells of Ctrl-C; the machines have ended
