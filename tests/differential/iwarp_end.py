# SPDX-License-Identifier: Apache-2.0
"""Ends of programs that are queue pairs of iWARP, and what leads two of them through a program."""

from __future__ import annotations

import functools
import operator
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from differential.end import Address, RnicEnd
from differential.iwarp import Open, Ranges, StreamModel, start_up, streamed
from differential.model import Outcome
from differential.program import ENDS, Connect, Cut, Program, Step
from differential.runner import PAIRS, PATIENCE, Runner, mixed
from rnic import AccessFlags, Context, QPState, Transport
from rnic.verbs.connect import Address as Meets
from rnic.verbs.connect import Options, complete, prepare


class StreamEnd(RnicEnd):
    def prepare(self, sig_all: bool, options: Options, confirm: bool, both: bool) -> Address:
        """A queue pair in INIT, which waits for its peer."""
        address = self.renew(sig_all)
        if self.qp.state != QPState.RESET:
            self.lead("RESET")
        self.access, self.options = options.access, options
        self.own = prepare(self.qp, options)
        if confirm:
            self.qp.confirm_stream(both)
        return replace(address, stream=bytes(self.own).hex())

    def connect(self, peer: Address, *_: object) -> None:
        complete(self.qp, self.own, Meets.from_bytes(bytes.fromhex(peer.stream)), self.options)
        self.peer = peer


def end_on(ctx: Context, *args: Any) -> RnicEnd:
    return (StreamEnd if ctx.device.transport is Transport.IWARP else RnicEnd)(ctx, *args)


class StreamRunner(Runner):
    """Both ends notice what happens to the other one, when TCP has told them."""

    model: StreamModel
    ends: dict[str, Any]

    def __init__(self, program: Program, a: Any, b: Any) -> None:
        super().__init__(streamed(program), a, b)
        self.model = StreamModel(self.program)

    def _connect(self, step: Connect) -> None:
        agreed = start_up(step)
        order = PAIRS if agreed.first == "a" else PAIRS[::-1]
        for end, _ in order:
            i = ENDS.index(end)
            rights = (AccessFlags[f"REMOTE_{right}"] for right in step.rights[i].split())
            options = Options(
                max_rd_atomic=step.rd_atomic,
                max_dest_rd_atomic=step.rd_atomic,
                access=functools.reduce(operator.or_, rights, AccessFlags(0)),
                crc=agreed.crc[i],
                markers=agreed.markers[i],
            )
            self.addresses[end] = self.ends[end].prepare(
                self.program.sig_all, options, agreed.confirm[i], all(agreed.confirm)
            )
        for end, peer in order:
            self.ends[end].connect(self.addresses[peer])

    def _held(self, step: Step) -> Iterator[str]:
        outcomes = self.model.after(step)
        self._do(step)
        yield from self._ends_as(outcomes)

    def _cut(self, step: Cut) -> Iterator[str]:
        if step.how != "SQD":
            yield from super()._cut(step)
            return
        outcome = self.model.closed(step)
        self.refused = ""
        self._post(step.asks, step.work)
        self.ends[step.end].break_(step.how)
        yield from self._ends_as([outcome])

    def _ends_as(self, outcomes: list[Outcome]) -> Iterator[str]:
        """Waits for one of them; what is not as it should be."""
        self.got = {end: ([], []) for end in ENDS}
        self.events = {end: [] for end in ENDS}
        late = time.monotonic() + PATIENCE
        while True:
            self._hear_more()
            held = next((outcome for outcome in outcomes if not any(self._problems(outcome))), None)
            if held:
                self._learn(held)
                return
            if time.monotonic() > late or not any(self._may_become(outcome) for outcome in outcomes):
                yield from min((list(self._problems(outcome)) for outcome in outcomes), key=len)
                return
            time.sleep(0.001)

    def _hear_more(self) -> None:
        """Events first: behind the last one no completion comes."""
        for end, shared in zip(ENDS, self.program.shared, strict=True):
            if shared:
                self.events[end] += self.ends[end].events(0, 0.0)
        for end, queues in self.got.items():
            for queue, more in zip(queues, self.ends[end].collect(0, 0), strict=True):
                queue += more

    def _may_become(self, outcome: Outcome) -> bool:
        """Nothing is there that should not be."""
        return not any(Counter(self.events[end]) - Counter(outcome.events[end]) for end in ENDS) and all(
            tuple(got) == want[: len(got)]
            for end in ENDS
            for got, want in zip(self.got[end], (outcome.sent[end], outcome.received[end]), strict=True)
        )

    def _memory(self, end: str, outcome: Outcome) -> Iterator[str]:
        if not isinstance(outcome, Open) or not outcome.loose.get(end):
            yield from super()._memory(end, outcome)
            return
        loose = outcome.loose[end]
        want = outcome.memories[end]
        shots = [_patched(want, moment, loose) for moment in outcome.moments[end]]
        yield from mixed(end, self.ends[end].memory(), [want, *shots], outcome.holes[end])

    def _learn(self, outcome: Outcome) -> None:
        if isinstance(outcome, Open):
            for end, loose in outcome.loose.items():
                self.model.ends[end].memory[:] = _patched(
                    outcome.memories[end], self.ends[end].memory(), loose
                )


def _patched(memory: bytes, other: bytes, ranges: Ranges) -> bytes:
    """With the bytes of the other one in the ranges."""
    made = bytearray(memory)
    for first, behind in ranges:
        made[first:behind] = other[first:behind]
    return bytes(made)
