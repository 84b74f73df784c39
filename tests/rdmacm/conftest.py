# SPDX-License-Identifier: Apache-2.0
"""Every test begins with no device open: faults that one injects are not another's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rdmacm.ends import all_quiet


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    yield
    all_quiet()
