# SPDX-License-Identifier: Apache-2.0
"""Loading and unloading modules; what the kernel says then."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from rnic.kmod import log
from rnic.kmod.errors import KmodError
from rnic.kmod.folder import Folder
from rnic.kmod.place import Place
from rnic.vm import MachineError, Result
from rnic.vm.host import sh

# What insmod(8) and rmmod(8) say, and what that means.
_LOADING = {
    "File exists": "it is loaded already: rnic kmod unload first",
    "Invalid module format": "it was built for another kernel: rnic kmod build",
    "Unknown symbol": "it calls functions of a module that is not loaded: load that one first",
    "Operation not permitted": "this kernel takes no modules from you: it may want signed ones",
}
_UNLOADING = {
    "is not currently loaded": "it is not loaded",
    "is in use": "it is in use",
    "builtin": "it is a part of the kernel",
}


class OopsError(KmodError):
    """The kernel has oopsed meanwhile."""


class StuckError(KmodError):
    """A module's init or exit has not returned, and the machine must be ended; or it has died."""


def load(place: Place, folder: Folder, module: str, parameters: Sequence[str] = ()) -> str:
    """Load a module, after the kernel's own that it needs; what the kernel said."""
    place.check(log.mark(f"loading {module}"))
    file = shlex.quote(place.path(folder.file(module)))
    ours = {known_as(one): one for one in folder.modules}
    needs = [known_as(needed) for needed in _needs(folder.file(module))]
    for needed in needs:
        if needed in ours and not is_loaded(place, needed):
            load(place, folder, ours[needed])
    others = " ".join(needed for needed in needs if needed not in ours)
    place.run(f"for name in {others}; do test -d /sys/module/$name || modprobe $name; done")
    words = " ".join(map(shlex.quote, parameters))
    return _do(place, f"insmod {file} {words}", f"{module} does not load", _LOADING)


def unload(place: Place, folder: Folder, module: str) -> str:
    """Unload it, and what it needed of its folder; what the kernel said."""
    needed = [one for one in folder.modules if is_user(place, module, one)]
    place.check(log.mark(f"unloading {module}"))
    for one in (module, *needed):
        said = _do(place, f"rmmod {one}", f"{one} does not unload", _UNLOADING)
    return said


def known_as(module: str) -> str:
    """The kernel's name of a module whose file is called that."""
    return module.replace("-", "_")


def is_user(place: Place, module: str, needed: str) -> bool:
    """Whether a loaded module needs another one."""
    holders = f"/sys/module/{known_as(needed)}/holders"
    return place.run(f"test -e {holders}/{known_as(module)}").rc == 0


def is_loaded(place: Place, module: str) -> bool:
    """Whether it is."""
    return place.run(f"test -d /sys/module/{known_as(module)}/holders").rc == 0


def _needs(file: Path) -> list[str]:
    return [name for name in sh("modinfo", "-F", "depends", file).strip().split(",") if name]


def _do(place: Place, command: str, failed: str, meanings: dict[str, str]) -> str:
    try:
        result = place.run(command)
    except MachineError as error:
        raise StuckError(f"{failed}: {error}") from None
    said = log.since(place.log())
    if trouble := log.trouble(said):
        raise OopsError(f"the kernel is in trouble after {command.partition(' ')[0]}\n{trouble}")
    if result.rc:
        raise KmodError("\n".join(filter(None, (f"{failed}: {_why(result, meanings)}", said))))
    return said


def _why(result: Result, meanings: dict[str, str]) -> str:
    for words, meaning in meanings.items():
        if words in result.out:
            return meaning + _users(result.out)
    text = re.sub(r"^(insmod|rmmod): ERROR: (could not insert module \S+: )?", "", result.out.strip())
    return text or f"exit {result.rc}"


def _users(text: str) -> str:
    """Which other modules use it, if rmmod says that."""
    found = re.search(r"is in use by: (.*)", text)
    return f" by {found[1]}: unload that first" if found else ""
