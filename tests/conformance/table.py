# SPDX-License-Identifier: Apache-2.0
"""The table of conformance as data: what is claimed, where it is done, and what shows it.

verbs.toml and rdmacm.toml have a line for each function that functions.json lists; statements.toml has what
the InfiniBand Architecture demands of the transports, and rfcs.toml what the RFCs of iWARP do; rdma_core.toml
has the tests of rdma-core that do not pass. Tests are named as pytest names them, less parameters; those of C
by file and function.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
LIBRARIES = {"verbs.toml": "libibverbs", "rdmacm.toml": "librdmacm"}
SPECIFICATIONS = {"statements.toml": "the IBA", "rfcs.toml": "the RFCs of iWARP"}


@dataclass(frozen=True)
class Function:
    """A function of the C libraries: supported, not needed, or missing."""

    name: str
    area: str
    file: str
    rnic: str = ""
    """Its name here, from `rnic.` on."""
    tests: tuple[str, ...] = ()
    """What calls it by that name."""
    via: str = ""
    """A helper, named like a test, that calls it, and that the tests call."""
    refused: str = ""
    """What of it is refused all the same, and why."""
    unneeded: str = ""
    """Why Python has no use for it."""
    missing: str = ""
    """Why it is not supported."""


@dataclass(frozen=True)
class Statement:
    """Something that a specification demands."""

    clause: str
    service: str
    specification: str
    text: str
    code: str = ""
    """The file, and in it the function or table, that sees to it; the file cites the clause."""
    tests: tuple[str, ...] = field(default=())
    missing: str = ""
    """Why, or in what, it is not so."""


@dataclass(frozen=True)
class Known:
    """Tests of rdma-core that do not pass, and why. One of the three texts is there."""

    tests: str
    """A pattern: the module, a dot, the class, a dot, the test."""
    failed: str = ""
    skipped: str = ""
    lacks: str = ""
    """What the machine has to have; the tests are skipped where it does not."""

    def is_about(self, module: str, name: str) -> bool:
        """Whether a test is one of these."""
        return fnmatchcase(f"{module}.{name}", self.tests)

    @property
    def outcomes(self) -> set[str]:
        """What such a test may be."""
        return {"failed"} if self.failed else {"skipped"} if self.skipped else {"skipped", "passed"}


def _load(name: str) -> dict[str, Any]:
    return tomllib.loads((HERE / name).read_text())


def _tuple(values: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}


def functions() -> list[Function]:
    """Every line of the two files of functions."""
    return [
        Function(name, area, file, **_tuple(line))
        for file in LIBRARIES
        for area, lines in _load(file).items()
        for name, line in lines.items()
    ]


def statements() -> list[Statement]:
    """Every statement of the specifications that the table has."""
    return [
        Statement(service=service, specification=specification, **_tuple(line))
        for file, specification in SPECIFICATIONS.items()
        for service, lines in _load(file).items()
        for line in lines
    ]


def known() -> list[Known]:
    """The tests of rdma-core that do not pass; the first row that is about a test counts."""
    return [Known(**row) for row in _load("rdma_core.toml")["tests"]]


def listed() -> dict[str, list[str]]:
    """Header: the functions that it declares."""
    found: dict[str, list[str]] = json.loads((HERE / "functions.json").read_text())["functions"]
    return found


def newer() -> tuple[str, dict[str, list[str]]]:
    """The newest rdma-core, and the functions that it adds to each header."""
    found = json.loads((HERE / "functions.json").read_text())["newer"]
    return found["version"], found["functions"]


def packages() -> dict[str, str]:
    """Debian package: the version that the list of functions was made of."""
    found: dict[str, str] = json.loads((HERE / "functions.json").read_text())["packages"]
    return found


# ---------------------------------------------------------------- the page

_HEAD = """\
# What rnic conforms to

This page lists every function of libibverbs and librdmacm, as the headers of Debian's
{versions} declare them, and what rdma-core {newest} adds, without rsockets
and without functions of drivers.
It also lists what the InfiniBand Architecture (IBA) and the RFCs of iWARP demand of the transports that rnic
has. Each supported line names a test that shows it. `make conformance` prints this page from
`tests/conformance/`; tests compare both with the code.

| | supported | not needed | not supported |
|---|---|---|---|
"""

_RDMA_CORE = (
    "`make pyverbs` runs rdma-core's own tests of pyverbs, unchanged, under `rnic run`. Those that are not",
    "listed here pass; `make pyverbs` fails if that is not so.",
    "",
    "| tests | |",
    "|---|---|",
)


def page() -> str:
    """docs/conformance.md."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    versions = ", ".join(f"{name} {version}" for name, version in packages().items())
    all_functions, all_statements = functions(), statements()
    yield _HEAD.format(versions=versions, newest=newer()[0]).rstrip()
    for file, library in LIBRARIES.items():
        yield _count(library, [one for one in all_functions if one.file == file])
    for specification in SPECIFICATIONS.values():
        yield _count(f"statements of {specification}", _of(specification, all_statements))
    for file, library in LIBRARIES.items():
        yield from ("", f"## {library}")
        yield from _areas([one for one in all_functions if one.file == file])
    for specification in SPECIFICATIONS.values():
        yield from ("", f"## Statements of {specification}", "")
        yield "The statements are in our own words; the clause is the place in the specification."
        yield from _services(_of(specification, all_statements))
    yield from ("", "## The Python tests of rdma-core", "")
    yield from _RDMA_CORE
    yield from (f"| `{row.tests}` | {_outcome(row)} |" for row in known())


def _of(specification: str, rows: list[Statement]) -> list[Statement]:
    return [row for row in rows if row.specification == specification]


def _outcome(row: Known) -> str:
    if row.lacks:
        return f"skipped where the machine lacks {row.lacks}"
    return f"**fails**: {row.failed}" if row.failed else f"skipped: {row.skipped}"


def _count(what: str, rows: list[Function] | list[Statement]) -> str:
    missing = sum(bool(row.missing) for row in rows)
    unneeded = sum(bool(getattr(row, "unneeded", "")) for row in rows)
    return f"| {what} | {len(rows) - missing - unneeded} | {unneeded} | {missing} |"


def _areas(rows: list[Function]) -> Iterator[str]:
    for area in dict.fromkeys(row.area for row in rows):
        yield from ("", f"### {area}", "", "| function | in rnic | shown by |", "|---|---|---|")
        for row in (row for row in rows if row.area == area):
            name = f"`{row.name}`"
            if row.missing:
                yield f"| {name} | **not supported** | {row.missing} |"
            elif row.unneeded:
                yield f"| {name} | not needed | {row.unneeded} |"
            else:
                refused = f"; **refused**: {row.refused}" if row.refused else ""
                yield f"| {name} | `{row.rnic.removeprefix('rnic.')}` | {_links(row.tests)}{refused} |"


def _services(rows: list[Statement]) -> Iterator[str]:
    for service in dict.fromkeys(row.service for row in rows):
        yield from (
            "",
            f"### {service}",
            "",
            "| clause | what it asks | where | shown by |",
            "|---|---|---|---|",
        )
        for row in (row for row in rows if row.service == service):
            where, shown = _links((row.code,)) if row.code else "", _links(row.tests)
            if row.missing:
                shown = f"**not so**: {row.missing}" + (f"; {shown}" if shown else "")
            yield f"| {row.clause} | {row.text} | {where} | {shown} |"


def _links(names: tuple[str, ...]) -> str:
    """The names, each leading to its file."""
    parts = (name.split("::") for name in names)
    return ", ".join(f"[{name}](../{file})" for file, name in parts)
