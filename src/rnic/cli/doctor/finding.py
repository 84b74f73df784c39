# SPDX-License-Identifier: Apache-2.0
"""The result of a check."""

from __future__ import annotations

import enum

from rnic.records import Record


class State(enum.Enum):
    """How well a feature works."""

    OK = "ok"
    DEGRADED = "degraded"
    MISSING = "missing"
    NOT_RUN = "not run"


class Finding(Record):
    """One line of the report."""

    what: str
    state: State
    found: str
    cure: str = ""
    needed: bool = False
    """Without this feature rnic does not work at all."""

    def record(self) -> dict[str, object]:
        """The finding for JSON."""
        return {
            "what": self.what,
            "state": self.state.value,
            "found": self.found,
            "cure": self.cure,
            "needed": self.needed,
        }


def good(what: str, found: str) -> Finding:
    return Finding(what, State.OK, found)


def degraded(what: str, found: str, cure: str) -> Finding:
    return Finding(what, State.DEGRADED, found, cure)


def not_run(what: str, found: str, cure: str) -> Finding:
    return Finding(what, State.NOT_RUN, found, cure)


def missing(what: str, found: str, cure: str, *, needed: bool = False) -> Finding:
    return Finding(what, State.MISSING, found, cure, needed)
