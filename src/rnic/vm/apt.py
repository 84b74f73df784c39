# SPDX-License-Identifier: Apache-2.0
"""Debian's packages without root: lists and downloads are in the cache, and nothing is installed."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path

from rnic.vm.host import CommandError, sh

FRESH = 86400  # seconds that lists of packages are not fetched again


def download(top: Path, packages: list[str], where: Path) -> list[Path]:
    """The packages' files, in an empty folder."""
    _update(top)
    try:
        _run("apt-get", *_options(top), "download", *packages, cwd=where)
    except CommandError as error:
        text = f"{error} (Debian may have newer ones: remove {top}, and all is fetched again)"
        raise CommandError(text) from None
    return sorted(where.glob("*.deb"))


def download_with_needs(top: Path, packages: Sequence[str], where: Path) -> list[Path]:
    """The files of the packages, and of all that they need and this computer has not installed."""
    (where / "partial").mkdir()
    options = [*_options(top), "-o", f"Dir::Cache::archives={where}", "-o", "Debug::NoLocking=1"]
    _update(top)
    _run("apt-get", *options, "install", "-y", "--download-only", "--no-install-recommends", *packages)
    return sorted(where.glob("*.deb"))


def depends(top: Path, package: str, pattern: str) -> list[str]:
    """The packages that one depends on and whose names match."""
    _update(top)
    shown = _run("apt-cache", *_options(top), "depends", package)
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
    _run("apt-get", *_options(top), "update")
    stamp.touch()


def _run(program: str, *words: object, cwd: Path | None = None) -> str:
    """Its output; of what it says when it fails, the errors."""
    try:
        return sh(program, *words, cwd=cwd)
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
