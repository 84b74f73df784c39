# SPDX-License-Identifier: Apache-2.0
"""docs/security.md names the tests that show what it says."""

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = re.findall(r"`((?:[a-z0-9]+_){2,}[a-z0-9_]+)`", (ROOT / "docs" / "security.md").read_text())


@cache
def defined() -> set[str]:
    """Functions of the tests, in Python and in C."""
    names = set[str]()
    for path in (ROOT / "tests").rglob("*.*"):
        if path.suffix in (".py", ".c"):
            names |= set(re.findall(r"^(?:def|static void) (\w+)\(", path.read_text(), re.MULTILINE))
    return names


def test_every_section_about_hosts_names_tests() -> None:
    assert len(NAMED) > 25


@pytest.mark.parametrize("name", sorted(set(NAMED)))
def test_what_is_named_exists(name: str) -> None:
    assert name in defined(), f"no test is called {name}"
