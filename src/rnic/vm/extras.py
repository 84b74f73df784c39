# SPDX-License-Identifier: Apache-2.0
"""Debian packages that this computer lacks, for a machine alone: fetched with what they need, unpacked.

They are laid over the machine's /usr and /etc. Their scripts do not run.
"""

from __future__ import annotations

import re
import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rnic.vm import apt
from rnic.vm.host import log, sh

NAMES = re.compile(r"[a-z0-9][a-z0-9.+-]+")  # Debian policy 5.6.1
LAID_OVER = ("usr", "etc")
UNPACK = 'dpkg-deb --fsys-tarfile "$0" | tar -x --keep-directory-symlink -C "$1"'


def fetch(top: Path, packages: Sequence[str]) -> Path:
    """The folder that has them, made when it is not there yet."""
    for name in packages:
        if not NAMES.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a Debian package")
    folder = top / "packages" / "+".join(sorted(set(packages)))
    if not folder.exists():
        log(f"downloading {' '.join(packages)}, and what that needs")
        folder.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=top) as tmp:
            debs = apt.download_with_needs(top, packages, Path(tmp))
            _unpack(debs, Path(tmp) / "root").rename(folder)
    return folder


def _unpack(debs: list[Path], root: Path) -> Path:
    for name in ("bin", "sbin", "lib"):  # as they are on a system
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")
    for deb in debs:
        sh("sh", "-c", UNPACK, deb, root)
    return root


def script(folders: Sequence[Path]) -> str:
    """What lays them over a machine's own, the first uppermost, as a shell script."""
    mounts = []
    for name in LAID_OVER:
        lower = [shlex.quote(str(folder / name)) for folder in folders if (folder / name).is_dir()]
        if lower:
            mounts.append(f"mount -t overlay overlay -o nosuid,lowerdir={':'.join(lower)}:/{name} /{name}")
    return "set -e; modprobe overlay; " + "; ".join(mounts)
