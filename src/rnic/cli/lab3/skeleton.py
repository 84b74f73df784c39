# SPDX-License-Identifier: Apache-2.0
"""The exercise, with and without its solution: both come from exercise.py.

What stands there between "# solution N" and "# end" is what a student writes.
"""

from __future__ import annotations

import re
from importlib import resources

_REGION = re.compile(r"^( *)# solution (\d)\n(.*?)^\1# end\n", re.DOTALL | re.MULTILINE)
_LICENCE = "# SPDX-License-Identifier: Apache-2.0\n"


def _source() -> str:
    return resources.files(__package__).joinpath("exercise.py").read_text().replace(_LICENCE, "", 1)


def skeleton() -> str:
    """A program in which each part to be written raises NotImplementedError."""
    return _REGION.sub(r'\1raise NotImplementedError("TODO \2")' + "\n", _source())


def solution() -> str:
    """The same program with these parts filled in."""
    return _REGION.sub(r"\3", _source())
