# SPDX-License-Identifier: Apache-2.0
"""What calls of libibverbs leave in errno."""

from __future__ import annotations

from pathlib import Path

import pytest

from ibverbs.programs import DEVICE, OURS, compiled, run

pytestmark = pytest.mark.own_way


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("errnos")
    return compiled(folder / "errnos", Path(__file__).parent / "programs/errnos.c", *OURS)


@pytest.mark.parametrize("local", ["on", "off"])
def test_calls_that_succeed_leave_errno_alone(program: Path, local: str) -> None:
    assert run(program, DEVICE, RNIC_LOCAL=local, RNIC_VERBS_DEBUG="0").text == ""
