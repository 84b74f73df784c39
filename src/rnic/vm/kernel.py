# SPDX-License-Identifier: Apache-2.0
"""Debian's kernel: its image and modules, its headers when they are asked for, and building modules."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

from rnic.vm import apt
from rnic.vm.host import log, sh


class Kernel(NamedTuple):
    """Debian's kernel, unpacked."""

    top: Path
    release: str  # as uname -r says it
    version: str  # of the package

    @property
    def image(self) -> Path:
        """What QEMU starts."""
        return self.top / f"boot/vmlinuz-{self.release}"


def fetch(top: Path) -> Kernel:
    """Debian's newest kernel."""
    where, done = top / "kernel", top / "kernel/unpacked"
    if not done.exists():
        shutil.rmtree(where, ignore_errors=True)
        where.mkdir()
        (image,) = apt.depends(top, "linux-image-amd64", r"linux-image-\S+")
        log(f"downloading Debian's kernel {image}")
        with tempfile.TemporaryDirectory(dir=top) as tmp:
            (deb,) = apt.download(top, [image], Path(tmp))
            version = sh("dpkg-deb", "-f", deb, "Version").strip()
            sh("dpkg-deb", "-x", deb, where)
        release = image.removeprefix("linux-image-")
        sh("depmod", "-b", where, release)
        done.write_text(f"{release} {version}")
    return Kernel(where, *done.read_text().split())


def headers(top: Path, kernel: Kernel) -> Path:
    """Beside the kernel."""
    done = kernel.top / "headers"
    if not done.exists():
        package = f"linux-headers-{kernel.release}"
        log(f"downloading {package}")
        with tempfile.TemporaryDirectory(dir=top) as tmp:
            needed = apt.depends(top, package, r"linux-(?:headers|kbuild)-\S+")
            for deb in apt.download(top, [package, *needed], Path(tmp)):
                sh("dpkg-deb", "-x", deb, kernel.top)
        done.touch()
    return kernel.top / f"usr/src/linux-headers-{kernel.release}"


def build(headers: Path, source: Path, *words: str) -> str:
    """Build modules with this computer's compiler; what make printed.

    They are without what debuggers read: with it they are twenty times as long, and an emulated processor
    takes seconds to load them.
    """
    common = next(
        headers.parent.glob("linux-headers-*-common/Makefile")
    )  # headers/Makefile looks in /usr/src
    said = sh("make", "-C", headers, "-f", common, f"M={source}", "CC=gcc", *words, "modules")
    for module in source.rglob("*.ko"):
        sh("strip", "--strip-debug", module)
    return said


def modules(kernel: Kernel, names: list[str]) -> list[Path]:
    """The files of these modules and of all that they need, in the order to load them."""
    shown = sh("modprobe", "-d", kernel.top, "-S", kernel.release, "-a", "--show-depends", *names)
    return [Path(p) for p in dict.fromkeys(re.findall(r"^insmod (\S+)", shown, re.M))]
