# SPDX-License-Identifier: Apache-2.0
"""The peers, each run as its own measuring program; none is ever estimated.

python bench/peers.py says which of them this machine has.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import outputs
from build import HERE, OUT
from procs import AbsentError, Values, finish, free_port, one, process, wait_listening

MPI = OUT / "mpi" / "bin"
LOG = {"UCX_LOG_LEVEL": "error", "FI_LOG_LEVEL": "warn"}
UCX_TCP = {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo"}
UCX_SHM = {"UCX_TLS": "posix,cma"}
UCX_STREAM = {"write": "ucp_put_bw", "send": "tag_bw", "read": "ucp_get"}
LEAST = 0.3  # part of the wanted time that a count of iterations must fill to stand
FIRST, MOST = 500, 20_000_000
_counts: dict[tuple[object, ...], int] = {}

# program: the Debian package that has it
PACKAGES = {
    "ucx_perftest": "ucx-utils",
    "fi_pingpong": "libfabric-bin",
    "iperf3": "iperf3",
    "ib_write_bw": "perftest",
    "ib_send_lat": "perftest",
    "ib_write_lat": "perftest",
    "ib_read_lat": "perftest",
    "ibv_rc_pingpong": "ibverbs-utils",
    "cmtime": "rdmacm-utils",
    "ucmatose": "rdmacm-utils",
    "rping": "rdmacm-utils",
    "valgrind": "valgrind",
}


def need(program: str) -> str:
    found = shutil.which(program)
    if not found:
        raise AbsentError(f"apt-get install {PACKAGES[program]}")
    return found


def serve(server: list[str], client: list[str], port: int, env: dict[str, str]) -> str:
    """What the client prints, once the server listens."""
    with process(server, env=env) as listening:
        wait_listening(port, listening)
        with process(client, env=env) as asking:
            return finish(asking)


def counted(key: tuple[object, ...], seconds: float, run: Callable[[int], Values]) -> Values:
    """Of a program that takes a count of iterations: enough to fill the time; the next round begins there."""
    count, found = _counts.get(key, FIRST), {}
    for _ in range(6):
        began = time.monotonic()
        found = run(count)
        took = found.pop("took_s", time.monotonic() - began)
        enough = took > LEAST * seconds or count == MOST
        count = int(min(max(count * min(seconds / max(took, 1e-6), 30), 10), MOST))
        if enough:
            break
    _counts[key] = count
    return found


def iperf3(size: int, seconds: float) -> Values:
    """A single TCP stream, bytes that the receiver got; size: of each write."""
    program, port = need("iperf3"), free_port()
    server = [program, "-s", "-1", "-B", "127.0.0.1", "-p", str(port)]
    client = [program, "-c", "127.0.0.1", "-p", str(port), "-J", "-l", str(size)]
    return outputs.iperf3(serve(server, [*client, "-t", f"{max(1, round(seconds))}"], port, {}))


def ucx(over: dict[str, str], test: str, size: int, seconds: float) -> Values:
    """ucx_perftest over the transports of `over`, through loopback or shared memory."""
    program = need("ucx_perftest")

    def run(count: int) -> Values:
        port = free_port()
        options = ["-t", test, "-s", str(size), "-n", str(count), "-w", str(max(count // 10, 1)), "-f", "-v"]
        server = [program, "-p", str(port)]
        found = outputs.ucx_perftest(
            serve(server, [program, "127.0.0.1", "-p", str(port), *options], port, LOG | over)
        )
        return found | {"took_s": count / found["messages_per_s"]}

    return counted((test, size, *over.values()), seconds, run)


def fi_pingpong(provider: str, size: int, seconds: float) -> Values:
    """libfabric's own ping-pong over reliable datagrams; both ends must be told the same."""
    program = need("fi_pingpong")

    def run(count: int) -> Values:
        port = free_port()
        shape = ["-p", provider, "-e", "rdm", "-I", str(count), "-S", str(size)]
        server = [program, *shape, "-B", str(port)]
        found = outputs.fi_pingpong(
            serve(server, [program, *shape, "-P", str(port), "127.0.0.1"], port, LOG), size
        )
        return found | {"took_s": 2e-6 * count * found["mean_us"]}

    return counted(("fi_pingpong", provider, size), seconds, run)


def mpi(what: str, size: int, window: int, seconds: float) -> Values:
    """mpi4py over MPICH, two ranks on this host."""
    if not (MPI / "mpiexec").exists():
        raise AbsentError("sh bench/peers.sh (mpi4py and mpich from PyPI)")
    words = [what, str(size), str(window), str(seconds)]
    return one([str(MPI / "mpiexec"), "-n", "2", str(MPI / "python"), str(HERE / "mpiend.py"), *words])


def memcpy(program: Path, size: int, seconds: float) -> Values:
    return one([str(program), f"size={size}", f"seconds={seconds}"])


def bare_pingpong(program: Path, seconds: float, *, tcp: bool) -> Values:
    return one([str(program), "pingpong", f"tcp={tcp:d}", f"seconds={seconds}"])


def udp_stream(program: Path, size: int, seconds: float, *, gso: bool) -> Values:
    segment = min(size, 4096)
    return one(
        [str(program), "stream", f"size={size}", f"segment={segment}", f"gso={gso:d}", f"seconds={seconds}"]
    )


# name: (a command that tells its version, where to get it)
VERSIONS = {
    "UCX": (["ucx_info", "-v"], "apt-get install ucx-utils"),
    "libfabric": (["fi_info", "--version"], "apt-get install libfabric-bin"),
    "MPICH": ([str(MPI / "mpichversion")], "sh bench/peers.sh"),
    "mpi4py": (
        [str(MPI / "python"), "-c", "import mpi4py; print(mpi4py.__version__)"],
        "sh bench/peers.sh",
    ),
    "iperf3": (["iperf3", "--version"], "apt-get install iperf3"),
    "perftest": (["ib_write_bw", "--version"], "apt-get install perftest"),
}


def version(command: list[str], cure: str) -> str:
    """The first number with a dot in what the program says."""
    if not shutil.which(command[0]):
        return f"absent ({cure})"
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"\d+(\.\d+)+", said.stdout + said.stderr)
    return found[0] if found else "of unknown version"


def versions() -> dict[str, str]:
    return {name: version(*row) for name, row in VERSIONS.items()}


if __name__ == "__main__":
    for name, said in versions().items():
        print(f"{name} {said}")
