# SPDX-License-Identifier: Apache-2.0
"""What came true of the failures and faults that a user of `rnic run` has asked for.

Programs count in a file that they share (src/nic/base/tally.c), the server of RDMA-CM in the rules.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from rnic.programs.wishes import OWN
from rnic.ucma import Failing

_FILE = "tally"
_RULES = 32  # RNIC_ENV_FAIL
_FAULTS = {  # fields of rnic.Faults, and the place of their counter
    "loss": 0,
    "duplicate": 1,
    "reorder": 2,
    "delay": 3,
    "reset": 4,
    "reset_after": 4,
    "stall": 5,
    "stall_after": 5,
    "flip": 6,
    "flip_header": 6,
    "mark": 7,
}
_LAYOUT = struct.Struct(f"={2 * _RULES}Q8Q")


class Counted:
    """A call of librdmacm that is to fail, which counts."""

    def __init__(self, rule: Failing) -> None:
        self.call, self.errno, self._rule = rule.call, rule.errno, rule
        self.called = self.failed = 0

    def hits(self, n: int) -> bool:
        """Whether call n fails, counted from 1."""
        hit = self._rule.hits(n)
        self.called += 1
        self.failed += hit
        return hit


class Tally:
    """Counts from when it is made, in the folder of `rnic run`, to when it is read."""

    def __init__(self, folder: Path, own: dict[str, str], rules: list[Counted]) -> None:
        self._own, self._rules = own, rules
        self._file = folder / _FILE
        if own.get(OWN["fail"]) or own.get(OWN["fault"]):
            self._file.write_bytes(bytes(_LAYOUT.size))

    def lines(self) -> Iterator[str]:
        """A line for each failure and each fault: whether it came true, and how often."""
        if not self._file.exists():
            return
        try:
            counts = _LAYOUT.unpack(self._file.read_bytes())
        except (OSError, struct.error) as error:
            yield f"what came true of --fail and --fault cannot be read: {self._file}: {_why(error)}"
            return
        called: Counter[str] = (
            Counter()
        )  # the first of several rules for a call that fails keeps it from the others
        for rule, count in zip(self._rules, counts[: 2 * _RULES : 2], strict=False):
            called[rule.call] = max(called[rule.call], count + rule.called)
        texts = filter(None, self._own.get(OWN["fail"], "").split(";"))
        for text, rule, failed in zip(texts, self._rules, counts[1 : 2 * _RULES : 2], strict=False):
            name = rule.call if rule.call.startswith("rdma_") else f"ibv_{rule.call}"
            met = f"{name}() was {_called(called[rule.call])}"
            yield f"--fail {text.strip()} {_came_true(failed + rule.failed, met)}"
        for text in self._own.get(OWN["fault"], "").split(","):
            place = _FAULTS.get(text.partition("=")[0].strip())
            if place is not None:
                yield f"--fault {text.strip()} {_came_true(counts[2 * _RULES + place])}"


def _why(error: OSError | struct.error) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else "somebody has changed its size"


def _came_true(count: int, otherwise: str = "") -> str:
    if count:
        return f"came true {_times(count)}"
    return "never came true" + (f": {otherwise}" if otherwise else "")


def _called(count: int) -> str:
    return f"called {_times(count)}" if count else "never called"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
