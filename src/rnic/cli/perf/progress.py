# SPDX-License-Identifier: Apache-2.0
"""How far a measurement is: one line on a terminal, written between samples and seldom."""

from __future__ import annotations

import shutil
from time import monotonic
from typing import TextIO

from rnic.cli.perf.plan import Plan

EVERY = 0.2  # seconds
ERASE = "\r\x1b[K"


class Progress:
    """The line; nothing is written where there is no terminal."""

    def __init__(self, plan: Plan, stream: TextIO) -> None:
        self.plan, self.stream = plan, stream
        self.shown = stream.isatty()
        self.size = 0
        self.measuring = self.next = 0.0

    def begin(self, size: int) -> None:
        """The next size."""
        self.size, self.next, self.measuring = size, 0.0, 0.0
        self.tick(0)

    def tick(self, operations: int) -> None:
        """So many operations of all queue pairs have been measured."""
        now = monotonic()
        if operations and not self.measuring:
            self.measuring = now
        if not self.shown or now < self.next:
            return
        self.next = now + EVERY
        room = shutil.get_terminal_size().columns - 1  # a second line would stay
        self._write(ERASE + f" {self._text(operations, now - self.measuring)}"[:room])

    def clear(self) -> None:
        """Makes room for a row."""
        if self.shown:
            self._write(ERASE)

    def _text(self, operations: int, seconds: float) -> str:
        plan, sizes = self.plan, self.plan.sizes
        nth = f" ({sizes.index(self.size) + 1} of {len(sizes)} sizes)" if len(sizes) > 1 else ""
        if plan.duration:
            part = f"{min(seconds, plan.duration):.1f} of {plan.duration:g} s"
        else:
            part = f"{operations} of {plan.count(self.size) * plan.qps} operations"
        return f"{self.size} bytes{nth}: {part if operations else 'warming up'}"

    def _write(self, text: str) -> None:
        self.stream.write(text)
        self.stream.flush()
