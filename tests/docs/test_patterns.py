# SPDX-License-Identifier: Apache-2.0
"""docs/patterns: each pattern has a page with a picture, whose programs print what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import rnic.patterns

FOLDER = Path(__file__).parents[2] / "docs/patterns"
PAGES = sorted(set(FOLDER.glob("*.md")) - {FOLDER / "README.md"})
PROGRAM = re.compile(r"^```python\n(.*?)^```\n\nIt prints:\n\n```text\n(.*?)^```", re.DOTALL | re.MULTILINE)
PARTS = {"cursor", "ports"}  # of patterns


def test_every_pattern_has_a_page() -> None:
    assert {page.stem for page in PAGES} == set(rnic.patterns.__all__) - PARTS
    table = (FOLDER / "README.md").read_text()
    assert all(f"]({page.name})" in table for page in PAGES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_pictures_and_programs_that_print_what_it_says(page: Path) -> None:
    text = page.read_text()
    programs = PROGRAM.findall(text)
    assert len(programs) == text.count("```python\n") > 0
    assert "```mermaid\n" in text
    assert "\n## When to use it\n" in text
    assert "\nWhen not:\n" in text
    for program, printed in programs:
        command = [sys.executable, "-W", "error", "-c", program]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert (done.returncode, done.stdout) == (0, printed), done.stderr
