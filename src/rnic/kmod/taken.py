# SPDX-License-Identifier: Apache-2.0
"""The names of the kernel's own modules: a module with one of them is taken for the kernel's."""

from __future__ import annotations

import os
import re
from pathlib import Path

from rnic.vm import paths

# What a machine has loaded. Of its kernel all names are known when it is fetched.
LOADED = frozenset(
    {
        *("failover", "net_failover", "virtio_pci", "virtio_net", "virtio_console", "virtio_ring", "virtio"),
        *("9p", "9pnet", "9pnet_virtio", "libcrc32c", "sch_netem", "ip6_udp_tunnel", "udp_tunnel"),
        *("ib_core", "ib_cm", "ib_uverbs", "iw_cm", "rdma_cm", "rdma_ucm", "rdma_rxe", "siw"),
    }
)


def is_taken(name: str) -> bool:
    """Whether a kernel has it: that of machines, or this computer's."""
    here = Path("/lib/modules", os.uname().release)
    machines = (paths.cache() / "kernel/lib/modules").glob("*")
    return name in LOADED or any(name in names(folder) for folder in (here, *machines))


def names(folder: Path) -> set[str]:
    """Those of a kernel, by its folder in /lib/modules: of its modules, and of those that are built in."""
    files = _text(folder / "modules.order").split()
    built_in = re.findall(r"(?:^|\0)([\w-]+)\.", _text(folder / "modules.builtin.modinfo"))
    return {Path(path).name.partition(".")[0].replace("-", "_") for path in [*files, *built_in]}


def _text(file: Path) -> str:
    return file.read_text(errors="replace") if file.is_file() else ""
