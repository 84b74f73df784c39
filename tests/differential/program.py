# SPDX-License-Identifier: Apache-2.0
"""Random programs of work requests between two ends, as data: a seed makes one, and it prints as Python.

A program is a list of steps: connections, rounds of work, and what breaks an end.  What a round does is a
function of the program alone, however long anything takes.  So a model can say every byte and completion.
That asks for some order, which `Maker` sees to:

- each end's memory has four areas.  OUT is only read, IN is where messages arrive, BACK takes what READs and
  atomics bring, and REMOTE is for the peer's WRITEs, READs and atomics.  So directions never meet;
- what must not overtake a READ or an atomic carries the fence (IBA 10.8.3.3);
- a round has at most one request that fails, and then the other end asks for nothing.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace

SIZE = 1 << 18
QUARTER = SIZE // 4
OUT, IN, BACK, REMOTE = range(0, SIZE, QUARTER)
GRH = 40  # bytes ahead of a datagram, which lie at IN and are not compared
SMALLEST_MTU = 256
INLINE, SGES, DEPTH = 128, 4, 64  # what a queue pair holds
ENDS = "ab"

Pieces = tuple[tuple[int, int], ...]
"""(offset in the end's memory, length)"""


class Brief:
    """Prints as Python, without what has its default."""

    def __repr__(self) -> str:
        said = []
        for one in fields(self):  # type: ignore[arg-type]
            value = getattr(self, one.name)
            if value != one.default:
                said.append(f"{one.name}={value!r}")
        return f"{type(self).__name__}({', '.join(said)})"


@dataclass(frozen=True, repr=False)
class Work(Brief):
    """A send work request; names are libibverbs' without prefixes."""

    opcode: str
    sg: Pieces
    flags: tuple[str, ...] = ()
    at: int = 0
    """Offset in the peer's memory, or in what `to` names."""
    to: str = "memory"
    """Which of the peer's keys: "memory" has all rights, "readable" and "writable" one; or a "window".

    Of SEND_WITH_INV, the key that is to be invalidated.
    """
    imm: int = 0
    compare: int = 0
    swap: int = 0
    fault: str = ""
    """What is wrong with it; see model.FAULTS."""
    receive: Pieces | None = None
    """The receive that it gets; the peer posts it."""
    late: bool = False
    """That receive, and those behind it, are posted when the requests have been posted."""

    @property
    def length(self) -> int:
        return sum(n for _, n in self.sg)


@dataclass(frozen=True, repr=False)
class Connect(Brief):
    """Both queue pairs from whatever state to RTS."""

    mtu: int = 1024
    psns: tuple[int, int] = (1, 2)
    """The first PSN that a sends, and b; of UD, both use the first as their Q_Key."""
    timeout: int = 17
    retry_cnt: int = 7
    rnr_retry: int = 7
    rd_atomic: int = 4
    rights: tuple[str, str] = ("WRITE READ ATOMIC", "WRITE READ ATOMIC")
    """What the queue pairs of a and b let their peer do."""


@dataclass(frozen=True, repr=False)
class Round(Brief):
    """Work of both ends, which all ends before the next step; in one call of post_send or one by one."""

    a: tuple[Work, ...] = ()
    b: tuple[Work, ...] = ()
    chained: bool = True
    limits: tuple[int, int] = (0, 0)
    """Of the shared receive queues of a and b, armed when the receives have been posted; 0: none."""

    def work(self, end: str) -> tuple[Work, ...]:
        return self.a if end == "a" else self.b


@dataclass(frozen=True, repr=False)
class Bind(Brief):
    """An end binds a window of type 2 to a part of its REMOTE area, with all remote rights."""

    end: str
    at: int
    length: int


@dataclass(frozen=True, repr=False)
class Break(Brief):
    """An end's queue pair is led to RESET or ERR, or destroyed."""

    end: str
    how: str


@dataclass(frozen=True, repr=False)
class Refused(Brief):
    """An end posts what is refused, and nothing else comes of it; see model.REFUSED.

    Of some, which find a queue full or a queue pair that is not connected, it is in RESET afterwards.
    """

    end: str
    what: str


@dataclass(frozen=True, repr=False)
class Cut(Brief):
    """One end posts work, and at once an end, itself or the other, is led to RESET or ERR, or destroyed.

    How far the work comes is open; that nothing else happens, and nothing afterwards, is not.  The last step.
    """

    asks: str
    work: tuple[Work, ...]
    end: str
    how: str


Step = Connect | Round | Bind | Break | Refused | Cut


@dataclass(frozen=True)
class Program:
    service: str
    own_memory: tuple[bool, bool]
    """Whether the memory of a and b is the program's own (reg_mr) or the device's (alloc_mr)."""
    sig_all: bool
    steps: tuple[Step, ...] = field(default=())
    shared: tuple[bool, bool] = (False, False)
    """Whether a and b take their receives from a shared receive queue."""

    def __str__(self) -> str:
        head = f"Program({self.service!r}, {self.own_memory!r}, sig_all={self.sig_all}, steps=("
        return "\n".join([head, *(f"    {step}," for step in self.steps), f"), shared={self.shared})"])


WRITES = ("RDMA_WRITE", "RDMA_WRITE_WITH_IMM")
ATOMICS = ("ATOMIC_FETCH_AND_ADD", "ATOMIC_CMP_AND_SWP")
PLAIN_SENDS = ("SEND", "SEND_WITH_IMM")
SENDS = (*PLAIN_SENDS, "SEND_WITH_INV")
OPCODES = {
    "RC": (*PLAIN_SENDS, *PLAIN_SENDS, *WRITES, *WRITES, "RDMA_READ", "RDMA_READ", *ATOMICS),
    "UC": (*PLAIN_SENDS, *WRITES),
    "UD": PLAIN_SENDS,
}
BRINGS = ("RDMA_READ", *ATOMICS)
RIGHT = {"RDMA_WRITE": "WRITE", "RDMA_WRITE_WITH_IMM": "WRITE", "RDMA_READ": "READ"} | dict.fromkeys(
    ATOMICS, "ATOMIC"
)


def takes_receive(work: Work) -> bool:
    return work.opcode.startswith("SEND") or work.opcode.endswith("WITH_IMM")


class Maker:
    """What a seed makes."""

    def __init__(
        self, seed: int, services: Sequence[str] = ("RC", "RC", "UC", "UD"), largest_mtu: int = 4096
    ) -> None:
        self.rng = random.Random(seed)
        self.service = self.rng.choice(services)
        self.mtu, self.mtus = 1024, [mtu for mtu in (256, 512, 1024, 2048, 4096) if mtu <= largest_mtu]
        self.windows: dict[str, Bind] = {}
        self.at_wrap = False
        share = 0.25 if self.service != "UC" else 0.0
        self.shared = (self.rng.random() < share, self.rng.random() < share)

    def program(self) -> Program:
        rng = self.rng
        steps: list[Step] = [self.connect()]
        for _ in range(rng.randint(1, 4)):
            steps += self.steps()
        if self.service == "RC" and rng.random() < 0.3:
            steps += self.cut()
        return Program(
            self.service,
            (rng.random() < 0.5, rng.random() < 0.5),
            rng.random() < 0.2,
            tuple(steps),
            self.shared,
        )

    def connect(self, **more: object) -> Connect:
        rng = self.rng
        self.mtu = rng.choice(self.mtus) if self.service != "UD" else 1024
        self.windows = {}
        psns = [self.psn() for _ in ENDS]
        self.at_wrap = not self.at_wrap
        made = Connect(
            mtu=self.mtu,
            psns=(psns[0], psns[1]),
            rd_atomic=rng.choice([1, 2, 4, 16]),
        )
        return replace(made, **more)  # type: ignore[arg-type]

    def psn(self) -> int:
        """Those of two connections never meet: a late packet of the last one would be a packet of this one.

        Nothing here waits in TimeWait (IBA 12.9.8.4); in every second connection a PSN may be near its wrap.
        """
        rng = self.rng
        if self.at_wrap or rng.random() < 0.25:
            return rng.randrange(1 << 20, 1 << 23)
        return rng.choice([0, 0xFFFFFF, 0xFFFFFF - rng.randrange(64)])

    def steps(self) -> list[Step]:
        """A round, and what it needs before."""
        rng, steps = self.rng, list[Step]()
        if rng.random() < 0.2:
            steps += self.refused()
        if self.service == "RC" and rng.random() < 0.3:
            steps.append(self.bind(rng.choice(ENDS)))
        kind = rng.random()
        if kind < 0.45:
            steps.append(self.round(rng.choice(["a", "b", "ab", "ab"])))
        elif kind < 0.8 or self.service != "RC":
            end = rng.choice(ENDS)
            steps += self.failing(end)
            if rng.random() < 0.3:  # what is posted to a queue that has failed
                steps.append(self.round(end, flushed=True))
            steps.append(self.connect())
        else:
            end, other = rng.sample(ENDS, 2)
            steps.append(self.connect(timeout=9, retry_cnt=rng.randint(0, 2)))
            steps.append(Break(end, rng.choice(["RESET", "ERR", "destroyed"])))
            steps.append(self.round(other, late=False))
            steps.append(self.connect())
        return steps

    def refused(self) -> list[Step]:
        step = Refused(self.rng.choice(ENDS), self.rng.choice(REFUSED_OF[self.service]))
        return [step, self.connect()] if step.what in LEAVES else [step]

    def cut(self) -> list[Step]:
        rng = self.rng
        connect = self.connect(timeout=10, retry_cnt=rng.randint(1, 3))
        asks, end, how = rng.choice(ENDS), rng.choice(ENDS), rng.choice(["RESET", "ERR", "destroyed"])
        return [connect, Cut(asks, self.chain(asks), end, how)]

    # -- work

    def round(self, ends: str, *, late: bool = True, flushed: bool = False) -> Round:
        late = late and not flushed and self.service == "RC" and self.rng.random() < 0.3
        work = {end: self.chain(end, late) if end in ends else () for end in ENDS}
        limits = (0, 0) if late or flushed else (self.limit(0, work["b"]), self.limit(1, work["a"]))
        return Round(work["a"], work["b"], self.rng.random() < 0.5, limits)

    def limit(self, end: int, asked: Sequence[Work]) -> int:
        posted = sum(work.receive is not None for work in asked)
        return self.rng.randint(1, posted) if self.shared[end] and posted and self.rng.random() < 0.5 else 0

    def chain(self, end: str, late: bool = False) -> tuple[Work, ...]:
        """Requests of which the last is signaled, and, of an unreliable service, takes a receive."""
        works = [self.work(end, late) for _ in range(self.rng.choice([1, 2, 4, 8, 16]))]
        if self.service != "RC":
            works[-1] = self.marker()
        works[-1] = replace(works[-1], flags=tuple(sorted({*works[-1].flags, "SIGNALED"})))
        return fenced(self.closing(end, works))

    def closing(self, end: str, works: list[Work]) -> list[Work]:
        """Often a SEND among them invalidates the peer's window; what is behind it does without."""
        peer = "b" if end == "a" else "a"
        sends = [i for i, work in enumerate(works) if work.opcode in PLAIN_SENDS]
        if peer not in self.windows or not sends or self.rng.random() < 0.4:
            return works
        at = self.rng.choice(sends)
        del self.windows[peer]
        behind = [replace(work, to="memory") if work.to == "window" else work for work in works[at + 1 :]]
        return [*works[:at], invalidating(works[at], "window"), *behind]

    def marker(self) -> Work:
        return self.with_receive(Work("SEND_WITH_IMM", self.pieces(OUT, 8), imm=self.rng.getrandbits(32)))

    def work(self, end: str, late: bool = False) -> Work:
        rng = self.rng
        opcode = rng.choice(OPCODES[self.service])
        window = self.windows.get("b" if end == "a" else "a")
        if opcode in ATOMICS:
            sg: Pieces = ((BACK + 8 * rng.randrange(QUARTER // 8), 8),)
        elif opcode == "RDMA_READ":
            sg = self.pieces(BACK, self.length())
        else:
            source = BACK if self.service == "RC" and rng.random() < 0.1 else OUT
            sg = self.pieces(source, self.length())
        made = Work(
            opcode,
            sg,
            tuple(sorted(self.flags(opcode, sum(n for _, n in sg)))),
            imm=rng.getrandbits(32) if opcode.endswith("WITH_IMM") else 0,
        )
        if opcode in ATOMICS:
            value = rng.choice([0, 1, (1 << 64) - 1, rng.getrandbits(64)])
            made = replace(made, compare=value, swap=rng.getrandbits(64) if "SWP" in opcode else 0)
        if opcode in RIGHT:
            made = self.aimed(made, window)
        made = self.with_receive(made)
        return replace(made, late=late and takes_receive(made))

    def aimed(self, work: Work, window: Bind | None) -> Work:
        rng, align = self.rng, 8 if work.opcode in ATOMICS else 1
        if window and work.length <= window.length and rng.random() < 0.4:
            room = window.length - work.length
            return replace(work, to="window", at=window.at + align * rng.randint(0, room // align))
        at = REMOTE + rng.randrange((QUARTER - work.length) // align + 1) * align
        if rng.random() < 0.3:  # often the same place
            at = REMOTE + 64
        right = {"WRITE": "writable", "READ": "readable"}.get(RIGHT[work.opcode])
        to = right if right and rng.random() < 0.2 else "memory"
        return replace(work, to=to, at=at)

    def flags(self, opcode: str, length: int) -> set[str]:
        rng, flags = self.rng, set[str]()
        if rng.random() < 0.5:
            flags.add("SIGNALED")
        if self.service == "RC" and rng.random() < 0.1:
            flags.add("FENCE")
        if opcode not in BRINGS and length <= INLINE and rng.random() < 0.4:
            flags.add("INLINE")
        if rng.random() < 0.1 and (opcode in SENDS or opcode == "RDMA_WRITE_WITH_IMM"):
            flags.add("SOLICITED")
        return flags

    def length(self) -> int:
        rng, m = self.rng, self.mtu
        if self.service == "UD":
            return rng.choice([0, 1, 2, 3, 8, 17, 512, m - 1, m, rng.randint(0, m)])
        edges = [0, 1, 3, 8, 17, m - 1, m, m + 1, 2 * m, 3 * m + 5, 4095, 4096, 16384]
        return min(QUARTER // 2, rng.choice([*edges, rng.randint(0, 300), rng.randint(0, 20000)]))

    def pieces(self, area: int, length: int) -> Pieces:
        """So many bytes in an area, cut into up to four pieces that do not overlap."""
        rng = self.rng
        cuts = sorted(rng.choice([rng.randint(0, length), 0]) for _ in range(rng.choice([0, 0, 1, 2, 3])))
        lengths = [stop - start for start, stop in zip([0, *cuts], [*cuts, length], strict=True)]
        at, spare, made = area + (GRH if area == IN else 0), QUARTER - GRH - length, list[tuple[int, int]]()
        for n in lengths:
            gap = rng.randint(0, spare)
            spare -= gap
            made.append((at + gap, n))
            at += gap + n
        if rng.random() < 0.5:  # not in the order of addresses
            rng.shuffle(made)
        return tuple(made)

    def with_receive(self, work: Work, room: int = 0) -> Work:
        """room: bytes more, or fewer, than the message has."""
        if not takes_receive(work):
            return work
        length = 0 if work.opcode.startswith("RDMA") else work.length
        room = room or self.rng.choice([0, 0, 1, 100])
        sg = self.pieces(IN, max(0, length + room))
        if self.service == "UD":
            sg = ((IN, GRH), *sg[:3]) if len(sg) < SGES else ((IN, GRH), (IN + GRH, max(0, length + room)))
        return replace(work, receive=sg)

    # -- what goes wrong

    def failing(self, end: str) -> list[Step]:
        """A round in which one request fails, with other work before and behind it."""
        rng = self.rng
        fault = rng.choice(FAULTS_OF[self.service])
        more: dict[str, object] = {}
        steps: list[Step] = []
        if fault == "stale":
            steps.append(self.bind("b" if end == "a" else "a"))
        bad = self.bad(end, fault)
        if fault == "rnr":
            more = {"rnr_retry": rng.randint(0, 2)}
        if fault == "qp":
            rights = [right for right in ("WRITE", "READ", "ATOMIC") if right != RIGHT[bad.opcode]]
            every = "WRITE READ ATOMIC"
            pair = (every, " ".join(rights)) if end == "a" else (" ".join(rights), every)
            more = {"rights": pair}
        if more:
            steps.append(replace(self.connect(**more), mtu=self.mtu))
        ahead = self.good(end, fault, bad)
        if fault == "stale":
            ahead.append(invalidating(self.send(), "window"))
        works = [*ahead, bad, *self.good(end, fault, bad)]
        if self.service != "RC":
            works.append(replace(self.marker(), flags=("SIGNALED",)))
        works[-1] = replace(works[-1], flags=tuple(sorted({*works[-1].flags, "SIGNALED"})))
        round_ = Round(chained=rng.random() < 0.5)
        chain = fenced(works)
        steps.append(replace(round_, a=chain) if end == "a" else replace(round_, b=chain))
        return steps

    def good(self, end: str, fault: str, bad: Work) -> list[Work]:
        """Up to four requests with nothing wrong about them."""
        made = [self.work(end) for _ in range(self.rng.randint(0, 4))]
        if fault == "qp":
            made = [work for work in made if RIGHT.get(work.opcode) != RIGHT[bad.opcode]]
        if fault == "stale":  # those behind it
            made = [replace(work, to="memory") if work.to == "window" else work for work in made]
        if fault == "rnr":  # else its receive would go to the one that has none
            made = [work for work in made if not takes_receive(work)]
        return made

    def bad(self, end: str, fault: str) -> Work:
        rng = self.rng
        work = next(work for work in iter(lambda: self.work(end), None) if can_fail(work, fault))
        work = replace(work, fault=fault)
        if fault == "range":
            beyond = 8 if work.opcode in ATOMICS else rng.randint(1, work.length)
            return replace(work, at=SIZE - work.length + beyond)
        if fault == "right":
            return replace(work, to={"READ": "writable"}.get(RIGHT[work.opcode], "readable"), at=work.at)
        if fault == "align":
            return replace(work, at=work.at + rng.randint(1, 7) if work.at < SIZE - 16 else work.at - 3)
        if fault == "long":
            return replace(self.with_receive(work, -rng.randint(1, work.length)), fault=fault)
        if fault == "rnr":
            return replace(work, receive=None)
        if fault == "invalidate":  # no region may be
            return invalidating(work, rng.choice(["memory", "readable", "writable"]))
        if fault == "stale":
            return replace(work, to="window")
        return work

    def send(self) -> Work:
        return self.with_receive(Work("SEND", self.pieces(OUT, self.length())))

    def bind(self, end: str) -> Bind:
        length = self.rng.choice([64, 1000, 8192, QUARTER // 2])
        made = Bind(end, REMOTE + 8 * self.rng.randrange((QUARTER - length) // 8), length)
        self.windows[end] = made
        return made


FAULTS_OF = {
    "RC": ("key", "range", "right", "qp", "align", "long", "rnr", "receive", "local", "invalidate", "stale"),
    "UC": ("key", "range", "right", "long", "local"),
    "UD": ("qkey", "local"),
}


LEAVES = ("sends", "receives", "unconnected")
"""Posts that are refused, and leave their end in RESET."""

REFUSED_OF = {
    "RC": ("elements", "receive elements", "inline", *LEAVES),
    "UC": ("elements", "receive elements", "inline", "opcode", "receives", "unconnected"),
    "UD": ("elements", "receive elements", "inline", "opcode", "receives", "unconnected"),
}


def can_fail(work: Work, fault: str) -> bool:
    """Whether that can be wrong about it, so that nothing else is in doubt."""
    remote = work.opcode in RIGHT and work.to == "memory"
    if fault == "invalidate":
        return work.opcode in SENDS
    if fault in ("key", "range", "right", "qp", "stale"):
        return remote and work.length > 0
    if fault in ("long", "receive"):
        return work.opcode in SENDS and work.length > 0
    if fault == "local":
        return work.length > 0 and "INLINE" not in work.flags and (remote or work.opcode not in RIGHT)
    if fault == "rnr":
        # All but the last packet of a WRITE is written before it meets that there is no receive.  And the
        # round has a new connection, where windows are gone.
        short = work.length <= SMALLEST_MTU and work.to != "window"
        return work.opcode in SENDS or (takes_receive(work) and short)
    return fault == "qkey" or (remote and work.opcode in ATOMICS)


def invalidating(work: Work, to: str) -> Work:
    """A SEND, with invalidate."""
    return replace(work, opcode="SEND_WITH_INV", to=to, imm=0)


def overlap(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] < other[0] + other[1] and other[0] < one[0] + one[1]


def meet(some: Iterable[tuple[int, int]], others: Sequence[tuple[int, int]]) -> bool:
    return any(overlap(one, other) for one in some for other in others)


def fenced(works: Sequence[Work]) -> tuple[Work, ...]:
    """With the fence where a request would change what a READ reads, or its key, or use what it brings."""
    made: list[Work] = []
    read: list[tuple[int, int]] = []  # at the peer
    brought: list[tuple[int, int]] = []
    ever: list[tuple[int, int]] = []
    for work in works:
        there = (work.at, work.length)
        changes = work.opcode in (*WRITES, *ATOMICS) and meet([there], read)
        changes = changes or (work.opcode == "SEND_WITH_INV" and bool(read))
        flags = set(work.flags)
        if work.opcode not in BRINGS and meet(work.sg, ever):  # inline data is read when it is posted
            flags -= {"INLINE"}
        if changes or (work.opcode not in BRINGS and meet(work.sg, brought)):
            flags |= {"FENCE"}
        work = replace(work, flags=tuple(sorted(flags)))
        if "FENCE" in work.flags:
            read, brought = [], []
        if work.opcode in BRINGS:
            read.append(there)
            brought += work.sg
            ever += work.sg
        made.append(work)
    return tuple(made)
