# SPDX-License-Identifier: Apache-2.0
"""Every test begins with no device open: faults that one injects are not another's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rdmacm.ends import all_quiet, cm_threads
from rdmacm.mortal import Wire, cable
from rnic.rdmacm.registry import registry


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Afterwards the agents have ended, and no datagram has met a mistake, which they contain and log.

    What a test that failed before has left is ended first: each failure is told once, by its own test.
    """
    if cm_threads():
        registry.close()
    yield
    all_quiet()
    records = (one for when in ("setup", "call") for one in caplog.get_records(when))
    assert not [one.getMessage() for one in records if "met a mistake" in one.getMessage()]


@pytest.fixture(scope="module")
def wire() -> Iterator[Wire]:
    """A cable to a peer on another host."""
    with cable() as found:
        yield found
