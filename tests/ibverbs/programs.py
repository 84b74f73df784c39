# SPDX-License-Identifier: Apache-2.0
"""To run programs that are linked with libibverbs over rnic's library: both ends of one, on one host."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

import rnic
from packages import need_package
from waiting import PATIENCE, until

PACKAGE = Path(rnic.__file__).parent
LIBRARY = PACKAGE / "lib" / "libibverbs.so.1"
OURS = [f"-I{PACKAGE / 'include'}", f"-L{LIBRARY.parent}", "-l:libibverbs.so.1"]
"""How a program is compiled where rdma-core's development files are not installed."""
RDMACM = "-l:librdmacm.so.1"
DEVICE = "roce_lo"
MISSING = {  # what the compiler says, and whose fault it is
    "cannot find -l:librdmacm.so.1": "librdmacm1",
    "cannot find -libverbs": "libibverbs-dev",
    "cannot find -lrdmacm": "librdmacm-dev",
    "infiniband/verbs.h: No such file": "libibverbs-dev",
    "rdma/rdma_cma.h: No such file": "librdmacm-dev",
}


def compiled(program: Path, *words: str | Path) -> Path:
    """A program in C; warnings are errors. Skips the test where it cannot be made."""
    if not shutil.which("cc"):
        need_package("gcc")
    command = ["cc", "-D_GNU_SOURCE", "-Wall", "-Werror", *map(str, words), "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    needs_what_it_was_linked_with(done.stderr)
    assert not done.returncode, done.stderr
    return program


def needs_what_it_was_linked_with(said: str) -> None:
    """Skips the test where a compiler says that a library or its headers are missing."""
    for missing, package in MISSING.items():
        if missing in said:
            need_package(package)


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "LD_LIBRARY_PATH": str(LIBRARY.parent), "RNIC_VERBS_DEBUG": "1", **more}


@dataclass
class Ended:
    """A program that has ended well, and what it has printed."""

    text: str


def run(*command: str | Path, **more: str) -> Ended:
    done = subprocess.run(
        list(map(str, command)),
        env=environment(**more),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}"
    return Ended(done.stdout)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("", 0))
        port: int = s.getsockname()[1]
        return port


def listens(port: int) -> bool:
    """Whether a process of this network namespace listens. To connect would take the place of the peer."""
    tables = (Path("/proc/net", name).read_text() for name in ("tcp", "tcp6"))
    rows = [line.split() for table in tables for line in table.splitlines()[1:]]
    return any(row[1].endswith(f":{port:04X}") and row[3] == "0A" for row in rows)


def both_ends(*command: str, port_option: str = "-p", **more: str) -> tuple[str, str]:
    """What server and client of a program have printed.  Each has to end well."""
    port = free_port()
    words = [*command, port_option, str(port)]
    with subprocess.Popen(
        words, env=environment(**more), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as server:
        try:
            until(lambda: listens(port) or server.poll() is not None, f"{command[0]} listens")
            client = run(*words, "127.0.0.1", **more)
            text, _ = server.communicate(timeout=PATIENCE)
        finally:
            server.kill()
    assert server.returncode == 0, text
    return text, client.text
