# SPDX-License-Identifier: Apache-2.0
"""Files and folders into a machine and out of it, by tar at both ends."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from rnic.vm.job import MachineError

if TYPE_CHECKING:
    from rnic.vm.machine import Machine

CHUNK = 1 << 18


def put(machine: Machine, path: Path, folder: str) -> str:
    """Its path there."""
    path = path.absolute()
    job = machine.spawn(f"mkdir -p {shlex.quote(folder)} && tar -xo -C {shlex.quote(folder)}", input=True)
    command = ["tar", "-c", "-C", str(path.parent), "--", path.name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as tar:
        assert tar.stdout is not None
        assert tar.stderr is not None
        while data := tar.stdout.read(CHUNK):
            job.write(data)
        said = tar.stderr.read().decode(errors="replace")
    job.close_input()
    rc, out = job.wait()
    if tar.returncode or rc:
        raise MachineError(f"{path} could not be put to {folder}: {said or out}".strip())
    return f"{folder.rstrip('/')}/{path.name}"


def get(machine: Machine, path: str, folder: Path) -> Path:
    """Its path here."""
    parent, _, name = path.rstrip("/").rpartition("/")
    command = ["tar", "-xo", "-C", str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as tar:
        assert tar.stdin is not None
        assert tar.stderr is not None
        said = bytearray()
        job = machine.spawn(
            f"tar -c -C {shlex.quote(parent or '/')} -- {shlex.quote(name)}",
            output=tar.stdin.write,
            errors=lambda data: said.extend(data),
        )
        rc, _ = job.wait(None)
        tar.stdin.close()
        said += tar.stderr.read()
    if tar.returncode or rc:
        raise MachineError(f"{path} could not be got: {said.decode(errors='replace')}".strip())
    return folder / name
