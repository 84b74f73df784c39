# SPDX-License-Identifier: Apache-2.0
"""Symbols and their versions: of rdma-core 44 to 65, of drivers, and of libibverbs before 1.1."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from ibverbs.programs import DEVICE, LIBRARY, run

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
INCLUDE = ROOT / "src/ibverbs/include"


def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("list_symbols", ROOT / "tools/list_symbols.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(not shutil.which("readelf"), reason="readelf is not installed: apt-get install binutils")
def test_every_symbol_of_libibverbs_is_there_in_its_version() -> None:
    """And no public one that libibverbs does not have."""
    listed, ours = set((HERE / "versions/symbols.txt").read_text().split()), tool().symbols(LIBRARY)
    assert listed - ours == set()
    assert {symbol for symbol in ours - listed if "@IBVERBS_PRIVATE_" not in symbol} == set()


@pytest.mark.own_way
@pytest.mark.skipif(not shutil.which("gcc"), reason="gcc is not installed: apt-get install gcc")
@pytest.mark.parametrize("program", ["newer", "old", "forks"])
def test_a_program(program: str, tmp_path: Path) -> None:
    """Of rdma-core 65, of libibverbs before 1.1, and one that forks."""
    built = tmp_path / program
    source = HERE / f"versions/{program}.c"
    flags = ["-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", f"-I{INCLUDE}"]
    subprocess.run(["gcc", *flags, "-o", built, source, LIBRARY], check=True)
    assert "ok" in run(built, DEVICE).text
