# SPDX-License-Identifier: Apache-2.0
"""The peers: iperf3 over TCP, UCX over TCP, bare UDP.  None is ever estimated."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from procs import AbsentError, BrokenError, Values, finish, free_port, one, process, wait_listening

MIB = 1 << 20
UCX = {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo", "UCX_LOG_LEVEL": "error"}
UCX_SECONDS = 0.5  # that a measurement should take; the number of iterations follows from the one before
UCX_FIRST = {8: 20000, 4096: 50000, 65536: 5000, MIB: 400}
_ucx_iterations: dict[tuple[str, int], int] = {}


def need(program: str) -> str:
    found = shutil.which(program)
    if not found:
        raise AbsentError(f"{program} is not installed")
    return found


def iperf3(size: int, seconds: float) -> Values:
    """A single TCP stream, bytes that the receiver got; size: of each write."""
    program, port = need("iperf3"), str(free_port())
    with process([program, "-s", "-1", "-B", "127.0.0.1", "-p", port]) as server:
        wait_listening(int(port), server)
        command = [
            program,
            "-c",
            "127.0.0.1",
            "-p",
            port,
            "-J",
            "-t",
            f"{max(1, round(seconds))}",
            "-l",
            str(size),
        ]
        with process(command) as client:
            received = json.loads(finish(client))["end"]["sum_received"]
    return {"gbytes_per_s": received["bits_per_second"] / 8e9}


def ucx(test: str, size: int) -> Values:
    """ucx_perftest over its tcp transport on loopback.  Latencies of *_lat tests are half round trips."""
    program, port = need("ucx_perftest"), str(free_port())
    count = _ucx_iterations.get((test, size), UCX_FIRST[size])
    with process([program, "-p", port], env=UCX) as server:
        wait_listening(int(port), server)
        options = ["-t", test, "-s", str(size), "-n", str(count), "-w", str(count // 10), "-f", "-v"]
        with process([program, "127.0.0.1", "-p", port, *options], env=UCX) as client:
            lines = [
                line.split(",")
                for line in finish(client).splitlines()
                if line[:1].strip().isdigit() or "," in line
            ]
    rows = [line for line in lines if line[0].strip().isdigit()]
    if not rows or len(rows[-1]) < 8:
        raise BrokenError(f"ucx_perftest -t {test} printed no figures")
    median, _, overall, _, bandwidth, _, rate = (float(field) for field in rows[-1][1:8])
    took = count * overall * (2e-6 if test.endswith("_lat") else 1e-6)
    _ucx_iterations[test, size] = int(min(max(count * UCX_SECONDS / max(took, 1e-3), 100), 1_000_000))
    return {"median_us": median, "gbytes_per_s": bandwidth * MIB / 1e9, "messages_per_s": rate}


def udp_pingpong(program: Path, seconds: float) -> Values:
    return one([str(program), "pingpong", f"seconds={seconds}"])


def udp_stream(program: Path, size: int, seconds: float, *, gso: bool) -> Values:
    segment = min(size, 4096)
    return one(
        [str(program), "stream", f"size={size}", f"segment={segment}", f"gso={gso:d}", f"seconds={seconds}"]
    )


def versions() -> dict[str, str]:
    """What is installed, in the programs' own words."""
    found = {}
    for name, command in {"iperf3": ["iperf3", "--version"], "UCX": ["ucx_info", "-v"]}.items():
        if not shutil.which(command[0]):
            found[name] = "absent"
            continue
        said = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
        found[name] = said[0].lstrip("# ").split()[1] if said else "?"
    return found
