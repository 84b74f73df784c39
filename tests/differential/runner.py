# SPDX-License-Identifier: Apache-2.0
"""Runs a program on two ends and holds every step against the model."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from differential.end import BAD_KEY, Address, Request
from differential.model import OURS, Completion, Model, Outcome, Rules, known
from differential.program import ENDS, QUARTER, Bind, Break, Connect, Cut, Program, Refused, Round, Step, Work

PATIENCE = 180.0  # seconds for what has to come
UNRELIABLE = 10.0  # for the last bytes of what nobody acknowledges


PAIRS = (("a", "b"), ("b", "a"))
Holes = tuple[tuple[int, int], ...]


class End(Protocol):
    def address(self) -> Address: ...
    def connect(self, peer: Address, how: Connect, own_psn: int, peer_psn: int, rights: str) -> None: ...
    def bind(self, at: int, length: int) -> int: ...
    def post_recv(self, receives: list[tuple[int, Any, bool]]) -> None: ...
    def post_send(self, requests: list[Request], chained: bool) -> None: ...
    def collect(
        self, sent: int, received: int, timeout: float = ...
    ) -> tuple[list[Completion], list[Completion]]: ...
    def digest(self, holes: Holes) -> str: ...
    def memory(self) -> bytes: ...
    def state(self) -> str: ...
    def break_(self, how: str) -> None: ...
    def renew(self, sig_all: bool) -> Address: ...
    def refill(self) -> None: ...
    def refuse(self, what: str) -> str: ...
    def arm(self, limit: int) -> None: ...
    def events(self, number: int, timeout: float) -> list[str]: ...
    def close(self) -> None: ...


class DifferentError(AssertionError):
    """What happened is not what the model says; the text says at which step, and what."""


class Runner:
    def __init__(self, program: Program, a: End, b: End, rules: Mapping[str, Rules] = OURS) -> None:
        self.program, self.model = program, Model(program, rules)
        self.ends: dict[str, End] = {"a": a, "b": b}
        self.addresses: dict[str, Address] = {}
        self.windows: dict[str, int] = {}

    def run(self) -> None:
        """DifferentError tells what is not as it should be."""
        for number, step in enumerate(self.program.steps):
            try:
                problems = list(self._cut(step) if isinstance(step, Cut) else self._held(step))
            except Exception as error:
                raise DifferentError(f"step {number}, {step}: {type(error).__name__}: {error}") from error
            if problems:
                raise DifferentError(f"step {number}, {step}:\n    " + "\n    ".join(problems))

    def _held(self, step: Step) -> Iterator[str]:
        """Do a step; what is not as it should be then."""
        (outcome,) = self.model.after(step)
        self._do(step)
        self._hear(outcome)
        yield from self._problems(outcome)

    def _do(self, step: Step) -> None:
        self.refused = ""
        match step:
            case Connect():
                self._connect(step)
            case Bind(end=end, at=at, length=length):
                self.windows[end] = self.ends[end].bind(at, length)
            case Break(end=end, how=how):
                self.ends[end].break_(how)
            case Refused(end=end, what=what):
                self.refused = self.ends[end].refuse(what)
            case Round():
                self._round(step)

    def _connect(self, step: Connect) -> None:
        self.addresses = {end: self.ends[end].renew(self.program.sig_all) for end in ENDS}
        for i, (end, peer) in enumerate(PAIRS):
            psns = step.psns[i], step.psns[1 - i]
            self.ends[end].connect(self.addresses[peer], step, *psns, step.rights[i])

    def _hear(self, outcome: Outcome) -> None:
        """So many completions and events, and what else is there."""
        self.got = {
            end: self.ends[end].collect(len(outcome.sent[end]), len(outcome.received[end]), PATIENCE)
            for end in ENDS
        }
        self.events = {
            end: self.ends[end].events(len(outcome.events[end]), PATIENCE) if shared else []
            for end, shared in zip(ENDS, self.program.shared, strict=True)
        }

    def _round(self, step: Round) -> None:
        late: dict[str, list[tuple[int, Any, bool]]] = {end: [] for end in ENDS}
        for end, peer in ("ab", "ba"):
            work = step.work(end)
            receives = [
                (i, wr.receive, wr.fault == "receive") for i, wr in enumerate(work) if wr.receive is not None
            ]
            first = next((i for i, wr in enumerate(work) if wr.late), len(work))
            self.ends[peer].post_recv([receive for receive in receives if receive[0] < first])
            late[peer] = [receive for receive in receives if receive[0] >= first]
        for end, limit in zip(ENDS, step.limits, strict=True):
            if limit:
                self.ends[end].arm(limit)
        for end, peer in ("ab", "ba"):
            requests = [self._request(peer, i, wr) for i, wr in enumerate(step.work(end))]
            if requests:
                self.ends[end].post_send(requests, step.chained)
        if any(late.values()):
            time.sleep(0.003)  # some RNR NAKs go out meanwhile
        for end, receives in late.items():
            self.ends[end].post_recv(receives)

    def _cut(self, step: Cut) -> Iterator[str]:
        """What is neither before, nor after, nor in the middle of one of the requests."""
        snapshots, asks = self.model.snapshots(step), step.asks
        peer = "b" if asks == "a" else "a"
        self._post(asks, step.work)
        self.ends[step.end].break_(step.how)
        at_once = {step.end: self.ends[step.end].memory()}
        want = len(step.work) if step.end == peer or step.how == "ERR" else 0
        late = time.monotonic() + PATIENCE
        sent: list[Completion] = []
        received: list[Completion] = []
        while time.monotonic() < late:
            sent += self.ends[asks].collect(0, 0)[0]
            received += self.ends[peer].collect(0, 0)[1]
            if not want or (sent and sent[-1].wr_id == len(step.work) - 1):
                break
        self.ends[asks].refill()  # whoever reads a buffer of a request that has ended, or failed, shows it
        time.sleep(0.002)
        received += self.ends[peer].collect(0, 0)[1]
        yield from _prefix(f"{asks}: sent", sent, snapshots[-1].sent[asks], want)
        yield from _prefix(f"{peer}: received", received, snapshots[-1].received[peer], 0)
        for end in ENDS:
            memory = self.ends[end].memory()
            if end == step.end and memory[QUARTER:] != at_once[end][QUARTER:]:
                yield f"{end}: its memory has changed after its queue pair was led to {step.how}"
            yield from mixed(end, memory, [shot.memories[end] for shot in snapshots], snapshots[0].holes[end])

    def _post(self, asks: str, works: Sequence[Work]) -> None:
        peer = "b" if asks == "a" else "a"
        receives = [(i, wr.receive, False) for i, wr in enumerate(works) if wr.receive is not None]
        self.ends[peer].post_recv(receives)
        requests = [self._request(peer, i, wr) for i, wr in enumerate(works)]
        self.ends[asks].post_send(requests, chained=True)

    def _request(self, peer: str, number: int, work: Work) -> Request:
        there = self.addresses[peer]
        rkey = self.windows[peer] if work.to == "window" else there.keys[work.to]
        return Request(
            number,
            work.opcode,
            work.sg,
            work.flags,
            there.addr + work.at,
            rkey ^ (BAD_KEY if work.fault == "key" else 0),
            work.imm,
            work.compare,
            work.swap,
            work.fault,
        )

    # -- what is not as it should be

    def _problems(self, outcome: Outcome) -> Iterator[str]:
        if self.refused != outcome.refused:
            yield f"the post says {self.refused!r}, not {outcome.refused!r}"
        for end in ENDS:
            if sorted(self.events[end]) != list(outcome.events[end]):
                yield f"{end}: events {self.events[end]}, not {outcome.events[end]}"
            sent, received = self.got[end]
            yield from _differences(f"{end}: sent", sent, outcome.sent[end])
            yield from _differences(f"{end}: received", received, outcome.received[end])
        for end in ENDS:
            state = self.ends[end].state()
            if state != outcome.states[end]:
                yield f"{end} is in {state}, not in {outcome.states[end]}"
            yield from self._memory(end, outcome)

    def _memory(self, end: str, outcome: Outcome) -> Iterator[str]:
        holes, want = outcome.holes[end], known(outcome.memories[end], outcome.holes[end])
        digest = hashlib.blake2b(want).hexdigest()
        limit = time.monotonic() + (0 if self.program.service == "RC" else UNRELIABLE)
        while self.ends[end].digest(holes) != digest:
            if time.monotonic() > limit:
                yield _bytes(end, known(self.ends[end].memory(), holes), want)
                return
            time.sleep(0.001)


def _prefix(what: str, got: list[Completion], want: tuple[Completion, ...], whole: int) -> Iterator[str]:
    """Successes in order, and then failures; `whole`: of all requests, or of a part."""
    good = [one for one in got if one.status == "SUCCESS"]
    if got[: len(good)] != good or tuple(good) != want[: len(good)]:
        yield f"{what}: {got}, of {want}"
    if whole and (not got or got[-1].wr_id != whole - 1):
        yield f"{what}: the last request has not completed: {got}"
    allowed = {"SUCCESS", "RETRY_EXC_ERR", "WR_FLUSH_ERR"}
    if {one.status for one in got} - allowed or sum(one.status == "RETRY_EXC_ERR" for one in got) > 1:
        yield f"{what}: {got}"


def mixed(end: str, memory: bytes, shots: list[bytes], holes: Holes) -> Iterator[str]:
    """Bytes, but for those of OUT, that are not those of any moment."""
    memory, shots = known(memory, holes), [known(shot, holes) for shot in shots]
    wrong = [
        i
        for i in range(QUARTER, len(memory))
        if memory[i] != shots[0][i] and all(memory[i] != shot[i] for shot in shots)
    ]
    if wrong:
        yield f"{end}: {len(wrong)} bytes were never there, from {wrong[0]} to {wrong[-1]}"


def _differences(what: str, got: list[Completion], want: tuple[Completion, ...]) -> Iterator[str]:
    for i in range(max(len(got), len(want))):
        here = got[i] if i < len(got) else None
        there = want[i] if i < len(want) else None
        if here != there:
            yield f"{what}, completion {i}: {here}, not {there}"


def _bytes(end: str, got: bytes, want: bytes) -> str:
    wrong = [i for i in range(len(want)) if got[i] != want[i]]
    if not wrong:
        return f"{end}: bytes of the memory were wrong, and are not any more"
    area = ("OUT", "IN", "BACK", "REMOTE")[wrong[0] // (len(want) // 4)]
    return (
        f"{end}: {len(wrong)} bytes of the memory are wrong, the first at {wrong[0]} (in {area}), "
        f"the last at {wrong[-1]}"
    )
