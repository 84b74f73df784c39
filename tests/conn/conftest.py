# SPDX-License-Identifier: Apache-2.0
"""What tests of connections share."""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Iterator

import pytest


@pytest.fixture
def unheard_finalisers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An exception that comes at any place may leave an object to its finaliser.

    Then the finaliser warns, and may be interrupted itself: neither is heard.  What the test's own variables
    have kept is collected here, and not in a later test, which would hear it.
    """
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        gc.collect()
