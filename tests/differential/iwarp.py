# SPDX-License-Identifier: Apache-2.0
"""Programs over iWARP: what it has not, what it does in another way, and what a wrong request comes to there.

All that differs from RoCE is here (docs/rooms/iwarp.md, RFC 5040, RFC 5041):

- there is no SEND with immediate data, and no receive comes late: `streamed()` makes such programs;
- the connection is common to both ends.  An error, or an end that leaves, ends it for both;
- a SEND or WRITE is complete when TCP has it, or, if messages are confirmed, when the peer has it.  So one
  that comes to nothing may be complete.  One that the peer has may wait for a READ until it is flushed;
- the peer answers READs and atomics in their turn, and goes on with what comes behind them;
- SQD closes the connection in order: then all that was posted comes to its end.

So a round with a wrong request may end in several ways, and the model says which.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from differential.model import FAULTS, FLUSHED, SEND_OPCODES, Completion, Fault, Model, Outcome, Rules
from differential.program import (
    ATOMICS,
    BRINGS,
    ENDS,
    SENDS,
    Connect,
    Cut,
    Pieces,
    Program,
    Refused,
    Round,
    Step,
    Work,
    takes_receive,
)

Ranges = tuple[tuple[int, int], ...]

IWARP = Rules(
    faults=FAULTS
    | {
        ("RC", "qp"): Fault("REM_ACCESS_ERR"),  # a right is a right, whose ever
        ("RC", "align"): Fault("REM_OP_ERR"),
        ("RC", "rnr"): Fault("RNR_RETRY_EXC_ERR"),
        ("RC", "local"): Fault("LOC_PROT_ERR"),
    },
)


def streamed(program: Program) -> Program:
    """The program without what iWARP has not."""
    return replace(program, steps=tuple(_streamed(step) for step in program.steps))


def _streamed(step: Step) -> Step:
    if isinstance(step, Round):
        return replace(step, a=_plain(step.a), b=_plain(step.b))
    if isinstance(step, Cut):
        in_order = step.end == step.asks and random.Random(repr(step)).random() < 0.5
        return replace(step, work=_plain(step.work), how="SQD" if in_order else step.how)
    return step


def _plain(works: Sequence[Work]) -> tuple[Work, ...]:
    return tuple(
        replace(work, opcode="SEND", imm=0, late=False)
        if work.opcode == "SEND_WITH_IMM"
        else replace(work, late=False)
        for work in works
    )


@dataclass(frozen=True)
class StartUp:
    """What a connection begins with, of a and b.  It follows from the PSNs, which iWARP has not."""

    crc: tuple[bool, bool]
    markers: tuple[bool, bool]
    confirm: tuple[bool, bool]
    """Whether its completions tell that the peer has the message."""
    first: str
    """The initiator."""


def start_up(step: Connect) -> StartUp:
    rng = random.Random(repr(step.psns))
    crc, markers, confirm = ((rng.random() < share, rng.random() < share) for share in (0.5, 0.2, 0.5))
    return StartUp(crc, markers, confirm, rng.choice(ENDS))


@dataclass(frozen=True)
class Ending:
    """A way in which a round with a wrong request may end.  The end that asks sends, its peer receives."""

    sent: tuple[Completion, ...]
    received: tuple[Completion, ...]
    memories: dict[str, bytes]
    loose: Mapping[str, Ranges]
    """Bytes that are those of any of the moments."""
    moments: Mapping[str, tuple[bytes, ...]]


@dataclass(frozen=True)
class Open(Outcome):
    """One of several."""

    loose: Mapping[str, Ranges] = field(default_factory=dict)
    moments: Mapping[str, tuple[bytes, ...]] = field(default_factory=dict)


class StreamModel(Model):
    def __init__(self, program: Program) -> None:
        super().__init__(program, dict.fromkeys(ENDS, IWARP))

    def after(self, step: Step) -> list[Outcome]:
        if isinstance(step, Connect):
            self.rd_atomic = step.rd_atomic
            self.confirms = dict(zip(ENDS, start_up(step).confirm, strict=True))
        if isinstance(step, Round):
            for end, peer in ("ab", "ba"):
                if any(work.fault for work in step.work(end)) and self.ends[end].state == "RTS":
                    return self._failing(end, peer, step.work(end))
        outcomes = super().after(step)
        if isinstance(step, Refused) and step.what == "sends":
            outcomes += self._refused_ahead(step.end, outcomes[0])
        return outcomes

    def closed(self, step: Cut) -> Outcome:
        """What comes of work behind which the connection is closed in order."""
        outcome = self.snapshots(step)[-1]
        for model in self.ends.values():
            model.fail("ERR")
        return replace(
            outcome, states=dict.fromkeys(ENDS, "ERR"), events={end: self._told(end) for end in ENDS}
        )

    def _refused_ahead(self, end: str, outcome: Outcome) -> list[Outcome]:
        """The SENDs that fill a queue find no receive: that may end the connection ahead of the program."""
        if not self.ends[end].shared:
            return []
        return [replace(outcome, events={**outcome.events, end: ("QP_LAST_WQE_REACHED",)})]

    def _left(self, end: str) -> None:
        """The other end reads the end of the stream."""
        peer = self.ends["b" if end == "a" else "a"]
        if peer.state == "RTS":
            peer.fail("ERR")

    # -- a round with a wrong request

    def _failing(self, end: str, peer: str, works: tuple[Work, ...]) -> list[Outcome]:
        for model in self.ends.values():
            model.sent, model.received, model.events = [], [], []
        for number, work in enumerate(works):
            if work.receive is not None:
                self._post_receive(peer, number, work)
        endings = list(self._endings(end, peer, works))
        for model in self.ends.values():
            model.fail("ERR")
        return [
            Open(
                sent={end: one.sent, peer: ()},
                received={end: (), peer: one.received},
                states=dict.fromkeys(ENDS, "ERR"),
                memories=one.memories,
                holes={name: tuple(model.holes) for name, model in self.ends.items()},
                refused="",
                events={name: self._told(name) for name in ENDS},
                loose=one.loose,
                moments=one.moments,
            )
            for one in endings
        ]

    def _endings(self, end: str, peer: str, works: tuple[Work, ...]) -> Iterator[Ending]:
        bad = next(number for number, work in enumerate(works) if work.fault)
        moments = [self._memories()]
        for work in works[:bad]:
            self._deliver(end, peer, work)
            moments.append(self._memories())
        self._refuse(end, peer, works[bad])
        moments.append(self._memories())
        if works[bad].fault == "local":
            yield from self._told_in_turn(peer, works, bad, [])
        elif works[bad].opcode in BRINGS:
            yield from self._told_in_turn(peer, works, bad, self._overtaking(works, bad))
        else:
            yield from self._told_at_once(end, peer, works, bad, moments)

    def _refuse(self, end: str, peer: str, work: Work) -> None:
        """What the wrong request does."""
        theirs, fault = self.ends[peer], IWARP.faults["RC", work.fault]
        if work.fault == "rnr" and work.opcode == "RDMA_WRITE_WITH_IMM":  # of its two messages one is right
            self._deliver(end, peer, replace(work, opcode="RDMA_WRITE"))
        if fault.receive:
            number, sg, _ = theirs.take()
            theirs.received.append(Completion(number, fault.receive))
            if work.fault in ("long", "invalidate"):
                theirs.undefine(sg)

    def _told_in_turn(
        self, peer: str, works: tuple[Work, ...], bad: int, behind: list[Work]
    ) -> Iterator[Ending]:
        """All before it is complete, and nothing behind it; but the peer may have some of that."""
        theirs, end = self.ends[peer], "b" if peer == "a" else "a"
        sent = self._sent(works, bad, {bad: IWARP.faults["RC", works[bad].fault].status})
        for work in [*behind, None]:
            received = [self._with_flushed(peer)]
            before, loose = self._memories(), _ranges(())
            if work and takes_receive(work) and theirs.shared:  # it has begun, and so has taken its receive
                received.append((*theirs.received, Completion(theirs.receives[0][0], FLUSHED)))
            if work:
                loose = _ranges(theirs.receives[0][1] if work.opcode in SENDS else _there(work))
                self._deliver(end, peer, work)
            moments = {peer: (before[peer], bytes(theirs.memory))}
            for completions in received:
                yield Ending(sent, completions, before, {peer: loose}, moments)

    def _told_at_once(
        self, end: str, peer: str, works: tuple[Work, ...], bad: int, moments: list[dict[str, bytes]]
    ) -> Iterator[Ending]:
        """The peer reads no further: READs before it may have no answer, what went behind may be complete."""
        status = IWARP.faults["RC", works[bad].fault].status
        received = self._with_flushed(peer)
        shots = {name: tuple(moment[name] for moment in moments) for name in ENDS}
        for first in self._firsts(end, works, bad):
            waiting = [work for work in works[first:bad] if work.opcode in BRINGS]
            loose = {
                end: _ranges(piece for work in waiting for piece in work.sg),
                peer: _ranges(piece for work in waiting if work.opcode in ATOMICS for piece in _there(work)),
            }
            for blamed in _blamed(works, bad, first, status):
                yield Ending(self._sent(works, first, blamed), received, moments[-1], loose, shots)

    def _firsts(self, end: str, works: tuple[Work, ...], bad: int) -> list[int]:
        """Which request may be the first that is not complete."""
        waits = [number for number in range(bad) if works[number].opcode in BRINGS]
        answered = waits[: max(0, len(waits) - self.rd_atomic)]
        for number in range(bad + 1):
            if "FENCE" in works[number].flags:
                answered += [before for before in waits if before < number]
        nameless = self.confirms[end] and works[bad].fault == "receive"  # and so confirms nothing
        least = max(answered, default=-1) + 1
        firsts = [number for number in range(least, bad) if number in waits or nameless]
        if self.confirms[end]:
            return [*firsts, bad]
        behind = (number for number in range(bad + 1, len(works)) if works[number].opcode in BRINGS)
        return [*firsts, *range(bad, next(behind, len(works)) + 1)]

    def _overtaking(self, works: tuple[Work, ...], bad: int) -> list[Work]:
        """What goes behind a READ or atomic without waiting for its answer, and does not wait at the peer."""
        waiting, found = 1, []
        for work in works[bad + 1 :]:
            if "FENCE" in work.flags or (work.opcode in BRINGS and waiting >= self.rd_atomic):
                break
            if work.opcode in BRINGS:
                waiting += 1
            else:
                found.append(work)
        return found

    def _sent(self, works: tuple[Work, ...], first: int, blamed: dict[int, str]) -> tuple[Completion, ...]:
        """All before the first are complete; the others are flushed, or have a status of their own."""
        return tuple(
            Completion(number, "SUCCESS", SEND_OPCODES[work.opcode])
            if number < first
            else Completion(number, blamed.get(number, FLUSHED))
            for number, work in enumerate(works)
            if number >= first or self.program.sig_all or "SIGNALED" in work.flags
        )

    def _with_flushed(self, peer: str) -> tuple[Completion, ...]:
        theirs = self.ends[peer]
        left = [] if theirs.shared else theirs.receives
        return (*theirs.received, *(Completion(number, FLUSHED) for number, _, _ in left))

    def _memories(self) -> dict[str, bytes]:
        return {end: bytes(model.memory) for end, model in self.ends.items()}


def _blamed(works: tuple[Work, ...], bad: int, first: int, status: str) -> list[dict[int, str]]:
    """What may have the status: the request that the peer names; if it names none, the oldest under way."""
    if works[bad].fault != "receive":
        return [{bad: status}]
    return [{first: status}] if first <= bad else [{first: status}, {}]


def _ranges(pieces: Iterable[tuple[int, int]]) -> Ranges:
    """(first, behind the last) of (offset, length)"""
    return tuple((at, at + n) for at, n in pieces)


def _there(work: Work) -> Pieces:
    return ((work.at, work.length),)
