# SPDX-License-Identifier: Apache-2.0
"""The exercise in Python, with and without its solution: both come from exercise.py. And the exercise in C.

What stands there between "# solution N" and "# end" is what a student writes.
"""

from __future__ import annotations

import re
from importlib import resources

_REGION = re.compile(r"^( *)# solution (\d)\n(.*?)^\1# end\n", re.DOTALL | re.MULTILINE)
_LICENCE = "# SPDX-License-Identifier: Apache-2.0\n"


def _text(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text()


def _source() -> str:
    return _text("exercise.py").replace(_LICENCE, "", 1)


def skeleton() -> str:
    """A program in which each part to be written raises NotImplementedError."""
    return _REGION.sub(r'\1raise NotImplementedError("TODO \2")' + "\n", _source())


def solution() -> str:
    """The same program with these parts filled in."""
    return _REGION.sub(r"\3", _source())


def skeleton_in_c() -> str:
    """A program in C, in which each part to be written ends the program."""
    return _text("skeleton.c")
