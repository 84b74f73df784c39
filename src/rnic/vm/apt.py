# SPDX-License-Identifier: Apache-2.0
"""Debian's packages without root: lists and downloads are in the cache, and nothing is installed."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from errno import ENOSPC
from pathlib import Path

from rnic.vm import paths
from rnic.vm.host import CommandError, log, sh
from rnic.vm.job import MachineError

FRESH = 86400  # seconds that lists of packages are not fetched again


def download(top: Path, packages: list[str], where: Path) -> list[Path]:
    """The packages' files, in an empty folder."""
    _update(top)
    words = (*_options(top), "download", *packages)
    try:
        _run(top, "apt-get", *words, cwd=where, look=_Progress(top, where, words).look)
    except CommandError as error:
        text = f"{error} (Debian may have newer ones: remove {top}, and all is fetched again)"
        raise CommandError(text) from None
    return sorted(where.glob("*.deb"))


def download_with_needs(top: Path, packages: Sequence[str], where: Path) -> list[Path]:
    """The files of the packages, and of all that they need and this computer has not installed."""
    (where / "partial").mkdir()
    options = [*_options(top), "-o", f"Dir::Cache::archives={where}", "-o", "Debug::NoLocking=1"]
    _update(top)
    words = (*options, "install", "-y", "--download-only", "--no-install-recommends", *packages)
    _run(top, "apt-get", *words, look=_Progress(top, where, words).look)
    return sorted(where.glob("*.deb"))


def depends(top: Path, package: str, pattern: str) -> list[str]:
    """The packages that one depends on and whose names match."""
    _update(top)
    shown = _run(top, "apt-cache", *_options(top), "depends", package)
    found = re.findall(rf"^ *Depends: ({pattern})$", shown, re.M)
    if not found:
        raise CommandError(f"{package} depends on no {pattern}:\n{shown}")
    return found


def _update(top: Path) -> None:
    lists, stamp = top / "apt/lists", top / "apt/updated"
    if stamp.exists() and time.time() - stamp.stat().st_mtime < FRESH:
        return
    for folder in (lists / "partial", top / "apt/archives/partial"):
        folder.mkdir(parents=True, exist_ok=True)
    _run(top, "apt-get", *_options(top), "update")
    stamp.touch()


class _Progress:
    """Says how much of a download has come, at each tenth."""

    def __init__(self, top: Path, where: Path, words: Sequence[object]) -> None:
        shown = _run(top, "apt-get", "--print-uris", *words)
        self._size = sum(map(int, re.findall(r"^'.*' \S+ (\d+) ", shown, re.M)))
        self._folders = [where, top / "apt/archives/partial"]
        self._tenths = 0
        log(f"{self._size / 1e6:.0f} MB to fetch")

    def look(self) -> None:
        """At what has come."""
        files = [file for folder in self._folders for file in folder.rglob("*")]
        here = 0
        for file in files:
            with suppress(FileNotFoundError):  # it has come whole, and was renamed
                here += file.stat().st_size
        if self._size and (tenths := here * 10 // self._size) > self._tenths:
            self._tenths = tenths
            log(f"{here / 1e6:.0f} of {self._size / 1e6:.0f} MB")


def _run(
    top: Path,
    program: str,
    *words: object,
    cwd: Path | None = None,
    look: Callable[[], object] = lambda: None,
) -> str:
    """Its output; of what it says when it fails, the errors.  `look` is called each second."""

    def look_around() -> None:  # apt-get waits for ever for a download that finds no room
        look()
        space = os.statvfs(top)
        if space.f_blocks and not (space.f_bavail if os.geteuid() else space.f_bfree):
            full = OSError(ENOSPC, os.strerror(ENOSPC), str(top))
            raise MachineError(f"no place for Debian's packages: {paths.useless(full, 'XDG_CACHE_HOME')}")

    try:
        return sh(program, *words, cwd=cwd, look=look_around)
    except CommandError as error:
        found = re.findall(r"^E: (?!Some index files)(.*)", str(error), re.M)
        raise CommandError(f"{program}: {'; '.join(found)}" if found else str(error)) from None


def _options(top: Path) -> list[str]:
    settings = {
        "Dir::State::lists": top / "apt/lists",
        "Dir::Cache": top / "apt",
        "Dir::Cache::archives": top / "apt/archives",
        "APT::Sandbox::User": "",  # who downloads is this user
        "APT::Update::Error-Mode": "any",  # or lists that cannot be fetched are a warning
    }
    return [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
