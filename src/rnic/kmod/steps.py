# SPDX-License-Identifier: Apache-2.0
"""What a module is tested for, step by step, and how it did."""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple


class Step(Enum):
    """What a module has to do, in order; the value says it in at most 20 characters."""

    COMPILE = "compiles, no warning"
    LOAD = "loads"
    PROC = "has its /proc file"
    CONNECT = "connects"
    MESSAGE = "right messages"
    HOSTILE = "bears wrong messages"
    DEATH = "bears a peer's end"
    UNLOAD = "unloads, leaks none"


# A step is not reached if the one that it needs has not passed.
NEEDS = {
    Step.LOAD: Step.COMPILE,
    Step.PROC: Step.LOAD,
    Step.CONNECT: Step.PROC,
    Step.MESSAGE: Step.CONNECT,
    Step.HOSTILE: Step.MESSAGE,
    Step.DEATH: Step.MESSAGE,
    Step.UNLOAD: Step.LOAD,
}


class Outcome(NamedTuple):
    """Of one step."""

    result: str  # passed, failed or not reached
    detail: str = ""  # what was wrong, in words
    printed: str = ""  # what compiler, kernel or peer said of it, in lines


PASSED, NOT_REACHED = Outcome("passed"), Outcome("not reached")


class Report:
    """How a module did over one transport."""

    def __init__(self, transport: str, steps: tuple[Step, ...]) -> None:
        self.transport, self.steps = transport, steps
        self.outcomes = dict.fromkeys(steps, NOT_REACHED)

    @property
    def passed(self) -> bool:
        """Whether all steps did."""
        return all(one is PASSED for one in self.outcomes.values())

    @property
    def failures(self) -> dict[Step, Outcome]:
        """The steps that failed."""
        return {step: one for step, one in self.outcomes.items() if one.result == "failed"}

    def can_be_reached(self, step: Step) -> bool:
        """Whether the step that it needs has passed."""
        return step not in NEEDS or self.outcomes[NEEDS[step]] is PASSED

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return {
            "transport": self.transport,
            "passed": self.passed,
            "steps": {step.name.lower(): one.result for step, one in self.outcomes.items()},
            "failures": {
                step.name.lower(): {"detail": one.detail, "printed": one.printed}
                for step, one in self.failures.items()
            },
        }
