# SPDX-License-Identifier: Apache-2.0
"""What passes between the machines: captured on their network's bridge, read by tshark."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from rnic.vm import Machine, MachineError
from rnic.wire import Opcode

ROCE = "udp port 4791"
BLOCK = 1.2  # seconds after which the kernel has handed over all packets that came before


def require_tshark() -> None:
    """End the program where it is missing."""
    if lacks := [name for name in ("tshark", "dumpcap") if shutil.which(name) is None]:
        sys.exit(f"this computer lacks {' and '.join(lacks)} (Debian package tshark)")


class Capture:
    """dumpcap on the device that all packets of the machine's network pass, in a `with` block."""

    def __init__(self, machine: Machine, pcap: Path) -> None:
        there = [sys.executable, "-m", "rnic", "vm", "exec", "-n", machine.name, "--"]
        dumpcap = ["dumpcap", "-q", "-P", "-B", "64", "-i", machine.netdev, "-f", ROCE, "-w", str(pcap)]
        self._dumpcap = subprocess.Popen([*there, *dumpcap], stderr=subprocess.PIPE, text=True)
        assert self._dumpcap.stderr is not None
        said = line = self._dumpcap.stderr.readline()
        while "File:" not in line:  # from there on nothing is missed
            if not line:
                raise MachineError(f"dumpcap does not capture on {machine.netdev}: {said}")
            line = self._dumpcap.stderr.readline()
            said += line

    def __enter__(self) -> Capture:
        return self

    def __exit__(self, *exc: object) -> None:
        time.sleep(BLOCK)
        self._dumpcap.send_signal(signal.SIGINT)
        said = self._dumpcap.communicate(timeout=60)[1]
        if not re.search(r"received/dropped on .*: \d+/0 ", said):
            raise MachineError(f"dumpcap has not captured all: {said}")


def read(pcap: Path, *fields: str, only: str = "infiniband") -> list[list[str]]:
    """Fields of the packets, as tshark reads them."""
    words = [word for field in fields for word in ("-e", field)]
    command = ["tshark", "-n", "-r", str(pcap), "-Y", only, "-T", "fields", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [line.split("\t") for line in done.stdout.splitlines()]


def counts(pcap: Path) -> list[str]:
    """How many packets there are of each protocol, by tshark's names, and of each opcode."""
    packets = read(pcap, "_ws.col.Protocol", "infiniband.bth.opcode")
    if not packets:
        raise MachineError("no RoCE packet passed between the machines")
    protocols = Counter(protocol for protocol, _ in packets)
    opcodes = Counter(Opcode(int(opcode)).name for _, opcode in packets)
    return [f"{len(packets)} packets: {listed(protocols)}", f"opcodes: {listed(opcodes)}"]


def listed(counted: Counter[str]) -> str:
    """In one line, the most frequent first."""
    return ", ".join(f"{name} {count}" for name, count in counted.most_common())
