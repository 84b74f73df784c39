# SPDX-License-Identifier: Apache-2.0
"""Senders in C before the grader: the solution passes, each wrong one fails at its step."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from cli.commands import Command
from lab3.c_sender import SKELETON, sender, with_gaps
from lab3.senders import CASES, patiently
from rdmacm.ends import IWARP
from rnic.cli.lab3.cases import Step
from rnic.cli.lab3.grade import Report, grade
from ucma.under import needs_libraries

pytestmark = needs_libraries
Start = Callable[..., Command]


@dataclass(frozen=True)
class Wrong:
    """What the grader says of a sender that is compiled with -D of its name."""

    step: Step
    says: str
    case: str = "odd"
    seconds: float = 20


LONG = "many WRITEs" if IWARP else "1 region"  # where the memory of a WRITE is in use for a while

WRONG = {
    "ABORT": Wrong(Step.WRITE, "ended with SIGABRT"),
    "BAD_RKEY": Wrong(Step.WRITE, "an address or a key that it was not given"),
    "BELIEVES_ALL": Wrong(Step.STOP, "ID came after a bad VERDICT", "bad verdict"),
    "DONE_FIRST": Wrong(Step.DONE, "DONE came before the bytes", "1 region"),
    "EARLY_RELEASE": Wrong(Step.WRITE, "ended with exit code 1", LONG),
    "ENDS_WELL": Wrong(Step.STOP, "end with another exit code than 0", "bad verdict"),
    "HANG": Wrong(Step.DONE, "the sender was still running after ", seconds=2),
    "HOST_ORDER": Wrong(Step.ANNOUNCE, "is it in network byte order?"),
    "NEVER_DISCONNECTS": Wrong(Step.DISCONNECT, "did not end the connection: call rdma_disconnect()"),
    "NO_RECEIVE": Wrong(Step.REGION, "call rdma_post_recv() or ibv_post_recv() before", seconds=3),
    "NO_WAIT": Wrong(Step.WRITE, "memory alone until", LONG),
    "NO_WRITE": Wrong(Step.WRITE, "DONE came, but none of the 10007 bytes"),
    "WRONG_HASH": Wrong(Step.HASH, "with SHA-256, as sha256() of the exercise does"),
    "WRONG_KEY": Wrong(Step.KEY, "it printed 'secret key: "),
    "WRONG_LENGTH": Wrong(Step.ANNOUNCE, "ANNOUNCE has a length of 10008"),
}
TRIED = list(WRONG)[:: 1 if os.environ.get("RNIC_SOAK") else 3]


@pytest.fixture(scope="module")
def graded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Future[Report]]:
    """All wrong senders, several at a time: most of it is waiting."""
    folder = tmp_path_factory.mktemp("wrong")

    def one(name: str) -> Report:
        wrong = WRONG[name]
        program = sender(folder / name, f"-D{name}")
        return patiently(
            lambda seconds: next(grade(program, seconds, [CASES[wrong.case]])),
            wrong.seconds,
            lambda report: report.failed is wrong.step and wrong.says in report.detail,
        )

    with ThreadPoolExecutor(4) as pool:
        return {name: pool.submit(one, name) for name in TRIED}


@pytest.mark.parametrize("name", TRIED)
def test_wrong_sender_fails_at_its_step(name: str, graded: dict[str, Future[Report]]) -> None:
    wrong, report = WRONG[name], graded[name].result()
    assert report.failed is wrong.step, report
    assert wrong.says in report.detail, report


def test_solution_passes_with_every_file(rnic: Start, tmp_path: Path) -> None:
    result = rnic("lab3", "grade", sender(tmp_path / "sender", "-Wextra")).wait()
    assert (result.status, result.err) == (0, ""), result.out
    assert result.out.endswith("9 of 9 runs passed\n")
    assert ("not judged over iWARP" in result.out) is IWARP


def test_skeleton_is_the_solution_with_gaps() -> None:
    assert SKELETON.read_text() == with_gaps(), "python tests/lab3/c_sender.py"


def test_skeleton_compiles_and_fails_at_its_first_gap(rnic: Start, tmp_path: Path) -> None:
    source = tmp_path / "sender.c"
    source.write_text(rnic("lab3", "skeleton", "--c").wait().out)
    assert "cc -std=c11" in source.read_text()
    refused = rnic("lab3", "grade", source).wait()
    assert (refused.status, "compile it first: cc " in refused.err) == (1, True)
    (report,) = grade(sender(tmp_path / "sender", "-Wextra", "-Werror", source=source), 20, [CASES["empty"]])
    assert report.failed is Step.CONNECT
    assert report.stderr == "TODO 1 is not written yet\n"


def test_skeleton_in_python_by_either_word(rnic: Start) -> None:
    assert rnic("lab3", "skeleton").wait().out == rnic("lab3", "--skeleton").wait().out
