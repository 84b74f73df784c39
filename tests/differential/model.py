# SPDX-License-Identifier: Apache-2.0
"""What a program must lead to: every byte of both memories, every completion in order, every state.

It executes requests one after the other and knows nothing of packets.  Sources: statuses IBA 11.6.2, what a
fault does to either end 9.9.2 and 9.9.3, order and fences 10.8.3.3, unsignaled work 10.7.3.1, unreliable
services 9.8.  What a receive that failed has in its memory is not defined: holes in what is compared.
"""

from __future__ import annotations

import random
import struct
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from differential.program import (
    ATOMICS,
    ENDS,
    GRH,
    LEAVES,
    SENDS,
    SIZE,
    Break,
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


@dataclass(frozen=True)
class Fault:
    """What a wrong request comes to."""

    status: str
    """Of the request; empty: it is complete as soon as it has left."""
    state: str = "ERR"
    """Of the end that asked, then."""
    receive: str = ""
    """Status of the receive that it would have had; empty: that stays posted, or is flushed."""
    peer: str = "ERR"
    """State of the peer, then."""


# (service, what is wrong) -> what comes of it.
FAULTS: dict[tuple[str, str], Fault] = {
    ("RC", "key"): Fault("REM_ACCESS_ERR"),
    ("RC", "range"): Fault("REM_ACCESS_ERR"),
    ("RC", "right"): Fault("REM_ACCESS_ERR"),
    ("RC", "qp"): Fault("REM_INV_REQ_ERR"),  # IBA 9.7.4.1.2: the queue pair does not support the request
    ("RC", "align"): Fault("REM_INV_REQ_ERR"),
    ("RC", "long"): Fault("REM_INV_REQ_ERR", receive="LOC_LEN_ERR"),
    ("RC", "rnr"): Fault("RNR_RETRY_EXC_ERR", peer="RTS"),
    ("RC", "receive"): Fault("REM_OP_ERR", receive="LOC_PROT_ERR"),
    # A key that may not be invalidated is refused as a wrong key is (IBA 9.4.1.1).
    ("RC", "invalidate"): Fault("REM_ACCESS_ERR", receive="REM_INV_REQ_ERR"),
    ("RC", "stale"): Fault("REM_ACCESS_ERR"),
    ("RC", "local"): Fault("LOC_PROT_ERR", peer="RTS"),
    ("RC", "gone"): Fault("RETRY_EXC_ERR", peer="as it is"),
    ("UC", "key"): Fault("", "RTS", peer="RTS"),
    ("UC", "range"): Fault("", "RTS", peer="RTS"),
    ("UC", "right"): Fault("", "RTS", peer="RTS"),
    ("UC", "local"): Fault("LOC_PROT_ERR", "SQE", peer="RTS"),
    ("UD", "qkey"): Fault("", "RTS", peer="RTS"),
    ("UD", "local"): Fault("LOC_PROT_ERR", "SQE", peer="RTS"),
}


# A post that is refused -> what post_send or post_recv says, of each (ibv_post_send(3), ibv_post_recv(3)).
REFUSED = {
    "elements": "EINVAL",
    "receive elements": "EINVAL",
    "inline": "EINVAL",
    "opcode": "EINVAL",
    "sends": "ENOMEM",
    "receives": "ENOMEM",
    "unconnected": "EINVAL EINVAL EINVAL",
}


@dataclass(frozen=True)
class Rules:
    """What an implementation does where the specification, or another implementation, differs."""

    faults: Mapping[tuple[str, str], Fault] = field(default_factory=lambda: FAULTS)
    """What its wrong requests come to, at its peer."""
    flushes: bool = True
    """Whether receives are flushed that it gets in ERR (IBA 10.3.1.5)."""
    refused_receive: str = "LOC_ACCESS_ERR"
    """Status of the receive of a WRITE with immediate of one packet that it refuses (IBA 11.6.2)."""
    short: tuple[str, str] = ("", "RTS")
    """Of UC, a receive that is too short: its status, and the state then (IBA 9.8.2.2.6: dropped)."""
    short_datagram: tuple[str, str] = ("LOC_LEN_ERR", "ERR")
    """The same of UD."""
    last_receive: bool = True
    """Whether it tells that a queue pair in ERR takes no more of a shared receive queue (IBA 11.6.3)."""


RNIC = Rules()
OURS: Mapping[str, Rules] = dict.fromkeys(ENDS, RNIC)

SEND_OPCODES = {
    "SEND": "SEND",
    "SEND_WITH_IMM": "SEND",
    "SEND_WITH_INV": "SEND",
    "RDMA_WRITE": "RDMA_WRITE",
    "RDMA_WRITE_WITH_IMM": "RDMA_WRITE",
    "RDMA_READ": "RDMA_READ",
    "ATOMIC_FETCH_AND_ADD": "FETCH_ADD",
    "ATOMIC_CMP_AND_SWP": "COMP_SWAP",
}
FLUSHED = "WR_FLUSH_ERR"


@dataclass(frozen=True)
class Completion:
    """What is defined of a completion: of one that failed, its number and status alone (ibv_poll_cq(3))."""

    wr_id: int
    status: str
    opcode: str = ""
    byte_len: int | None = None
    imm_data: int | None = None
    invalidated: bool = False
    """Whether it names the key of this end's window as invalid."""


@dataclass
class EndModel:
    memory: bytearray
    state: str = "RESET"
    receives: deque[tuple[int, Pieces, str]] = field(default_factory=deque)
    """Posted: number, where to, and what is wrong with it."""
    sent: list[Completion] = field(default_factory=list)
    received: list[Completion] = field(default_factory=list)
    holes: list[tuple[int, int]] = field(default_factory=list)
    """Bytes that nobody can know, (first, behind the last)."""
    shared: bool = False
    """Whether the receives are of a shared receive queue."""
    limit: int = 0
    events: list[str] = field(default_factory=list)

    def undefine(self, sg: Pieces) -> None:
        self.holes += [(at, at + n) for at, n in sg if n]

    def fail(self, state: str) -> None:
        """Into an error state; ERR flushes what is posted, but for what others may take."""
        self.state = state
        if state == "ERR" and self.shared:
            self.events.append("QP_LAST_WQE_REACHED")
        elif state == "ERR":
            self.received += [Completion(wr_id, FLUSHED) for wr_id, _, _ in self.receives]
            self.receives.clear()

    def take(self) -> tuple[int, Pieces, str]:
        """The oldest receive."""
        taken = self.receives.popleft()
        if len(self.receives) < self.limit:
            self.limit = 0
            self.events.append("SRQ_LIMIT_REACHED")
        return taken

    def gather(self, sg: Pieces) -> bytes:
        return b"".join(self.memory[at : at + n] for at, n in sg)

    def scatter(self, sg: Pieces, data: bytes) -> None:
        for at, n in sg:
            part, data = data[:n], data[n:]
            self.memory[at : at + len(part)] = part


@dataclass(frozen=True)
class Outcome:
    """Of a step: by end, what completes, and how it is then."""

    sent: dict[str, tuple[Completion, ...]]
    received: dict[str, tuple[Completion, ...]]
    states: dict[str, str]
    memories: dict[str, bytes]
    holes: dict[str, tuple[tuple[int, int], ...]]
    refused: str
    """What a post says."""
    events: dict[str, tuple[str, ...]]
    """Of shared receive queues, and of the queue pairs that take from them."""


@lru_cache
def noise(seed: int) -> bytes:
    """What an end's memory holds in the beginning."""
    return random.Random(seed).randbytes(SIZE)


class Model:
    def __init__(self, program: Program, rules: Mapping[str, Rules] = OURS) -> None:
        self.program, self.rules, self.mtu = program, rules, 0
        self.ends = {
            end: EndModel(bytearray(noise(i)), shared=program.shared[i]) for i, end in enumerate(ENDS)
        }

    def after(self, step: Step) -> list[Outcome]:
        """What a step, the next one, may lead to: one thing, if nothing is open."""
        return [self._outcome(step)]

    def snapshots(self, step: Cut) -> list[Outcome]:
        """How all is before work that is cut off, and after each of its requests."""
        peer = "b" if step.asks == "a" else "a"
        for number, work in enumerate(step.work):
            if work.receive is not None:
                self._post_receive(peer, number, work)
        made = [self._outcome(None)]
        for number, work in enumerate(step.work):
            self._send(step.asks, peer, number, work)
            made.append(self._outcome(None, fresh=False))
        return made

    def _outcome(self, step: Step | None, fresh: bool = True) -> Outcome:
        if fresh:
            for model in self.ends.values():
                model.sent, model.received, model.events = [], [], []
        match step:
            case Connect(mtu=mtu):
                self.mtu = mtu
                for model in self.ends.values():
                    model.state = "RTS"
                    model.receives.clear()
                    model.limit = 0
            case Break(end=end, how=how):
                self.ends[end].fail(how)
                if how != "ERR":
                    self.ends[end].receives.clear()
                self._left(end)
            case Refused(end=end, what=what) if what in LEAVES:
                self.ends[end].state = "RESET"
                self.ends[end].receives.clear()
                self._left(end)
            case Round():
                self._round(step)
        return self._as_it_is(step)

    def _as_it_is(self, step: Step | None) -> Outcome:
        return Outcome(
            sent={end: tuple(model.sent) for end, model in self.ends.items()},
            received={end: tuple(model.received) for end, model in self.ends.items()},
            states={end: model.state for end, model in self.ends.items()},
            memories={end: bytes(model.memory) for end, model in self.ends.items()},
            holes={end: tuple(model.holes) for end, model in self.ends.items()},
            refused=REFUSED[step.what] if isinstance(step, Refused) else "",
            events={end: self._told(end) for end in ENDS},
        )

    def _left(self, end: str) -> None:
        """An end has left RTS by itself: of packets the other one does not notice."""

    def _told(self, end: str) -> tuple[str, ...]:
        silent = () if self.rules[end].last_receive else ("QP_LAST_WQE_REACHED",)
        return tuple(sorted(event for event in self.ends[end].events if event not in silent))

    def _round(self, step: Round) -> None:
        for end, peer in (("a", "b"), ("b", "a")):
            for number, work in enumerate(step.work(end)):
                if work.receive is not None:
                    self._post_receive(peer, number, work)
        for end, limit in zip(ENDS, step.limits, strict=True):
            self.ends[end].limit = limit or self.ends[end].limit
        for end, peer in (("a", "b"), ("b", "a")):
            for number, work in enumerate(step.work(end)):
                self._send(end, peer, number, work)

    def _post_receive(self, end: str, number: int, work: Work) -> None:
        model = self.ends[end]
        if model.state == "ERR" and not model.shared:
            if self.rules[end].flushes:
                model.received.append(Completion(number, FLUSHED))
        elif model.shared or model.state in ("RTS", "SQE"):
            assert work.receive is not None
            model.receives.append((number, work.receive, work.fault))

    def _send(self, end: str, peer: str, number: int, work: Work) -> None:
        mine, faults = self.ends[end], self.rules[end].faults
        fault = faults.get((self.program.service, work.fault))
        if self.program.service == "RC" and self.ends[peer].state != "RTS":
            fault = faults["RC", "gone"]
        if mine.state in ("ERR", "SQE"):
            mine.sent.append(Completion(number, FLUSHED))
        elif fault:
            self._fail(end, peer, number, work, fault)
        else:
            self._succeed(end, number, work)
            self._deliver(end, peer, work)

    def _succeed(self, end: str, number: int, work: Work) -> None:
        if self.program.sig_all or "SIGNALED" in work.flags:
            self.ends[end].sent.append(Completion(number, "SUCCESS", SEND_OPCODES[work.opcode]))

    def _fail(self, end: str, peer: str, number: int, work: Work, fault: Fault) -> None:
        mine, theirs = self.ends[end], self.ends[peer]
        if not fault.status:
            self._succeed(end, number, work)
        else:
            mine.sent.append(Completion(number, fault.status))
        if fault.receive and work.fault in ("long", "invalidate"):
            theirs.undefine(theirs.receives[0][1])
        receive = fault.receive
        refused = fault.status == "REM_ACCESS_ERR" and work.length <= self.mtu
        if refused and work.opcode == "RDMA_WRITE_WITH_IMM":
            receive = self.rules[peer].refused_receive
        if receive:
            theirs.received.append(Completion(theirs.take()[0], receive))
        if fault.peer != "as it is" and fault.peer != theirs.state:
            theirs.fail(fault.peer)
        if fault.state != mine.state:
            mine.fail(fault.state)

    def _deliver(self, end: str, peer: str, work: Work) -> None:
        mine, theirs = self.ends[end], self.ends[peer]
        if theirs.state == "ERR":
            return
        data = mine.gather(work.sg)
        if work.opcode in ATOMICS:
            mine.scatter(work.sg, self._atomic(theirs, work))
        elif work.opcode == "RDMA_READ":
            mine.scatter(work.sg, bytes(theirs.memory[work.at : work.at + work.length]))
        elif work.opcode not in SENDS:
            theirs.memory[work.at : work.at + len(data)] = data
        if takes_receive(work):
            self._receive(peer, work, data)

    def _atomic(self, theirs: EndModel, work: Work) -> bytes:
        before = bytes(theirs.memory[work.at : work.at + 8])
        (value,) = struct.unpack("=Q", before)
        if work.opcode == "ATOMIC_FETCH_AND_ADD":
            value = (value + work.compare) % (1 << 64)
        elif value == work.compare:
            value = work.swap
        theirs.memory[work.at : work.at + 8] = struct.pack("=Q", value)
        return before

    def _receive(self, peer: str, work: Work, data: bytes) -> None:
        theirs = self.ends[peer]
        if not theirs.receives:
            assert self.program.service != "RC", "a program whose receives are too few"
            return
        written = work.opcode.startswith("RDMA")
        datagram = GRH if self.program.service == "UD" else 0
        sg = theirs.receives[0][1]
        if datagram:
            theirs.undefine(sg[:1])
        if self.program.service != "RC" and not written and _room(sg) < datagram + len(data):
            theirs.undefine(sg)
            rules = self.rules[peer]
            _too_short(theirs, *(rules.short_datagram if datagram else rules.short))
            return
        number, sg, _ = theirs.take()
        if not written:
            theirs.scatter(sg[1:] if datagram else sg, data)
        opcode = "RECV_RDMA_WITH_IMM" if written else "RECV"
        imm = work.imm if work.opcode.endswith("WITH_IMM") else None
        invalidated = work.opcode == "SEND_WITH_INV"
        done = Completion(number, "SUCCESS", opcode, len(data) + datagram, imm, invalidated)
        theirs.received.append(done)


def _too_short(theirs: EndModel, status: str, state: str) -> None:
    """Of an unreliable service: without a status the receive is left to the next message."""
    if status:
        theirs.received.append(Completion(theirs.take()[0], status))
    if state != "RTS":
        theirs.fail(state)


def _room(sg: Pieces) -> int:
    return sum(n for _, n in sg)


def known(memory: bytes, holes: Iterable[Sequence[int]]) -> bytes:
    """Memory with zeros in the holes."""
    left = bytearray(memory)
    for first, behind in holes:
        left[first:behind] = bytes(behind - first)
    return bytes(left)
