# SPDX-License-Identifier: Apache-2.0
"""How objects look in a notebook: a small table.  What a peer has sent is text there, and nothing else."""

from collections.abc import Iterable
from enum import Enum

__all__ = ["table"]

_LEFT = 'style="text-align:left"'
_LONGEST = 500  # characters of a value
_ESCAPES = {ord("&"): "&amp;", ord("<"): "&lt;", ord(">"): "&gt;", ord('"'): "&quot;", ord("'"): "&#x27;"}


def table(title: str, rows: Iterable[tuple[str, object]]) -> str:
    """HTML with the title above, and a row for each name and value."""
    cells = "".join(
        f"<tr><th {_LEFT}>{_text(name)}</th><td {_LEFT}>{_text(value)}</td></tr>" for name, value in rows
    )
    return f"<table><caption {_LEFT}><b>{_text(title)}</b></caption>{cells}</table>"


def _text(value: object) -> str:
    text = value.name if isinstance(value, Enum) and value.name else str(value)
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text[:_LONGEST]).translate(
        _ESCAPES
    )
