# SPDX-License-Identifier: Apache-2.0
"""Random programs lead to the same bytes, completions and states by every way that bytes take: the model's.

A failure names its seed; `make differential SEED=... PROGRAMS=1` runs that again and makes it smaller.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from differential import iwarp_end
from differential.iwarp import IWARP, StreamModel, streamed
from differential.model import REFUSED, Fault, Model, Outcome
from differential.program import INLINE, Cut, Maker, Program, Refused, Round, Step, Work
from differential.shrink import shrink, smaller
from differential.ways import Ways

SAMPLE = 25
SEEDS = range(1, 1 + int(os.environ.get("PROGRAMS") or (1000 if os.environ.get("RNIC_SOAK") else SAMPLE)))


@pytest.fixture(scope="module")
def ways() -> Iterator[Ways]:
    with Ways() as made:
        yield made


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", Ways.NAMES)
def test_programs_do_what_the_model_says(ways: Ways, name: str) -> None:
    for seed in SEEDS:
        program = Maker(seed).program()
        if ways.suits(name, program):
            said = ways.explain(name, program, seed)
            assert not said, f"again: make differential SEED={seed} PROGRAMS=1 WAYS='{name}'\n{said}"


def works(program: Program) -> Iterator[Work]:
    for step in program.steps:
        if isinstance(step, Round):
            yield from (*step.a, *step.b)


def test_a_seed_makes_one_program() -> None:
    for seed in range(20):
        assert Maker(seed).program() == Maker(seed).program()
    assert Maker(1).program() != Maker(2).program()


def test_programs_have_all_that_they_are_to_have() -> None:
    """Every operation, flag and fault, late receives, messages of several packets, PSNs that wrap."""
    programs = [Maker(seed).program() for seed in range(200)]
    found = [work for program in programs for work in works(program)]
    assert {program.service for program in programs} == {"RC", "UC", "UD"}
    assert {flag for work in found for flag in work.flags} == {"SIGNALED", "FENCE", "INLINE", "SOLICITED"}
    assert {work.to for work in found} == {"memory", "readable", "writable", "window"}
    assert len({work.opcode for work in found}) == 8
    assert len({work.fault for work in found}) == 13
    refused = {step.what for program in programs for step in program.steps if isinstance(step, Refused)}
    assert refused == set(REFUSED)
    assert any(work.late for work in found)
    assert any(work.length > 4 * 4096 for work in found)
    assert all(work.length <= INLINE for work in found if "INLINE" in work.flags)
    wraps = [psn for program in programs for psn in program.steps[0].psns if psn > 0xFFFFF0]  # type: ignore[union-attr]
    assert wraps


def run_model(model: Model) -> None:
    for step in model.program.steps:
        if not isinstance(step, Cut):
            assert model.after(step)


def test_what_is_smaller_is_a_program_too() -> None:
    for seed in range(10):
        for program in smaller(Maker(seed).program()):
            run_model(Model(program))
            if program.service == "RC":
                run_model(StreamModel(streamed(program)))


def test_the_least_that_fails_is_found() -> None:
    """A stand-in for a defect: a READ anywhere."""

    def fails(program: Program) -> bool:
        return any(work.opcode == "RDMA_READ" for work in works(program))

    program = next(made for seed in range(100) if fails(made := Maker(seed).program()))
    least = shrink(program, fails)
    assert [work.opcode for work in works(least)] == ["RDMA_READ"]
    assert len(least.steps) == 2


@pytest.mark.parametrize("name", ["contexts, wire", "contexts, iwarp"])
def test_a_wrong_byte_and_a_wrong_state_are_seen(
    ways: Ways, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tester that never fails would prove nothing: here the model is told something wrong."""
    made = (Maker(seed, ["RC"]).program() for seed in range(100))
    program = next(each for each in made if len(list(works(each))) > 8)
    honest = Model.after

    def lying(self: Model, step: Step) -> list[Outcome]:
        outcomes = honest(self, step)
        last = outcomes[-1]
        memory = bytearray(last.memories["a"])
        memory[77] ^= 1
        object.__setattr__(last, "memories", {**last.memories, "a": bytes(memory)})
        object.__setattr__(last, "states", {**last.states, "b": "SQD"})
        return outcomes

    monkeypatch.setattr(Model, "after", lying)
    monkeypatch.setattr(iwarp_end, "PATIENCE", 0.1)
    said = ways.explain(name, program)
    assert "1 bytes of the memory are wrong, the first at 77 (in OUT)" in said
    assert "not in SQD" in said


def test_a_wrong_status_is_seen_where_there_are_several_endings(
    ways: Ways, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(IWARP.faults, ("RC", "key"), Fault("REM_OP_ERR"))
    made = (Maker(seed, ["RC"]).program() for seed in range(1000))
    program = next(
        each
        for each in made
        if any(work.fault == "key" and work.opcode == "RDMA_READ" for work in works(each))
    )
    assert "REM_ACCESS_ERR" in ways.explain("contexts, iwarp", program)
