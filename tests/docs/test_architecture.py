# SPDX-License-Identifier: Apache-2.0
"""docs/architecture.md and the pages of the rooms: what they name is there, and each page is found."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FRONT = ROOT / "docs/architecture.md"
PAGES = [FRONT, *sorted((ROOT / "docs/rooms").glob("*.md"))]
LONGEST = 110  # lines of the front page beside its pictures: three sheets of paper with them
SOURCES = ("src", "tests", "tools", "bench", "examples", "docs")
SUFFIXES = ("py", "c", "h", "pyx", "pxd", "pyi", "pxi", "md", "toml", "build", "json")
NAME = re.compile(rf"`([\w./-]+\.(?:{'|'.join(SUFFIXES)})|[\w./-]+/)`")


def prose(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def paths() -> list[str]:
    """Every file and folder, with a slash ahead of it, and behind it if it is a folder."""
    found = [path for top in SOURCES for path in (ROOT / top).rglob("*")]
    found += [*(ROOT / top for top in SOURCES), *ROOT.glob("*.*"), ROOT / "Makefile"]
    return [f"/{path.relative_to(ROOT)}{'/' if path.is_dir() else ''}" for path in found]


def test_the_front_page_is_short() -> None:
    assert len(prose(FRONT).splitlines()) <= LONGEST


def test_the_front_page_leads_to_every_page() -> None:
    assert set(re.findall(r"\]\(rooms/([\w-]+\.md)\)", FRONT.read_text())) == {p.name for p in PAGES[1:]}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_names_exists(page: Path) -> None:
    there = paths()
    missing = {
        name for name in NAME.findall(prose(page)) if not any(path.endswith(f"/{name}") for path in there)
    }
    assert not missing


def test_a_section_that_is_named_exists() -> None:
    """As in `docs/rooms/links.md, "The ICRC without a header"`, in sources, tests and documents."""
    files = [
        p for top in ("src", "tests", "docs") for p in (ROOT / top).rglob("*.*") if p.suffix[1:] in SUFFIXES
    ]
    for file in files:
        for name, title in re.findall(r'([\w-]+\.md)\)?, "([^"]+)"', file.read_text(errors="replace")):
            page = next((ROOT / "docs").rglob(name), ROOT / name)
            headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
            assert any(heading.startswith(title) for heading in headings), f"{file}: {name}, {title}"


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda page: page.name)
def test_no_line_of_a_sequence_ends_early(page: Path) -> None:
    """Mermaid takes a semicolon in a sequence diagram for the end of the statement, and draws nothing."""
    pictures = re.findall(
        r"^```mermaid\nsequenceDiagram\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE
    )
    assert not [picture for picture in pictures if ";" in picture]
