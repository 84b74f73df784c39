# SPDX-License-Identifier: Apache-2.0
"""What a program needs around it to run on rnic's devices: the libraries, and a folder with files and a
server's socket.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import rnic
from rnic.programs import tree
from rnic.ucma import Server

RUN = "RNIC_RUN"
SOCKET = "ucma"  # in the folder of $RNIC_RUN; src/preload/ucma.c has the same name
IBVERBS, PRELOAD = "libibverbs.so.1", "librnic_preload.so"


def libraries() -> Path:
    """The folder of the libraries; $RNIC_LIB is another one."""
    return Path(os.environ.get("RNIC_LIB") or Path(rnic.__file__).parent / "lib")


def variables(folder: Path | None = None) -> dict[str, str]:
    """The variables of a program: what is in the environment already comes after what is rnic's."""
    lib = libraries()
    found = {
        "LD_LIBRARY_PATH": _ahead(str(lib), os.environ.get("LD_LIBRARY_PATH")),
        "LD_PRELOAD": _ahead(str(lib / PRELOAD), os.environ.get("LD_PRELOAD")),
    }
    return found if folder is None else found | {RUN: str(folder)}


def _ahead(first: str, rest: str | None) -> str:
    return f"{first}:{rest}" if rest else first


@contextmanager
def serve() -> Iterator[Path]:
    """A private folder with the tree, and a server of RDMA-CM in it, until the end of the block."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    folder = Path(tempfile.mkdtemp(prefix="rnic-run-", dir=base if base and os.access(base, os.W_OK) else None))
    try:
        tree.make(folder)
        with Server(str(folder / SOCKET)):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
