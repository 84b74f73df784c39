# SPDX-License-Identifier: Apache-2.0
"""The exercise in C: `python tests/lab3/c_sender.py` writes the skeleton, which is the solution with gaps.

What stands in sender.c between "solution N" and "end" is what a student writes. Its #ifdefs make wrong
senders.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import rnic

HERE = Path(__file__).parent
SOLUTION = HERE / "sender.c"
SKELETON = HERE.parents[1] / "src/rnic/cli/lab3/skeleton.c"
PACKAGE = Path(rnic.__file__).parent
FLAGS = ["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Werror"]
LIBRARIES = [f"-I{PACKAGE / 'include'}", f"-L{PACKAGE / 'lib'}", "-l:libibverbs.so.1", "-l:librdmacm.so.1"]
_GAP = re.compile(r"^( *)/\* solution (\d) \*/\n.*?^\1/\* end \*/\n", re.DOTALL | re.MULTILINE)


def with_gaps() -> str:
    """The solution, in which each part to be written ends the program."""
    return _GAP.sub(r"\1todo(\2);" + "\n", SOLUTION.read_text())


def compiled(source: Path, program: Path, *flags: str) -> Path:
    """A sender; skips the test where it cannot be made."""
    if not shutil.which("cc"):
        pytest.skip("needs a C compiler")
    words: list[str | Path] = ["cc", *FLAGS, *flags, source, "-o", program, *LIBRARIES]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if "cannot find -l:librdmacm" in done.stderr:
        pytest.skip("needs Debian's librdmacm1")
    assert not done.returncode, done.stderr
    return program


if __name__ == "__main__":
    SKELETON.write_text(with_gaps())
