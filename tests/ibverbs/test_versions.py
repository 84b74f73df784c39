# SPDX-License-Identifier: Apache-2.0
"""Symbols and their versions: of rdma-core 44 to 65, of what comes, of drivers, and of libibverbs before 1.1.

RNIC_RDMA_CORE names a folder with the libraries of another rdma-core; they are tested beside the system's.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from ibverbs.programs import DEVICE, LIBRARY, run
from packages import lacking

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
INCLUDE = ROOT / "src/ibverbs/include"
OF_RDMA_CORE = (
    "librdmacm.so.1",
    "libmlx?.so.1",
    "libefa.so.1",
    "libmana.so.1",
    "libhns.so.1",
    "libibverbs/*.so",
)
FOLDERS = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", os.environ.get("RNIC_RDMA_CORE", "")]


def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("list_symbols", ROOT / "tools/list_symbols.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(not shutil.which("readelf"), reason=lacking("binutils"))
def test_every_symbol_of_libibverbs_is_there_in_its_version() -> None:
    """And no public one that libibverbs does not have."""
    listed, ours = set((HERE / "versions/symbols.txt").read_text().split()), tool().symbols(LIBRARY)
    assert listed - ours == set()
    assert {symbol for symbol in ours - listed if "@IBVERBS_PRIVATE_" not in symbol} == set()


def asked_of_libibverbs(library: Path) -> set[str]:
    """What a library takes from libibverbs, as name@VERSION."""
    rows = subprocess.run(
        ["readelf", "--wide", "--dyn-syms", library], check=True, capture_output=True, text=True
    )
    return set(re.findall(r" UND (\w+@IBVERBS_\w[\w.]*)", rows.stdout))


@pytest.mark.skipif(not shutil.which("readelf"), reason="readelf is not installed: apt-get install binutils")
def test_the_libraries_of_rdma_core_find_all_that_they_ask_for() -> None:
    """librdmacm and the drivers: what is lacking is named, with who asks for it."""
    ours = tool().symbols(LIBRARY)
    found = [
        path for folder in filter(None, FOLDERS) for name in OF_RDMA_CORE for path in Path(folder).glob(name)
    ]
    lacking = {str(library): asked_of_libibverbs(library) - ours for library in found}
    assert {library: names for library, names in lacking.items() if names} == {}


NEXT = """
#include <errno.h>
int ibv_cmd_modify_qp(void);
void verbs_register_driver_%(version)d(const void *);
int main(void) { verbs_register_driver_%(version)d(0); return ibv_cmd_modify_qp() != EOPNOTSUPP; }
"""


@pytest.mark.skipif(not shutil.which("gcc"), reason="gcc is not installed: apt-get install gcc")
@pytest.mark.parametrize("version", [66, 79])
def test_a_library_of_a_release_to_come_is_loaded(version: int, tmp_path: Path) -> None:
    """It was linked with a libibverbs whose private functions have a version that is not out yet."""
    names = ("ibv_cmd_modify_qp", f"verbs_register_driver_{version}")
    stub, script, then = tmp_path / "stub.c", tmp_path / "stub.map", tmp_path / "libibverbs.so.1"
    stub.write_text("".join(f"void {name}(void) {{}}\n" for name in names))
    script.write_text(f"IBVERBS_PRIVATE_{version} {{ global: {'; '.join(names)}; local: *; }};\n")
    shared = ["-shared", "-fPIC", f"-Wl,--version-script={script}", "-Wl,-soname,libibverbs.so.1"]
    subprocess.run(["gcc", *shared, "-o", then, stub], check=True)
    program = tmp_path / "next"
    source = tmp_path / "next.c"
    source.write_text(NEXT % {"version": version})
    subprocess.run(["gcc", "-Wall", "-Werror", "-Wl,-z,now", "-o", program, source, then], check=True)
    assert "no kernel driver" in run(program).text


@pytest.mark.own_way
@pytest.mark.skipif(not shutil.which("gcc"), reason=lacking("gcc"))
@pytest.mark.parametrize("program", ["newer", "old", "forks"])
def test_a_program(program: str, tmp_path: Path) -> None:
    """Of rdma-core 65, of libibverbs before 1.1, and one that forks."""
    built = tmp_path / program
    source = HERE / f"versions/{program}.c"
    flags = ["-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", f"-I{INCLUDE}"]
    subprocess.run(["gcc", *flags, "-o", built, source, LIBRARY], check=True)
    assert "ok" in run(built, DEVICE).text
