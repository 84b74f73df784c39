# SPDX-License-Identifier: Apache-2.0
"""Random programs of work requests between rnic and the kernel, held against one model of both.

A failure names its seed; `SEED=... PROGRAMS=1 make interop ARGS='-k differential'` runs that again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from differential_ends import PORT, KernelEnd
from ends import gid_of
from link import Link

from differential.model import FAULTS, Fault, Rules
from differential.program import BRINGS, Break, Cut, Maker, Program, Refused, Round
from differential.runner import DifferentError, Runner

if TYPE_CHECKING:
    from differential.end import RnicEnd

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("wire")]
PROGRAMS = int(os.environ.get("PROGRAMS") or (400 if os.environ.get("RNIC_SOAK") else 12))
FIRST = int(os.environ.get("SEED") or 1)

# Where the two differ, and who is right by the specification.
ASKS_RNIC = FAULTS | {
    # Bad memory of a request on an unreliable queue pair: SQE, and LOC_PROT_ERR, are right (IBA 10.3.1.6,
    # 11.6.2); the kernel takes it for a failure of the queue pair.
    ("UC", "local"): Fault("LOC_QP_OP_ERR", "ERR", peer="RTS"),
    ("UD", "local"): Fault("LOC_QP_OP_ERR", "ERR", peer="RTS"),
}
ASKS_KERNEL = FAULTS | {
    # Bad memory of a receive is a local protection error (IBA 11.6.2); the kernel takes it for a failure of
    # the queue pair.
    ("RC", "receive"): Fault("REM_OP_ERR", receive="LOC_QP_OP_ERR"),
    # Longer than the receive: an invalid request and a local length error are right (IBA 9.7.4.1).
    ("RC", "long"): Fault("REM_OP_ERR", receive="LOC_QP_OP_ERR"),
}
RNIC = Rules(faults=ASKS_KERNEL)
KERNEL = Rules(
    faults=ASKS_RNIC,
    flushes=False,  # a receive posted in ERR stays there; IBA 10.3.1.5 wants it flushed
    refused_receive="REM_ACCESS_ERR",  # the peer's status at this end; LOC_ACCESS_ERR is right (IBA 11.6.2)
    short=("LOC_QP_OP_ERR", "ERR"),  # UC: it fails where a message is to be dropped (IBA 9.8.2.2.6)
    last_receive=False,  # IBA 11.6.3 wants it told; later kernels do
    short_datagram=("LOC_QP_OP_ERR", "ERR"),  # a local length error is right (IBA 11.6.2)
)


def suits(program: Program) -> bool:
    """Not what the kernel's library or the kernel cannot be asked for.

    Its library posts no atomic at an address that is not aligned, and any opcode: only its kernel then says
    LOC_QP_OP_ERR, where the post is to be refused (IBA 11.4.1.1).  Its requester, in 6.1, waits for ever with
    bad memory behind a READ or atomic that is under way, or behind a fence, and with a fence when something
    is repeated.  A key that may not be invalidated ends its responder, which yet acknowledges the SEND if it
    asks for that: what the requester is told depends on it.
    """
    broken = False
    for step in program.steps:
        if isinstance(step, Cut):
            return (
                False  # what the guest's Python does takes far too long to come into the middle of anything
            )
        if isinstance(step, Refused) and step == Refused("b", "opcode"):
            return False
        if isinstance(step, Break):
            broken = step.end == "a"
        if isinstance(step, Round):
            faults = {work.fault for work in step.b}
            brings = any(work.opcode in BRINGS for work in step.b)
            repeats = broken or "rnr" in faults or any(work.late for work in step.b)
            fence = any("FENCE" in work.flags for work in step.b)
            if "align" in faults or ("local" in faults and (brings or fence)) or (fence and repeats):
                return False
            if any(work.fault == "invalidate" for work in step.a):
                return False
    return True


@pytest.fixture
def server(link: Link) -> tuple[str, int]:
    """Where the guest's program listens."""
    if not hasattr(link, "differential"):
        script = Path(__file__).with_name("guest_differential.py").resolve()
        job = link.guest.spawn(f"python3 -u '{script}' {PORT}")
        job.expect("ready", timeout=120)
        link.differential = job
    return link.guest.ip, PORT


@contextmanager
def ends(
    link: Link, server: tuple[str, int], family: str, program: Program
) -> Iterator[tuple[RnicEnd, KernelEnd]]:
    from differential.end import RnicEnd

    kind = program.service, program.own_memory[0], program.sig_all, program.shared[0]
    with ExitStack() as stack:
        kernel = stack.enter_context(closing(KernelEnd(server, gid_of(link.guest_ip[family]), program, 1)))
        own = RnicEnd(link.context, *kind, 0, link.rnic_gid_index(family))
        yield stack.enter_context(closing(own)), kernel


def run(link: Link, server: tuple[str, int], family: str, seed: int) -> str:
    program = Maker(seed, largest_mtu=link.path_mtus[-1]).program()
    if not suits(program):
        return ""
    with ends(link, server, family, program) as (own, kernel):
        try:
            Runner(program, own, kernel, {"a": RNIC, "b": KERNEL}).run()
        except DifferentError as error:
            return str(error)
    return ""


@pytest.mark.parametrize("part", range(4))
def test_programs_do_what_the_model_says(link: Link, server: tuple[str, int], family: str, part: int) -> None:
    for seed in range(FIRST + part, FIRST + PROGRAMS, 4):
        said = run(link, server, family, seed)
        assert not said, f"again: SEED={seed} PROGRAMS=1\n{said}"
