# SPDX-License-Identifier: Apache-2.0
"""What programs of `rnic run` allocate in whole pages: librnic_heap.so; WRITEs into such memory and other."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import rnic
from packages import need_package
from rnic.programs.surroundings import HEAP, libraries
from ucma.under import needs_libraries
from waiting import PATIENCE

pytestmark = [needs_libraries, pytest.mark.own_way]

HERE = Path(__file__).parent
INCLUDE = Path(rnic.__file__).parent / "include"
STRICT = (
    "-std=gnu11",
    "-O1",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-free-nonheap-object",
    "-fno-builtin",
    "-pthread",
)
SIDES = [
    "places",
    "sizes",
    "room",
    "next",
    "rotation",
    "lowest",
    "threads",
    "cancelled",
    "forks",
    "closed",
    "number taken",
    "mapped over",
    "protections",
    "handlers",
    "late handlers",
    "pieces",
    "masks",
    "stacks",
    "stack by its end",
    "free stacks",
    "wiped",
    "wiped again",
    "freed without descriptor",
    "grown",
    "advised",
    "forgotten stack",
    "half a stack",
    "forks in handlers",
    "spawns",
    "forgotten",
    "given",
    "given in pieces",
    "wrong",
    "descriptor",
    "unused",
    "errors",
]
SIDES += ["limited later", "no copy", "no file", "limited file", "limited space"]
WAYS = {
    "mapped": ("on", True, "heap"),
    "mapped, many at once": ("on", True, "heap 100"),
    "by the kernel": ("on", True, "malloc"),
    "through the ring": ("on", False, "malloc 100"),
    "by UDP": ("off", True, "heap"),
}


VERBS = (f"-I{INCLUDE}", f"-L{libraries()}", "-l:libibverbs.so.1")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the programs of this one."""
    folder = tmp_path_factory.mktemp("programs")
    if not shutil.which("cc"):
        need_package("gcc")
    for name, more in {
        "heap": ("-rdynamic",),
        "early": ("-shared", "-fPIC", "-Wl,-z,initfirst"),
        "order": ("-rdynamic", *VERBS),
        "barrier": VERBS,
    }.items():
        subprocess.run(["cc", *STRICT, HERE / f"{name}.c", "-o", folder / name, *more], check=True)
    return folder


def run(program: Path, *words: str, heap: bool = True, after: Path | None = None, **more: str) -> None:
    """Run a program without `rnic run`, with a library loaded after the heap; it must end well."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(libraries()), "RNIC_VERBS_DEBUG": "1", **more}
    if heap:
        environment["LD_PRELOAD"] = ":".join(map(str, filter(None, (libraries() / HEAP, after))))
    done = subprocess.run(
        [program, *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, f"{done.returncode}\n{done.stdout}"


@pytest.mark.parametrize("what", SIDES)
def test_memory_is_as_libcs(programs: Path, what: str) -> None:
    run(programs / "heap", what)


def test_handlers_of_forks_that_are_registered_ahead_of_the_heaps(programs: Path) -> None:
    run(programs / "heap", "early handlers", after=programs / "early")


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_last_byte_of_a_write_comes_last(programs: Path, way: tuple[str, bool, str]) -> None:
    local, heap, words = way
    run(programs / "order", "roce_lo", *words.split(), heap=heap, RNIC_LOCAL=local)


@pytest.mark.parametrize("words", [(), ("device",)], ids=["without a device", "with a device"])
def test_a_fault_in_a_prepare_handler_has_its_own_handler(programs: Path, words: tuple[str, ...]) -> None:
    run(programs / "barrier", *words)


def test_memory_is_registered_beside_forks(programs: Path) -> None:
    run(programs / "order", "roce_lo", "forks")


@pytest.mark.parametrize("local", ["off", "on"])
def test_a_device_works_while_a_fork_copies_the_heap(programs: Path, local: str) -> None:
    run(programs / "order", "roce_lo", "copy", RNIC_LOCAL=local)
