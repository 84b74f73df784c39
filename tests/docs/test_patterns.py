# SPDX-License-Identifier: Apache-2.0
"""docs/patterns: each pattern has a page with a picture, whose programs print what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import rnic.patterns

INDEX = Path(__file__).parents[2] / "docs/patterns/README.md"
PAGES = sorted(set(INDEX.parent.glob("*.md")) - {INDEX})
PROGRAM = re.compile(r"^```python\n(.*?)^```\n\nIt prints:\n\n```text\n(.*?)^```", re.DOTALL | re.MULTILINE)
PARTS = {"cursor", "ports"}  # of patterns


def test_every_pattern_has_a_page() -> None:
    assert {page.stem for page in PAGES} == set(rnic.patterns.__all__) - PARTS


def test_the_index_has_every_page() -> None:
    assert set(re.findall(r"^\|.*\]\((\w+\.md)\)", INDEX.read_text(), re.MULTILINE)) == {
        page.name for page in PAGES
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_pictures_and_programs_that_print_what_it_says(page: Path) -> None:
    text = page.read_text()
    programs = PROGRAM.findall(text)
    assert len(programs) == text.count("```python\n") > 0
    assert "```mermaid\n" in text
    for program, printed in programs:
        command = [sys.executable, "-W", "error", "-c", program]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert (done.returncode, done.stdout) == (0, printed), done.stderr
