# SPDX-License-Identifier: Apache-2.0
"""docs/async-events.md has every event, and the tests that it names are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rnic import EventType

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/async-events.md").read_text()
ROWS = {
    name: (cause, test)
    for name, _, cause, test in re.findall(
        r"^\| `(\w+)` \| (.*?)\| (.*?) \| (.*?)\|$", PAGE.replace("| |", "|  |"), re.MULTILINE
    )
}


def test_every_event_has_its_row_in_order() -> None:
    assert list(ROWS) == [event.name for event in EventType]


@pytest.mark.parametrize("name", list(ROWS))
def test_who_says_that_it_happens_names_a_test(name: str) -> None:
    cause, test = ROWS[name]
    if cause.startswith("never: "):
        assert not test.strip()
        return
    path, function = test.strip().split(": ")
    source = (ROOT / "tests" / path).read_text()
    assert re.search(rf"\b{function}\(", source)
    assert name in source
