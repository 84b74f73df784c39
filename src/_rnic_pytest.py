# SPDX-License-Identifier: Apache-2.0
"""The pytest plugin, which pytest loads in every suite where rnic is installed.

It imports rnic where a test uses one of its fixtures, and not before. docs/testing.md is its page.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import rnic
    import rnic.testing
    from rnic.testing.pytest import Run


@pytest.fixture
def rnic_device() -> Iterator[rnic.Context]:
    """An open device on the loopback interface, a rnic.Context."""
    import rnic.testing

    with rnic.testing.loopback().open() as context:
        yield context


@pytest.fixture
def rnic_pair() -> Iterator[rnic.testing.Pair]:
    """Two connected queue pairs of this process, a rnic.testing.Pair."""
    import rnic.testing

    with rnic.testing.Pair() as pair:
        yield pair


@pytest.fixture
def rnic_run() -> Iterator[Run]:
    """A function that starts programs under `rnic run`; they end with the test."""
    from rnic.testing.pytest import Run

    with Run() as run:
        yield run


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """What became of the programs of `rnic_run`, in the report of a test that fails."""
    outcome = yield
    report: pytest.TestReport = outcome.get_result()  # type: ignore[attr-defined]
    run: Run | None = getattr(item, "funcargs", {}).get("rnic_run")
    if run is not None and report.when == "call" and report.failed and (text := run.report()):
        report.sections.append(("rnic run", text))
