# SPDX-License-Identifier: Apache-2.0
"""A computer on which machines can be started, with a stand-in for QEMU; nothing boots."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rnic.vm import host, images
from vm import fake_qemu

DIE = "echo 'Kernel panic - not syncing: enough' >/proc/$PPID/fd/1; kill -9 $PPID"  # for a machine
RELEASE = "6.1.0-0-fake"
NEVER_RUN = ("busybox", "modprobe", "rdma", "apt-get", "dpkg-deb")


@pytest.fixture
def computer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its folder: "run" has the machines', "programs" what is in PATH ahead of all else."""
    return furnish(tmp_path, monkeypatch)


def furnish(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    programs = folder / "programs"
    programs.mkdir()
    for name in NEVER_RUN:
        _program(programs / name, "exit 1")
    _program(programs / "qemu-system-x86_64", f'exec {sys.executable} {fake_qemu.__file__} "$@"')
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder / "run"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    cache = folder / "cache/rnic/vm"
    (cache / "kernel").mkdir(parents=True)
    (cache / "kernel/unpacked").write_text(f"{RELEASE} 6.1")
    (cache / "initrd.cpio").touch()
    (cache / "initrd.made-of").write_text(images.recipe(RELEASE))
    return folder


def _program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def tap(computer: Path) -> Path:
    """A computer that has TAP devices."""
    need_tap()
    return computer


def need_tap() -> None:
    if not host.TUN.exists() or not shutil.which("ip", path=host.search_path()):
        pytest.skip("no /dev/net/tun, or no ip")


@pytest.fixture
def machines(tap: Path) -> Iterator[Path]:
    """The folder of all machines; none is left behind."""
    folder = tap / "run/rnic/vm"
    yield folder
    assert not folder.exists() or not [*folder.iterdir()]


def is_there(pid: int) -> bool:
    """Whether a process runs: one that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
