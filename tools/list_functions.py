#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/conformance/functions.json: the functions of libibverbs and librdmacm, out of their headers.

    python tools/list_functions.py [FOLDER VERSION]

Debian's packages libibverbs-dev and librdmacm-dev have the headers. FOLDER is where those of a newer VERSION
are unpacked (`dpkg -x`): then the list gets what they add. The preprocessor says what is declared in which;
the tests need only the list.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

STORE = Path(__file__).parents[1] / "tests/conformance/functions.json"
PACKAGES = ("libibverbs-dev", "librdmacm-dev")
HEADERS = ("infiniband/verbs.h", "infiniband/arch.h", "rdma/rdma_cma.h", "rdma/rdma_verbs.h")
# What begins with an underscore is how a header spells a function that has another name, too.
_NAME = re.compile(r"\b([A-Za-z]\w*)\s*\(")
_BLOCK = re.compile(r"\{[^{}]*\}")
_MARKER = re.compile(r'^# \d+ "([^"]+)"')


def preprocessed(header: str) -> str:
    """What a program that includes the header compiles, without what other headers add."""
    source = f"#include <{header}>\n"
    output = subprocess.run(
        ["cc", "-E", "-xc", "-"], input=source, check=True, capture_output=True, text=True
    )
    lines, ours = [], False
    for line in output.stdout.splitlines():
        if marker := _MARKER.match(line):
            ours = marker[1].endswith(f"/{header}")
        elif ours:
            lines.append(line)
    return "\n".join(lines)


def functions(text: str) -> list[str]:
    """The names of the functions that are declared or, inline, defined."""
    count = 1
    while count:
        text, count = _BLOCK.subn(";", text)
    declarations = (_NAME.search(part) for part in text.split(";") if not part.lstrip().startswith("typedef"))
    return sorted({found[1] for found in declarations if found})


def version(package: str) -> str:
    """The version that is installed."""
    command = ["dpkg-query", "--show", "--showformat=${Version}", package]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def declared() -> dict[str, list[str]]:
    """The functions of each header."""
    return {header: functions(preprocessed(header)) for header in HEADERS}


def main() -> None:
    if len(sys.argv) == 1:
        store = {"packages": {package: version(package) for package in PACKAGES}, "functions": declared()}
    else:
        folder, newer = sys.argv[1:]
        os.environ["CPATH"] = f"{folder}/usr/include"
        store = json.loads(STORE.read_text())
        old = store["functions"]
        more = {header: sorted(set(names) - set(old[header])) for header, names in declared().items()}
        store["newer"] = {"version": newer, "functions": more}
    STORE.write_text(json.dumps(store, indent=1) + "\n")


if __name__ == "__main__":
    main()
