# SPDX-License-Identifier: Apache-2.0
"""A binding of other people: the package `ibverbs` of PyPI, which loads libibverbs.so.1 at its import."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from ibverbs.programs import DEVICE
from ucma.under import Program, needs_libraries

pytestmark = [needs_libraries, pytest.mark.own_way]

PROGRAM = Path(__file__).with_name("pypi_ibverbs.py")


@pytest.mark.parametrize("local", ["on", "off"])
def test_ibverbs_of_pypi(local: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        version("ibverbs")
    except PackageNotFoundError:
        pytest.skip("needs the package ibverbs of PyPI")
    monkeypatch.setenv("RNIC_LOCAL", local)
    with Program(sys.executable, PROGRAM, DEVICE, within=folder) as program:
        assert program.good() == "all is well\n"
