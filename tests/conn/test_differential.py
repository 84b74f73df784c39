# SPDX-License-Identifier: Apache-2.0
"""Random programs of two ends lead to the same by every way: what the model says.

A failure names its seed: `python -m conn.differential --seed SEED --programs 1` runs that again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from conn.differential.model import Model
from conn.differential.program import (
    INCOMING,
    OUTGOING,
    REFUSED,
    Batch,
    Listen,
    Maker,
    Op,
    Send,
    Step,
    Tagged,
    Wrong,
    digest,
)  # fmt: skip
from conn.differential.runner import RAW, Way, Workers, explain, make, ways, workers

pytestmark = pytest.mark.own_way
SAMPLE = 400 if os.environ.get("RNIC_SOAK") else 8
"""Programs of each version."""


@pytest.fixture(scope="module")
def made() -> Iterator[Workers]:
    with workers() as found:
        yield found


@pytest.mark.one_in(2)
@pytest.mark.parametrize("version", [RAW, 1, 2])
def test_programs_do_what_the_model_says(made: Workers, version: int) -> None:
    for seed in range(1, 1 + SAMPLE):
        said = explain(made, ways(seed, 2 if version == 2 else 1, version), seed)
        assert not said, said


def every_step(count: int) -> Iterator[Step]:
    for seed in range(count):
        for both in make(seed):
            yield from (*both[0], *both[1])


def test_a_seed_makes_one_program() -> None:
    assert make(7) == make(7)
    assert make(7) != make(8)
    assert ways(7, 3) == ways(7, 3)


def test_programs_have_all_that_they_are_to_have() -> None:
    steps = list(every_step(150))
    ops = [
        op for step in steps for op in (step.ops if isinstance(step, Batch) else [step]) if isinstance(op, Op)
    ]
    assert {op.what for op in ops} == {"read", "write", "add", "swap", "array"}
    assert {op.kind for op in ops} >= {*OUTGOING, "mr"}
    assert any(op.fence for op in ops)
    assert any(op.patience is not None for op in ops)
    assert {step.what for step in steps if isinstance(step, Wrong)} == {*REFUSED, "withdrawn"}
    assert {how for step in steps if isinstance(step, Listen) for how in step.hows} == {
        "recv",
        "small",
        *INCOMING,
    }
    sends = [step for step in steps if isinstance(step, Send)]
    assert {step.kind for step in sends} == set(OUTGOING)
    assert any(step.patience is not None for step in sends)
    assert max(step.size for step in sends) > 1 << 18
    assert any(step.tags for step in steps if isinstance(step, Tagged))


def test_version_1_has_no_tags() -> None:
    for seed in range(50):
        for both in Maker(seed, tags=False).program():
            for step in (*both[0], *both[1]):
                assert not getattr(step, "tag", 0)


def test_a_wrong_message_and_a_wrong_byte_are_seen(made: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tester that never fails would prove nothing: here the model is told something wrong."""
    honest = Model.round

    def lying(self: Model, both: Any) -> Any:
        found = honest(self, both)
        for memory in self.regions.values():
            memory[0] ^= 1
        return found

    monkeypatch.setattr(Model, "round", lying)
    said = (explain(made, [Way()], seed) for seed in range(1, 10))  # as many as it takes
    assert any("expected (" in one and "found (" in one for one in said)
    assert digest(b"") == (0, 0)
