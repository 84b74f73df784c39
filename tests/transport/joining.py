# SPDX-License-Identifier: Apache-2.0
"""Two nodes become the ends of a connection."""

from __future__ import annotations

from typing import Any

from rnic import WROpcode
from rnic.testing import Options
from transport.node import Node
from transport.worker import Remote


def join(
    a: Node,
    b: Node,
    nbytes: int,
    options: Options | None = None,
    *,
    name: str = "main",
    options_b: Options | None = None,
    **more: Any,
) -> tuple[Remote, Remote]:
    """A connected end called `name` in each, with memory of nbytes: a's memory and b's, for the other."""
    at_a = a.call("open", name, nbytes, options, **more)
    at_b = b.call("open", name, nbytes, options_b or options, **more)
    connect(a, b, name)
    return at_a, at_b


def connect(a: Node, b: Node, name: str = "main") -> None:
    """The ends called `name` go from RESET to RTS."""
    address_a, address_b = a.call("prepare", name), b.call("prepare", name)
    a.call("complete", name, address_b)
    b.call("complete", name, address_a)


def reconnect(a: Node, b: Node, name: str = "main") -> None:
    """The ends called `name` begin anew, whatever became of them."""
    a.call("reset", name)
    b.call("reset", name)
    connect(a, b, name)


def move(a: Node, opcode: WROpcode, remote: Remote, chunk: int, name: str = "main") -> float:
    """All of a's memory to, or from, the peer's; nothing may fail.  Seconds."""
    _, status, seconds = a.call("move", name, opcode, remote, chunk)
    assert status == "SUCCESS"
    return float(seconds)
