# SPDX-License-Identifier: Apache-2.0
"""siw, the kernel's iWARP device, which Debian's kernel leaves out: built for that kernel of Debian's source.

What siw has decided once for all, a test may decide each time: its constants become module parameters.
"""

from __future__ import annotations

import pathlib
import re
import shutil
import tempfile

from .host import log, sh

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


def fetch(kernel: pathlib.Path, release: str, version: str) -> None:
    """Unpack what building siw needs beside a kernel of this release, from the packages of this version."""
    depends = sh("apt-cache", "depends", f"linux-headers-{release}")
    headers = [f"linux-headers-{release}", *re.findall(r"Depends: (linux-(?:headers|kbuild)-\S+)", depends)]
    source = f"linux-source-{'.'.join(version.split('.')[:2])}={version}"
    log(f"downloading its headers and its source ({source})")
    (kernel / SOURCE).mkdir()
    with tempfile.TemporaryDirectory(dir=kernel) as tmp:
        sh("apt-get", "download", "-o", "APT::Sandbox::User=root", *headers, source, cwd=tmp)
        for deb in pathlib.Path(tmp).glob("*.deb"):
            if deb.name.startswith("linux-source-"):
                sh("sh", "-c", UNPACK, deb, kernel / SOURCE)
            else:
                sh("dpkg", "-x", deb, kernel)


def module(kernel: pathlib.Path, release: str) -> pathlib.Path:
    """The module, built when it is not there yet."""
    built, made_of = kernel / "siw.ko", kernel / "siw.made-of"
    recipe = f"{release}\n{CONSTANTS}"
    if not (built.exists() and made_of.exists() and made_of.read_text() == recipe):
        log("building siw")
        with tempfile.TemporaryDirectory(dir=kernel) as tmp:
            source = shutil.copytree(kernel / SOURCE, pathlib.Path(tmp) / SOURCE)
            for name, constants in CONSTANTS.items():
                _make_parameters(source, name, constants)
            _build(kernel, release, source)
            shutil.move(source / "siw.ko", built)
        made_of.write_text(recipe)
    return built


def _make_parameters(source: pathlib.Path, name: str, constants: dict[str, str]) -> None:
    """Constants become variables, also where the header declares them, and parameters that root may write."""
    for path in (source / name, source / "siw.h"):
        path.write_text(re.sub(rf"\bconst (bool (?:{'|'.join(constants)})\b)", r"\1", path.read_text()))
    with (source / name).open("a") as file:
        file.writelines(f"module_param({name}, {kind}, 0644);\n" for name, kind in constants.items())


def _build(kernel: pathlib.Path, release: str, source: pathlib.Path) -> None:
    """With this machine's compiler. The headers' own Makefile looks for the rest in /usr/src."""
    headers = kernel / f"usr/src/linux-headers-{release}"
    common = next(kernel.glob("usr/src/linux-headers-*-common/Makefile"))
    sh("make", "-C", headers, "-f", common, f"M={source}", "CC=gcc", "CONFIG_RDMA_SIW=m", "modules")
