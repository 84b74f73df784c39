# SPDX-License-Identifier: Apache-2.0
"""What became of a mutant."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from enum import Enum
from pathlib import Path


class Outcome(Enum):
    KILLED = "killed"
    SURVIVED = "survived"
    SAME = "the same machine code"
    NONE = "does not compile"
    KNOWN = "survives, with a reason in known.toml"


def run(command: list[str], limit: float, **options: object) -> bool:
    """Whether a command succeeds in time; what it has begun ends with it."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        **options,  # type: ignore[call-overload]
    )
    try:
        return bool(process.wait(limit) == 0)
    except subprocess.TimeoutExpired:
        return False
    finally:
        end_group(process)


def end_group(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def folder(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path
