# SPDX-License-Identifier: Apache-2.0
"""What calls of libibverbs leave alone, and how they fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from ibverbs.programs import DEVICE, OURS, compiled, run

pytestmark = pytest.mark.own_way


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("manners")
    return compiled(folder / "manners", Path(__file__).parent / "programs/manners.c", *OURS)


@pytest.mark.parametrize("local", ["on", "off"])
def test_calls_behave_as_with_drivers_of_hardware(program: Path, local: str) -> None:
    assert run(program, DEVICE, RNIC_LOCAL=local, RNIC_VERBS_DEBUG="0").text == ""
