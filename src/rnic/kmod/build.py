# SPDX-License-Identifier: Apache-2.0
"""Building modules with this computer's compiler, for the kernel of a machine or for this computer's."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from rnic.kmod.errors import KmodError
from rnic.kmod.folder import Folder
from rnic.vm import images, kernel
from rnic.vm.host import CommandError, found, sh

TOOLS = {"gcc": "gcc", "make": "make"}  # programs, and the Debian packages that have them
_COMPLAINT = re.compile(
    r"^(?:\S+?:\d+:(?:\d+:)? |[\w./-]+: )?(?:fatal )?(error|warning): |^(ERROR|WARNING): modpost"
)
_STEP = re.compile(r"  [A-Z]{2,} ")  # such as "  MODPOST Module.symvers"
_ODD = re.compile(r"[\s:$#%;&|<>()'\"\\`*?\[\]~=]")  # what make or its shell reads as something else
_NOISE = ("the compiler differs from the one used", "You are using:", "The kernel was built by:")
Make = Callable[[Path], str]


class Built(NamedTuple):
    """How a build went."""

    errors: str  # what the compiler said, if the module was not built
    warnings: str


class Target(NamedTuple):
    """A kernel that modules are built for."""

    release: str
    make: Make


def for_machine() -> Target:
    """The kernel of `rnic vm`."""
    _need_tools()
    debian, headers = images.headers()
    return Target(debian.release, lambda source: kernel.build(headers, source, "W=1"))


def for_here() -> Target:
    """The kernel that this computer runs."""
    _need_tools()
    release = os.uname().release
    headers = Path("/lib/modules", release, "build")
    if not (headers / "Makefile").exists():
        raise KmodError(
            f"{headers} is not there: this kernel's headers are missing; "
            f"on Debian apt-get install linux-headers-{release}; or leave out --here"
        )
    return Target(release, lambda source: sh("make", "-C", headers, f"M={source}", "W=1", "modules"))


def build(folder: Folder, target: Target) -> Built:
    """Build all modules of a folder, in it."""
    if found := _ODD.search(str(folder.path)):
        raise KmodError(
            f"{folder.path}: the kernel's makefiles take no {found[0]!r} in a folder's name: use another one"
        )
    if not os.access(folder.path, os.W_OK):
        raise KmodError(f"{folder.path}: no permission to write there, where the modules are built")
    try:
        printed = target.make(folder.path)
    except CommandError as error:
        return Built(complaints(str(error), folder.path) or str(error), "")
    return Built("", complaints(printed, folder.path))


def complaints(printed: str, folder: Path) -> str:
    """What compiler and modpost said of the sources, without make's own lines."""
    kept, said = False, []
    for line in printed.replace(f"{folder}/", "").splitlines():
        if _STEP.match(line) or any(noise in line for noise in _NOISE):
            kept = False
        elif _COMPLAINT.search(line):
            kept = True
        elif not line.startswith((" ", "\t")) and ": note: " not in line:
            kept = False
        if kept:
            said.append(line)
    return "\n".join(said)


def _need_tools() -> None:
    lacks = [package for program, package in TOOLS.items() if not found(program)]
    if lacks:
        words = " ".join(lacks)
        raise KmodError(f"no compiler here: {words} missing; on Debian apt-get install {words}")
