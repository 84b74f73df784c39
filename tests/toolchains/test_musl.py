# SPDX-License-Identifier: Apache-2.0
"""Programs of another C library, musl: rnic's libraries built for it, under programs that are built for it.

Debian has the compiler (musl-tools), but neither a Python nor librdmacm for it.  So the folder and the server
of `rnic run` are those of this Python, and a program gets the variables that a Python of musl would set.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import heap.test_heap as heap
from ibverbs.programs import DEVICE, OURS, free_port, listens
from ibverbs.programs import compiled as for_glibc
from packages import need_package
from rnic.programs import elf
from rnic.programs.surroundings import HEAP, IBVERBS, PRELOAD
from ucma.under import HOST, Program, needs_libraries
from waiting import until

pytestmark = [needs_libraries, pytest.mark.own_way]

ROOT = Path(__file__).parents[2]
EXAMPLE: list[str | Path] = [
    "-D_GNU_SOURCE",
    *(ROOT / "examples/c" / name for name in ("rc_example.c", "common.c")),
]
HERE = Path(__file__).parent
TARGETS = [f"src/ibverbs/{IBVERBS}", f"src/preload/{PRELOAD}", f"src/heap/{HEAP}"]
STRICT = ["-O1", "-Wall", "-Werror", "-fno-builtin", "-pthread"]
BUILD = ["--buildtype=plain", "-Db_lto=false", "-Doptimization=0"]
# A shell that is started is of glibc here, and musl has no pthread_attr_setstackaddr().
OF_MEMORY = [side for side in heap.SIDES if side not in ("spawns", "stack by its end")]
KERNEL = ("linux", "asm", "asm-generic", "rdma")  # of its headers musl has none


@dataclass
class Musl:
    """What is built for musl."""

    folder: Path

    @property
    def libraries(self) -> Path:
        return self.folder / "lib"

    def compiled(self, name: str, *words: str | Path) -> Path:
        """A program, made once."""
        program = self.folder / name
        if not program.exists():
            command(["musl-gcc", "-isystem", self.folder / "include", *STRICT, *words, "-o", program])
        return program

    def under(self, *words: object, heap: bool = True) -> list[object]:
        """The words that start a program as `rnic run` would."""
        names = (PRELOAD, HEAP) if heap else (PRELOAD,)
        ahead = ":".join(str(self.libraries / name) for name in names)
        return ["env", f"LD_LIBRARY_PATH={self.libraries}", f"LD_PRELOAD={ahead}", *words]


def command(words: list[str | Path], **more: str) -> None:
    done = subprocess.run(words, env=os.environ | more, capture_output=True, text=True, check=False)
    assert not done.returncode, f"{words}\n{done.stdout}{done.stderr}"


def link_headers(folder: Path) -> None:
    """The kernel's headers, and those of Debian's Python, where musl-gcc finds them, and no others."""
    folder.mkdir()
    machine = f"{os.uname().machine}-linux-gnu"
    for name in (*KERNEL, machine):
        place = next(
            p for p in (Path("/usr/include") / name, Path("/usr/include") / machine / name) if p.exists()
        )
        (folder / name).symlink_to(place)


@pytest.fixture(scope="module")
def musl(tmp_path_factory: pytest.TempPathFactory) -> Musl:
    if not shutil.which("musl-gcc"):
        need_package("musl-tools")
    made = Musl(tmp_path_factory.mktemp("musl"))
    native, build = made.folder / "native.ini", made.folder / "build"
    link_headers(made.folder / "include")
    native.write_text(
        f"[binaries]\nc = 'musl-gcc'\n[built-in options]\nc_args = ['-isystem', '{made.folder}/include']\n"
    )
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command(["meson", "setup", build, ROOT, "--native-file", native, *BUILD], PATH=path)
    command(["ninja", "-C", build, "-j2", *TARGETS], PATH=path)
    made.libraries.mkdir()
    for target in TARGETS:
        shutil.copy(build / target, made.libraries)
    return made


@pytest.mark.parametrize("local", ["on", "off"])
@pytest.mark.parametrize("kinds", ["musl musl", "musl glibc", "glibc musl"])
def test_two_ends(
    musl: Musl, kinds: str, local: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RNIC_LOCAL", local)
    link = [OURS[0], f"-L{musl.libraries}", f"-l:{IBVERBS}"]
    ends: dict[str, list[object]] = {
        "musl": musl.under(musl.compiled("rc_example", *EXAMPLE, *link)),
        "glibc": [for_glibc(tmp_path / "rc_example", *EXAMPLE, *OURS)],
    }
    server, client = kinds.split()
    port = free_port()
    options = ["-d", DEVICE, "-p", port]
    with Program(*ends[server], *options, within=folder) as one:
        until(lambda: listens(port) or one.process.poll() is not None, "the server listens")
        with Program(*ends[client], *options, HOST, within=folder) as other:
            said = other.good()
        assert "Contents of server buffer: 'RDMA write operation'" in one.good()
    assert "Contents of server's buffer: 'RDMA read operation '" in said


def test_files_and_rdma_cm(musl: Musl, folder: Path) -> None:
    program = musl.compiled("files", HERE / "files.c")
    with Program(*musl.under(program, DEVICE), within=folder) as files:
        files.good()


@pytest.mark.parametrize("what", OF_MEMORY)
def test_memory_is_as_libcs(musl: Musl, what: str, folder: Path) -> None:
    program = musl.compiled("heap", heap.HERE / "heap.c", "-rdynamic")
    with Program(*musl.under(program, what), within=folder) as memory:
        memory.good()


@pytest.mark.parametrize("way", heap.WAYS.values(), ids=heap.WAYS)
def test_last_byte_of_a_write_comes_last(
    musl: Musl, way: tuple[str, bool, str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local, with_heap, words = way
    monkeypatch.setenv("RNIC_LOCAL", local)
    link = [OURS[0], f"-L{musl.libraries}", f"-l:{IBVERBS}"]
    program = musl.compiled("order", heap.HERE / "order.c", *link)
    with Program(*musl.under(program, DEVICE, *words.split(), heap=with_heap), within=folder) as order:
        order.good()


def test_check_knows_what_the_loader_of_musl_finds(musl: Musl) -> None:
    link = [OURS[0], f"-L{musl.libraries}", f"-l:{IBVERBS}"]
    program = musl.compiled("order", heap.HERE / "order.c", *link)
    library = musl.libraries / IBVERBS
    for variables in ({"LD_LIBRARY_PATH": str(musl.libraries)}, {"LD_PRELOAD": str(library)}):
        found = elf.check(program, program, variables, library)
        assert (found.libraries, found.obstacles) == ({IBVERBS: str(library)}, [])
    assert elf.check(program, program, {}, library).libraries == {IBVERBS: ""}
    assert "musl" in elf.check(program, Path(sys.executable), {}, library).obstacles[0]
    assert "musl" in elf.check(Path(sys.executable), program, {}, library).obstacles[0]


def test_a_driver_of_rdma_core_finds_what_it_needs(musl: Musl, folder: Path) -> None:
    """musl's loader knows no versions of symbols: it takes those that are marked as the default."""
    program = musl.compiled("driver", HERE / "driver.c", f"-L{musl.libraries}", f"-l:{IBVERBS}")
    with Program(*musl.under(program), within=folder) as driver:
        driver.good()
