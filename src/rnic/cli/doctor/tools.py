# SPDX-License-Identifier: Apache-2.0
"""Tools that only some users need."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from ctypes.util import find_library

from rnic.cli.doctor.finding import Finding, good, missing

PROGRAMS = (
    ("tshark", "tshark", "a second reader of captures, for the tests"),
    ("qemu-system-x86_64", "qemu-system-x86", "the tests against the kernel's rdma_rxe"),
    ("ip", "iproute2", "tests that make network devices"),
)


def look() -> Iterator[Finding]:
    """All checks of tools."""
    library = find_library("ibverbs")
    yield (
        good("rdma-core", library)
        if library
        else missing(
            "rdma-core", "no libibverbs, which rnic does not need", "apt install rdma-core ibverbs-utils"
        )
    )
    for program, package, use in PROGRAMS:
        path = shutil.which(program)
        yield good(program, path) if path else missing(program, f"for {use}", f"apt install {package}")
