# SPDX-License-Identifier: Apache-2.0
"""What the Linux kernel answers every call in every state, as recorded in kernel_calls.json.

tests/interop holds the record against a kernel, and makes a new one with RNIC_RECORD=1.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rdmacm.differences import Told
from rdmacm.walk import Talk

FILE = Path(__file__).with_suffix(".json")
CRASH = "crash"

Record = dict[str, dict[str, Talk]]
"""By state and call."""


def load() -> Record:
    """The record."""
    return {state: dict(_unpacked(said)) for state, said in json.loads(FILE.read_text()).items()}


def save(record: Record) -> None:
    """A new one."""
    lines = [f"{json.dumps(state)}: {_text(_packed(talks))}" for state, talks in record.items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _text(packed: dict[str, Any]) -> str:
    return (
        "{\n"
        + ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in packed.items())
        + "\n}"
    )


def _packed(talks: dict[str, Talk]) -> dict[str, Any]:
    """Calls whose answer is all that came of them stand in a list by that answer."""
    first = next(iter(talks.values()))
    packed: dict[str, Any] = {"heard": first.heard, "states": first.states}
    for word, talk in talks.items():
        told = talk.told[0]
        if told == Told(told.answer, [], [], first.states) or told.answer == CRASH:
            packed.setdefault(told.answer, []).append(word)
        else:
            packed[word] = list(asdict(told).values())
    return packed


def _unpacked(said: dict[str, Any]) -> list[tuple[str, Talk]]:
    heard, states = said.pop("heard"), said.pop("states")
    found = []
    for key, value in said.items():
        if "." in key:
            found.append((key, Told(*value)))
        else:
            quiet = Told(key) if key == CRASH else Told(key, [], [], states)
            found += [(word, quiet) for word in value]
    return [(word, Talk(heard, states, [told])) for word, told in found]


__all__ = ["FILE", "Record", "load", "save"]
