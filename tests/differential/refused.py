# SPDX-License-Identifier: Apache-2.0
"""Posts that are refused, at any end: rnic's, and the kernel's in the guest."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Protocol

from differential.program import IN, OUT, Pieces


class Refusing(Protocol):
    def caps(self) -> tuple[int, int, int, int, int]: ...  # sends, receives, elements of each, inline bytes
    def send_one(self, opcode: str, sg: Pieces, flags: tuple[str, ...]) -> None: ...
    def receive_one(self, sg: Pieces, own: bool = ...) -> None: ...
    def lead(self, state: str) -> None: ...


def refuse(end: Refusing, what: str) -> str:
    """What comes of a post that ends in an error; see model.REFUSED."""
    sends, receives, send_sges, recv_sges, inline = end.caps()
    match what:
        case "elements":
            return told(lambda: end.send_one("SEND", ((OUT, 1),) * (send_sges + 1), ()))
        case "receive elements":
            return told(lambda: end.receive_one(((IN, 1),) * (recv_sges + 1)))
        case "inline":
            return told(lambda: end.send_one("SEND", ((OUT, inline), (OUT, 1)), ("INLINE",)))
        case "opcode":
            return told(lambda: end.send_one("RDMA_READ", ((OUT, 8),), ("SIGNALED",)))
        case "sends":
            said = filled(lambda: end.send_one("SEND", ((OUT, 8),), ("SIGNALED",)), sends)
        case "receives":
            said = filled(lambda: end.receive_one(((IN, 8),)), receives)
        case "unconnected":
            said = unconnected(end)
    end.lead("RESET")
    return said


def unconnected(end: Refusing) -> str:
    end.lead("RESET")
    said = [told(lambda: end.receive_one(((IN, 8),), own=True))]
    for state in ("RESET", "INIT"):
        end.lead(state)
        said.append(told(lambda: end.send_one("SEND", ((OUT, 8),), ("SIGNALED",))))
    return " ".join(said)


def filled(post: Callable[[], None], room: int) -> str:
    for number in range(room):
        said = told(post)
        if said != "posted":
            return f"{said} after {number} of {room}"
    return told(post)


def told(post: Callable[[], None]) -> str:
    try:
        post()
    except Exception as error:  # pyverbs' is no OSError
        number = getattr(error, "errno", None) or getattr(error, "error_code", None)
        if number is None:
            raise
        return errno.errorcode[abs(number)]
    return "posted"
