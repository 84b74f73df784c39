# SPDX-License-Identifier: Apache-2.0
"""Runs pytest once for each part of the tests, whatever fails in another, and ends with a short summary.

    python tests/parts.py FOLDER OPTION... [-- PART [NAME=VALUE...] OPTION...]...

FOLDER gets what pytest found in each part, as JUnit's XML.  The first options are those of all parts; PART is
a name for the summary, and may have variables of the environment and options of its own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from xml.etree import ElementTree

PACKAGES = re.compile(r"apt-get install ([\w.+ -]+)$")  # tests/packages.py says it so
MOST = 20  # failures that are named
NO_TESTS, INTERRUPTED = 5, 2  # exit codes of pytest


@dataclass
class Found:
    """What pytest found in a part, or in all of them."""

    code: int = 0
    """pytest's exit code."""
    passed: int = 0
    failed: list[str] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    """Why tests were skipped, and how many."""

    def add(self, other: Found) -> None:
        self.passed += other.passed
        self.failed += other.failed
        self.reasons += other.reasons


def read(file: Path, code: int) -> Found:
    """The results in a file of JUnit's XML, if pytest came so far as to write one."""
    found = Found(code)
    for case in ElementTree.parse(file).iter("testcase") if file.exists() else ():
        outcome = {child.tag: child.get("message", "") for child in case}
        if "failure" in outcome or "error" in outcome:
            found.failed.append(f"{case.get('file')}::{case.get('name')}")
        elif "skipped" in outcome:
            found.reasons[outcome["skipped"]] += 1
        else:
            found.passed += 1
    return found


def summary(parts: dict[str, Found]) -> Iterator[str]:
    """What ran in each part and what failed there; then what did not run, and how to get it."""
    whole = Found()
    for name, found in parts.items():
        ended = f", it ended with {found.code}" if found.code not in (0, 1, NO_TESTS) else ""
        failed = f", {len(found.failed)} failed" if found.failed else ended
        yield f"{name}: {found.passed:,} passed{failed}"
        yield from (f"    {one}" for one in found.failed[:MOST])
        whole.add(found)
    named = {reason: match[1].split() for reason in whole.reasons if (match := PACKAGES.search(reason))}
    absent = not_installed({package for packages in named.values() for package in packages})
    missing = [reason for reason, packages in named.items() if absent.intersection(packages)]
    if missing:
        count = sum(whole.reasons.pop(reason) for reason in missing)
        yield f"{count} did not run for want of packages: apt-get install {' '.join(sorted(absent))}"
    root = [reason for reason in whole.reasons if "root" in re.findall(r"\w+", reason)]
    if root:
        yield f"{sum(whole.reasons.pop(reason) for reason in root)} did not run, as they need root"
    if whole.reasons:
        most, times = whole.reasons.most_common(1)[0]
        yield f"{whole.reasons.total()} did not run for other reasons, which ARGS=-rs names; {times}: {most}"


def not_installed(packages: set[str]) -> set[str]:
    """Those that Debian's dpkg does not have installed; all of them where there is no dpkg."""
    query = ["dpkg-query", "-W", "-f", "${db:Status-Abbrev}${Package}\n", *packages]
    try:
        said = subprocess.run(query, capture_output=True, text=True, check=False).stdout
    except OSError:
        return packages
    return packages - {line.split()[1] for line in said.splitlines() if line.startswith("ii ")}


def run(words: list[str], folder: Path, options: list[str]) -> Found:
    """A part of the tests."""
    name, *rest = words
    settings = [word for word in rest if re.match(r"\w+=", word)]
    own = [word for word in rest if word not in settings]
    file = folder / f"{name.replace(' ', '-')}.xml"
    pytest = ["-m", "pytest", *own, *options, f"--junit-xml={file}", "-o", "junit_family=xunit1"]
    print(f"== {name}:", *settings, "pytest", *own, *options, flush=True)
    code = subprocess.run(
        [sys.executable, *pytest], env=os.environ | dict(word.split("=", 1) for word in settings), check=False
    ).returncode
    return read(file, code)


def main(folder: Path, words: list[str]) -> int:
    common, *parts = [
        list(group) for end, group in groupby(["", *words], lambda word: word == "--") if not end
    ]
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.xml"):
        old.unlink()
    results: dict[str, Found] = {}
    for part in parts:
        results[part[0]] = found = run(part, folder, common[1:])
        if found.code == INTERRUPTED:
            break
    print("== summary", *summary(results), sep="\n")
    codes = [found.code for found in results.values()]
    return next((code for code in codes if code not in (0, NO_TESTS)), 0 if 0 in codes else NO_TESTS)


if __name__ == "__main__":
    try:
        sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
    except KeyboardInterrupt:
        sys.exit(130)
