# SPDX-License-Identifier: Apache-2.0
"""A module's source without the parts that a student writes.

Such a part stands between two comments, and is all that a function does:

    /* -- your part: make the queue pair -- */
    ...
    /* -- end -- */

Without it the function says that it is not supported, in the way of its type.
"""

from __future__ import annotations

import re

_PART = re.compile(
    r"^(?P<indent>\t+)/\* -- your part: (?P<what>.*?) -- \*/\n.*?^(?P=indent)/\* -- end -- \*/\n",
    re.DOTALL | re.MULTILINE,
)
_FUNCTION = re.compile(r"^(static\s(?:[\w\s]*?\s)?)(\**)(\w+)\([^;{]*?\)\n\{", re.MULTILINE)
_INSTEAD = {
    "int": "return -EOPNOTSUPP;",
    "*": "return ERR_PTR(-EOPNOTSUPP);",
    "blk_status_t": "return BLK_STS_NOTSUPP;",
    "void": "",
}


def count(text: str) -> int:
    """The parts in it."""
    return sum(1 for _ in _PART.finditer(text))


def without_parts(text: str) -> str:
    """The source with a TODO for each of them."""
    left = _PART.sub(_todo, text)
    return left if left == text else _FUNCTION.sub(lambda found: _may_be_unused(found, left), left)


def _todo(part: re.Match[str]) -> str:
    """A comment, and what the function returns until it is written."""
    before = part.string[: part.start()]
    kind, star, _ = [*_FUNCTION.finditer(before)][-1].groups()
    instead = _INSTEAD[star or kind.split()[-1]]
    lines = [f"/* TODO: {part['what']} */", *([instead] if instead else [])]
    return "".join(f"{part['indent']}{line}\n" for line in lines)


def _may_be_unused(function: re.Match[str], text: str) -> str:
    """A function that only the parts call must not be a warning."""
    kind, star, name = function.groups()
    if len(re.findall(rf"\b{name}\b", _code(text))) > 1:
        return function[0]
    return function[0].replace(f"{kind}{star}{name}", f"{kind.rstrip()} __maybe_unused {star}{name}", 1)


def _code(text: str) -> str:
    """Without comments and declarations."""
    code = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    return re.sub(r"^static [^;{=]*\);\n", "", code, flags=re.MULTILINE)
