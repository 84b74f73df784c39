#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/ibverbs/versions/symbols.txt: the symbols of libibverbs.so.1, with their versions.

    python tools/list_symbols.py /usr/lib/x86_64-linux-gnu/libibverbs.so.1 ...

Each library adds what it has; what the list has already stays. Debian's packages libibverbs1 have the library
(`dpkg -x` unpacks one). The tests need only the list.
"""

import subprocess
import sys
from pathlib import Path

STORE = Path(__file__).parents[1] / "tests/ibverbs/versions/symbols.txt"


def symbols(library: str | Path) -> set[str]:
    """What a library exports, as name@VERSION."""
    command = ["readelf", "--wide", "--dyn-syms", str(library)]
    rows = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    fields = [row.split() for row in rows]
    return {
        row[7].replace("@@", "@")
        for row in fields
        if len(row) == 8 and row[4] == "GLOBAL" and row[6] != "UND" and "@" in row[7]
    }


def main() -> None:
    known = set(STORE.read_text().split()) if STORE.exists() else set()
    for library in sys.argv[1:]:
        known |= symbols(library)
    STORE.write_text("".join(f"{symbol}\n" for symbol in sorted(known)))


if __name__ == "__main__":
    main()
