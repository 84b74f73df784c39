# SPDX-License-Identifier: Apache-2.0
"""What tests of the backend for Dask share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rdmacm.ends import all_quiet


@pytest.fixture
def quiet() -> Iterator[None]:
    """The agents of connections end before the next test."""
    yield
    all_quiet()
