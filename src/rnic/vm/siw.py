# SPDX-License-Identifier: Apache-2.0
"""siw, the kernel's iWARP device, which Debian's kernel leaves out: built for that kernel of Debian's source.

What siw has decided once for all, a test may decide each time: its constants become module parameters.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

from rnic.vm import apt
from rnic.vm.host import log, sh
from rnic.vm.kernel import Kernel, build

# Constants of siw by source file, with moduleparam.h's names of their types.
CONSTANTS = {
    "siw_main.c": {
        "mpa_version": "byte",
        "mpa_crc_required": "bool",
        "mpa_crc_strict": "bool",
        "peer_to_peer": "bool",
        "siw_tcp_nagle": "bool",
        "try_gso": "bool",
        "zcopy_tx": "bool",
    },
    "siw_cm.c": {"rtr_type": "ushort", "relaxed_ird_negotiation": "bool"},
}
SOURCE = "siw"  # in the directory of the unpacked kernel
UNPACK = """dpkg-deb --fsys-tarfile "$0" | tar -xO --wildcards './usr/src/*.tar.xz' |
    tar -xJ -C "$1" --strip-components=5 --wildcards '*/drivers/infiniband/sw/siw'"""


def module(top: Path, kernel: Kernel, headers: Path) -> Path:
    """The module, built when it is not there yet."""
    built, made_of = kernel.top / "siw.ko", kernel.top / "siw.made-of"
    recipe = f"{kernel.release}\n{CONSTANTS}\nwithout debug information"
    if not (built.exists() and made_of.exists() and made_of.read_text() == recipe):
        original = _source(top, kernel)
        log("building siw")
        with tempfile.TemporaryDirectory(dir=top) as tmp:
            source = shutil.copytree(original, Path(tmp) / SOURCE)
            for name, constants in CONSTANTS.items():
                _make_parameters(source, name, constants)
            build(headers, source, "CONFIG_RDMA_SIW=m")
            shutil.move(source / "siw.ko", built)
        made_of.write_text(recipe)
    return built


def _source(top: Path, kernel: Kernel) -> Path:
    """Of the kernel's version, unpacked."""
    source = kernel.top / SOURCE
    if not source.exists():
        name = f"linux-source-{'.'.join(kernel.version.split('.')[:2])}={kernel.version}"
        log(f"downloading {name}, which has siw")
        with tempfile.TemporaryDirectory(dir=top) as tmp:
            unpacked = Path(tmp) / SOURCE
            unpacked.mkdir()
            (deb,) = apt.download(top, [name], Path(tmp))
            sh("sh", "-c", UNPACK, deb, unpacked)
            unpacked.rename(source)
    return source


def _make_parameters(source: Path, name: str, constants: dict[str, str]) -> None:
    """Constants become variables, also where the header declares them, and parameters that root may write."""
    for path in (source / name, source / "siw.h"):
        path.write_text(re.sub(rf"\bconst (bool (?:{'|'.join(constants)})\b)", r"\1", path.read_text()))
    with (source / name).open("a") as file:
        file.writelines(f"module_param({name}, {kind}, 0644);\n" for name, kind in constants.items())
