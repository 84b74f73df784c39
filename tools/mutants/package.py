# SPDX-License-Identifier: Apache-2.0
"""A copy of the package that is made of links, but for what is to differ."""

from __future__ import annotations

import shutil
from pathlib import Path

from tools.mutants.outcome import folder


def package_of_links(root: Path, at: Path, extension: Path, changed: dict[str, str] | None = None) -> Path:
    """A folder for PYTHONPATH: rnic as its sources are, with that extension and those files instead."""
    shutil.rmtree(at, ignore_errors=True)
    source, package = root / "src/rnic", folder(at / "rnic")
    _link_all(source, package)
    _open_up(package / "_nic", source / "_nic")
    (package / "_nic" / "nic.so").symlink_to(extension.resolve())
    for path, text in (changed or {}).items():
        file = at / Path(path).relative_to("src")
        _open_up(file.parent, (root / path).parent)
        file.unlink()
        file.write_text(text)
    return at


def _open_up(place: Path, origin: Path) -> None:
    """A link to a folder becomes a folder of links."""
    place.unlink()
    _link_all(origin, folder(place))


def _link_all(origin: Path, place: Path) -> None:
    for entry in origin.iterdir():
        if entry.name != "__pycache__":
            (place / entry.name).symlink_to(entry)
