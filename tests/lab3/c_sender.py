# SPDX-License-Identifier: Apache-2.0
"""The exercise in C: `python tests/lab3/c_sender.py` writes the skeleton, which is the solution with gaps.

What stands in sender.c between "solution N: its parameters" and "end" is what a student writes. Its #ifdefs
make wrong senders.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [path for path in [str(HERE.parent)] if path not in sys.path]

from ibverbs.programs import OURS, RDMACM, compiled  # noqa: E402 - as a program

SOLUTION = HERE / "sender.c"
SKELETON = HERE.parents[1] / "src/rnic/cli/lab3/skeleton.c"
_GAP = re.compile(r"^( *)/\* solution (\d): ([\w, ]+) \*/\n.*?^\1/\* end \*/\n", re.DOTALL | re.MULTILINE)


def with_gaps() -> str:
    """The solution, in which each part to be written ends the program."""
    return _GAP.sub(r"\1todo(\2, \3);" + "\n", SOLUTION.read_text())


def sender(program: Path, *flags: str, source: Path = SOLUTION) -> Path:
    """Compile a sender."""
    return compiled(program, "-std=c11", *flags, source, *OURS, RDMACM)


if __name__ == "__main__":
    SKELETON.write_text(with_gaps())
