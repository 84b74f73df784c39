# SPDX-License-Identifier: Apache-2.0
"""A sample of rdma-core's own Python tests under `rnic run`; `make pyverbs` runs all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from conformance.table import known
from rdma_core import suite
from ucma.under import needs_libraries

pytestmark = [needs_libraries, pytest.mark.own_way]

# Which look for what programs expect of drivers; each takes less than a second.
SAMPLE = ["test_addr", "test_mr", "test_parent_domain", "test_tag_matching"]


@pytest.fixture(scope="session")
def folder() -> Path:
    try:
        return suite.tests(download=False)
    except suite.MissingError as missing:
        pytest.skip(f"this machine lacks {missing}")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("module", [*SAMPLE, *(["test_flow"] if os.geteuid() == 0 else [])])
def test_module(folder: Path, module: str) -> None:
    found, rows = suite.run(folder, module, "roce_lo"), known()
    assert found
    wrong = [(one, said) for one in found if (said := suite.difference(one, rows))]
    assert not wrong
