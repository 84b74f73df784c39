# SPDX-License-Identifier: Apache-2.0
"""What a program leads to: the outcome of every step, by plain bytes and lists."""

from __future__ import annotations

import struct
from typing import Any

from conn.differential.program import (
    Abort,
    After,
    Batch,
    Close,
    End,
    Gone,
    Idle,
    Listen,
    Look,
    Op,
    Round,
    Send,
    Share,
    Stats,
    Step,
    Tagged,
    Take,
    Withdraw,
    Wrong,
    content,
    digest,
)  # fmt: skip

TYPE_ERRORS = frozenset({
    "text", "none", "no region", "offset text", "offset none", "offset float", "add text", "add float",
    "send text", "send none", "tag text", "tag none", "tag float", "recv tag text", "into text",
    "share none", "share text", "withdraw none",
})  # fmt: skip
TOO_LONG = "MessageTooLongError"
MASK = 2**64 - 1


class Either(tuple[Any, ...]):
    """One of some outcomes."""

    def __new__(cls, *outcomes: Any) -> Either:
        return super().__new__(cls, outcomes)

    def allows(self, found: Any) -> bool:
        return found in self


class Messages(list[Send]):
    """These messages in order; those whose send() had a limit may be missing."""

    def allows(self, found: Any) -> bool:
        left = list(found)
        for one in self:
            crc = digest(content(one.key, one.size))
            if left and left[0] == crc:
                left.pop(0)
            elif one.patience is None:
                return False
        return not left


class Error(str):
    """An exception of this type."""

    def allows(self, found: Any) -> bool:
        return isinstance(found, tuple) and found[:2] == ("error", str(self))


def allows(expected: Any, found: Any) -> bool:
    """Whether a step may have this outcome."""
    return expected is Any or (
        expected.allows(found) if hasattr(expected, "allows") else bool(expected == found)
    )


ALWAYS: dict[type, Any] = {
    Idle: "timeout",
    Take: Any,
    Gone: None,
    Close: None,
    Abort: None,
    Stats: Any,
    After: Any,
}
"""What a step always leads to; the runner looks at Stats, and whether After is the same by every way."""


class Model:
    """Two ends that do everything at once."""

    def __init__(self) -> None:
        self.regions: dict[str, bytearray] = {}
        self.waiting: list[list[Send]] = [[], []]  # what was sent to each end
        self.aborted = ""
        self.side = 0

    def round(self, both: Round) -> tuple[list[Any], list[Any]]:
        """What the steps of each end lead to; a `Maybe` stands for several outcomes."""
        for side in (0, 1):
            for step in both[side]:
                if isinstance(step, Send):
                    self.waiting[1 - side].append(step)
                if isinstance(step, Abort):
                    self.aborted = step.text
        return self._side(0, both[0]), self._side(1, both[1])

    def _side(self, side: int, steps: tuple[Step, ...]) -> list[Any]:
        self.side = side
        return [self._step(step) for step in steps]

    def _step(self, step: Step) -> Any:
        if type(step) in ALWAYS:
            return ALWAYS[type(step)]
        return getattr(self, "_" + type(step).__name__.lower())(step)

    def _send(self, step: Send) -> Any:
        return "sent" if step.patience is None else Either("sent", "timeout")

    def _listen(self, _step: Listen) -> Any:
        there, self.waiting[self.side] = self.waiting[self.side], []
        return Messages(there)

    def _tagged(self, step: Tagged) -> Any:
        found = []
        for tag in step.tags:
            one = next(one for one in self.waiting[self.side] if tag is None or one.tag == tag)
            self.waiting[self.side].remove(one)
            found.append(digest(content(one.key, one.size)))
        return found

    def _share(self, step: Share) -> Any:
        self.regions[step.name] = bytearray(content(step.key, step.size))
        return step.size, step.access

    def _op(self, op: Op) -> Any:
        memory = self.regions[op.name]
        if op.what in ("read", "array"):
            return digest(memory[op.offset : op.offset + op.length])
        if op.what == "write":
            memory[op.offset : op.offset + op.length] = content(op.key, op.length)
            return None
        (was,) = struct.unpack_from("<Q", memory, op.offset)
        first, second = (value & MASK for value in op.values)
        if op.what == "add":
            struct.pack_into("<Q", memory, op.offset, (was + first) & MASK)
        elif was == first:
            struct.pack_into("<Q", memory, op.offset, second)
        return was

    def _batch(self, step: Batch) -> Any:
        return [self._op(op) for op in step.ops]

    def _look(self, step: Look) -> Any:
        return digest(self.regions[step.name])

    def _withdraw(self, step: Withdraw) -> Any:
        return None if step.patience is None else Either(None, "timeout")

    def _wrong(self, step: Wrong) -> Any:
        if step.what == "send too long":
            return Error(TOO_LONG)
        if step.what == "closed mr":
            return Error("VerbsError")
        return Error("TypeError" if step.what in TYPE_ERRORS else "ValueError")

    def _end(self, _step: End) -> Any:
        found = [digest(content(one.key, one.size)) for one in self.waiting[self.side]]
        return [*found, "AbortedError"] if self.aborted else [*found, "EOFError"]
