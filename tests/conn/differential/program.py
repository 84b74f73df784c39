# SPDX-License-Identifier: Apache-2.0
"""Programs of two ends as data, and what makes them from a seed.

A program is a list of rounds; in each both ends carry out their steps at once, each in its order.  Who sends
and who receives is chosen so that no two ends can wait for each other, whatever the options.
"""

from __future__ import annotations

import random
import zlib
from typing import Any, NamedTuple

READ, WRITE, ATOMIC = 4, 2, 8
"""Rights of a region, as AccessFlags numbers them."""
LEAST_BACKLOG = 8192
"""The max_backlog that every end has at least."""
WEIGHT = 64
"""What a message counts there beside its bytes."""
RAW_LONGEST = 512
"""The longest message of an end without a hello."""
LONGEST = 1 << 20
"""The max_message of every end."""
OUTGOING = (
    "bytes", "bytearray", "slice", "array", "numpy", "words", "matrix", "ctypes", "dlpack", "alloc",
    "register", "empty",
)  # fmt: skip
"""Memory that a message or a WRITE comes from."""
INCOMING = OUTGOING[1:]
SIZES = (
    0,
    1,
    7,
    40,
    47,
    48,
    49,
    55,
    56,
    57,
    63,
    64,
    65,
    183,
    184,
    185,
    200,
    500,
    999,
    1000,
    1001,
    2000,
    4095,
    4096,
    4097,
    8100,
    16367,
    16368,
    16369,
    16384,
    30_001,
)
LONG_SIZES = (65_536, 70_003, 131_055, 262_143, 262_144, 262_145, 400_001)


class Send(NamedTuple):
    """A message; `patience`: how long the call is given, None: as long as it takes."""

    key: int
    size: int
    tag: int = 0
    kind: str = "bytes"
    patience: int | None = None


class Listen(NamedTuple):
    """Receive until the message `last` is there, each by the next of `hows`."""

    hows: tuple[str, ...]
    last: tuple[int, int]
    patience: int | None = None


class Tagged(NamedTuple):
    """Receive so many messages: the next with this tag, or, None, the next."""

    tags: tuple[int | None, ...]
    patience: int | None = None


class Idle(NamedTuple):
    """A call that waits for what does not come."""

    what: str
    patience: int


class Share(NamedTuple):
    name: str
    size: int
    access: int
    key: int
    kind: str


class Take(NamedTuple):
    name: str


class Op(NamedTuple):
    """A READ, WRITE, atomic or read_array(); `fence`: one stands before it, in a batch."""

    what: str
    name: str
    offset: int
    length: int = 8
    kind: str = "bytes"
    key: int = 0
    values: tuple[int, int] = (0, 0)
    fence: bool = False
    patience: int | None = None


class Batch(NamedTuple):
    ops: tuple[Op, ...]


class Look(NamedTuple):
    """The owner looks at its memory."""

    name: str


class Withdraw(NamedTuple):
    name: str
    patience: int | None = None


class Gone(NamedTuple):
    name: str


class Wrong(NamedTuple):
    """What is refused, and changes nothing; `form`: alone or in a batch."""

    what: str
    form: str
    name: str = ""


class Stats(NamedTuple):
    """The counters, of a connection on which nothing is under way."""


class Close(NamedTuple):
    pass


class End(NamedTuple):
    """Receive what is left, until the peer's goodbye or abort."""


class Abort(NamedTuple):
    text: str


class After(NamedTuple):
    """A call after the end."""

    what: str
    name: str = ""


Step = Any
Round = tuple[tuple[Step, ...], tuple[Step, ...]]
REFUSED = (
    "right", "beyond", "before", "huge", "unaligned", "readonly", "strided", "fortran", "text", "none",
    "pd", "closed mr", "unfillable", "no region", "offset text", "offset float", "offset none", "add text",
    "add float", "send text", "send none", "send strided", "send too long", "tag negative", "tag large",
    "tag text", "tag float", "recv tag negative", "recv tag text", "into readonly", "into strided",
    "into text", "share none", "share strided", "share text", "share too much", "withdraw peer's",
    "withdraw none", "revoke peer's", "asarray peer's",
)  # fmt: skip
LAST_CALLS = (
    "send", "recv", "tag", "recv_into", "read", "batch", "share", "next_region", "close", "abort", "alloc",
    "next_withdrawn",
)  # fmt: skip
"""What is called after the end."""
IN_BATCH = frozenset(REFUSED[: REFUSED.index("send text")])


def content(key: int, size: int) -> bytes:
    return random.Random(key).randbytes(size)


def digest(data: bytes | bytearray | memoryview) -> tuple[int, int]:
    return len(data), zlib.crc32(data)


class Held(NamedTuple):
    owner: int
    size: int
    access: int
    kind: str


class Maker:
    """Makes a program from a seed."""

    def __init__(
        self, seed: int, rounds: int = 14, *, regions: bool = True, tags: bool = True, raw: bool = False
    ) -> None:
        self.rng = random.Random(seed)
        self.tags = tags and not raw
        """The peers know tags, and arrays."""
        self.with_regions = regions and not raw
        self.raw = raw
        """They say no hello: a message is one SEND, and neither goodbye nor abort is told."""
        self.sizes = [one for one in SIZES if one <= RAW_LONGEST or not raw]
        self.long_sizes = self.sizes if raw else list(LONG_SIZES)
        self.rounds = rounds
        self.keys = seed << 20
        self.regions: dict[str, Held] = {}

    def program(self) -> tuple[Round, ...]:
        made: list[Round] = []
        kinds = [self._talk, self._talk, self._both, self._tagged, self._idle, self._unheard]
        if self.with_regions:
            kinds += [self._share, self._operate, self._operate, self._withdraw, self._refused, self._look]
            made += self._share()
        while len(made) < self.rounds:
            made += self.rng.choice(kinds)()
        made.append(((Stats(),), (Stats(),)))
        made += self._end()
        return tuple(made)

    # ------------------------------------------------------------ parts

    def _key(self) -> int:
        self.keys += 1
        return self.keys

    def _size(self) -> int:
        return self.rng.choice(self.long_sizes if self.rng.random() < 0.12 else self.sizes)

    def _sides(self, first: int, one: list[Step], other: list[Step]) -> list[Round]:
        return [(tuple(one), tuple(other)) if first == 0 else (tuple(other), tuple(one))]

    def _end_of(self, sender: int) -> str:
        return "ab"[sender]

    def _patience(self, chance: float) -> int | None:
        return self.rng.choice((0, 1, 3, 10, 50)) if self.rng.random() < chance else None

    def _message(self, size: int, tag: int | None = None, patience: int | None = None) -> Send:
        tag = self.rng.choice((0, 0, 0, 1, 5, 2**64 - 1)) if tag is None else tag
        tag = tag if self.tags else 0
        return Send(self._key(), size, tag, self.rng.choice(OUTGOING), patience)

    def _last(self) -> tuple[Send, tuple[int, int]]:
        last = self._message(16 + self.rng.choice((0, 33, 200)))
        return last, digest(content(last.key, last.size))

    def _listen(self, last: tuple[int, int]) -> Listen:
        hows = tuple(self.rng.choice(("recv", "recv", "small", *INCOMING)) for _ in range(5))
        return Listen(hows, last, self._patience(0.4))

    def _talk(self) -> list[Round]:
        """One end sends what it likes, the other one receives."""
        side, (last, crc) = self.rng.randrange(2), self._last()
        sends: list[Step] = []
        for _ in range(self.rng.randrange(6)):
            patience = self._patience(0.3)
            sends.append(
                self._message(max(16, self._size()) if patience is not None else self._size(), None, patience)
            )
        sends.append(last)
        return self._sides(side, self._mixed(side, sends), self._mixed(1 - side, [self._listen(crc)]))

    def _mixed(self, side: int, steps: list[Step]) -> list[Step]:
        """With operations in between."""
        mixed = []
        for step in steps:
            if self.rng.random() < 0.3:
                mixed += self._ops(side)
            mixed.append(step)
        return mixed

    def _few(self) -> list[Send]:
        """Messages that fit every backlog, or a single one."""
        if self.rng.random() < 0.4:
            return []
        left, sends = LEAST_BACKLOG // 2 - 400, []
        for _ in range(self.rng.randrange(8)):
            size = self.rng.choice([one for one in self.sizes if one + WEIGHT < left] or [0])
            if (left := left - size - WEIGHT) > 0:
                sends.append(self._message(size))
        return sends

    def _both(self) -> list[Round]:
        """Both send and then receive: what they send fits the backlog."""
        sides: list[list[Step]] = [[], []]
        for side in (0, 1):
            last, crc = self._last()
            sends = self._few()
            sides[side] += [*sends, last] if sends else [last]
            sides[1 - side].append(crc)
        ends = []
        for steps in sides:
            crc = next(one for one in steps if type(one) is tuple)
            ends.append([*(one for one in steps if type(one) is not tuple), self._listen(crc)])
        return [(tuple(ends[0]), tuple(ends[1]))]

    def _tagged(self) -> list[Round]:
        side = self.rng.randrange(2)
        sends = self._few() or [self._message(100, 5)]
        left = [one.tag for one in sends]
        tags: list[int | None] = []
        while left:
            if self.rng.random() < 0.3:
                tags.append(None)
                left.pop(0)
            else:
                tag = self.rng.choice(left)
                tags.append(tag)
                left.remove(tag)
        return self._sides(side, self._mixed(side, list(sends)), [Tagged(tuple(tags), self._patience(0.3))])

    def _unheard(self) -> list[Round]:
        """Messages to an end that does nothing, and then listens."""
        side, (last, crc) = self.rng.randrange(2), self._last()
        sends = [
            self._message(max(16, self._size()), None, self.rng.choice((0, 3, 50, 300))) for _ in range(3)
        ]
        ops = self._ops(side)
        return [
            *self._sides(side, list(sends), []),
            *self._sides(side, ops, []),
            *self._sides(side, [last], [self._listen(crc)]),
        ]

    def _idle(self) -> list[Round]:
        what: tuple[str, ...] = ("recv", "recv_into", "tag", "next_region", "next_withdrawn")
        what = what if self.tags else what[:2]
        sides: list[tuple[Step, ...]] = [
            tuple(
                Idle(self.rng.choice(what), self.rng.choice((0, 1, 10))) for _ in range(self.rng.randrange(3))
            )
            for _ in (0, 1)
        ]
        return [(sides[0], sides[1])]

    def _share(self) -> list[Round]:
        side, name = self.rng.randrange(2), f"r{self._key() & 0xFFFFF}"
        size = 8 * self.rng.choice((1, 3, 100, 1000, 9000, 30_000))
        kind = self.rng.choice(("bytearray", "numpy", "alloc", "register", "bytes"))
        access = READ if kind == "bytes" else self.rng.choice((READ, READ | WRITE, 14, 14, 14, WRITE, ATOMIC))
        self.regions[name] = Held(side, size, access, kind)
        return self._sides(side, [Share(name, size, access, self._key(), kind)], [Take(name)])

    def _theirs(self, side: int) -> list[str]:
        return [name for name, held in self.regions.items() if held.owner != side]

    def _ops(self, side: int) -> list[Step]:
        ops = [op for _ in range(self.rng.randrange(1, 12)) if (op := self._op(side))]
        if self.rng.random() < 0.5 and ops:
            return [Batch(self._fenced([op for op in ops if op.what != "array"]))]
        patient = [op._replace(patience=self._patience(0.2)) if op.what != "array" else op for op in ops]
        return list(patient)

    def _op(self, side: int) -> Op | None:
        names = self._theirs(side)
        if not names:
            return None
        name = self.rng.choice(names)
        _, size, access, held = self.regions[name]
        if held == "numpy" and access & READ and self.tags and self.rng.random() < 0.1:
            return Op("array", name, 0, size)
        needs = {"read": READ, "write": WRITE, "add": ATOMIC, "swap": ATOMIC}
        allowed = [what for what, right in needs.items() if access & right]
        what = self.rng.choice(allowed)
        if what in ("add", "swap"):
            small = [self.rng.choice((0, 1, 2**64 - 1, 77, -1)) for _ in "12"]
            return Op(what, name, 8 * self.rng.randrange(min(size // 8, 4)), values=(small[0], small[1]))
        length = min(size, self._size())
        offset = self.rng.choice((0, size - length, self.rng.randrange(size - length + 1)))
        kind = self.rng.choice((*INCOMING, "mr") if what == "read" else (*OUTGOING, "mr"))
        return Op(what, name, offset, length, kind, self._key())

    def _fenced(self, ops: list[Op]) -> tuple[Op, ...]:
        """What changes bytes that a READ before it reads stands behind a fence."""
        made: list[Op] = []
        reads: list[Op] = []
        for op in ops:
            over = any(meets(op, one) for one in reads)
            fence = self.rng.random() < 0.2 or (op.what != "read" and over)
            reads = [] if fence else reads
            if op.what != "write":
                reads.append(op)
            made.append(op._replace(fence=fence))
        return tuple(made)

    def _operate(self) -> list[Round]:
        return [(tuple(self._ops(0)), tuple(self._ops(1)))]

    def _look(self) -> list[Round]:
        return [
            (tuple(Look(name) for name in self._theirs(1)), tuple(Look(name) for name in self._theirs(0)))
        ]

    def _withdraw(self) -> list[Round]:
        if len(self.regions) < 2:
            return []
        name = self.rng.choice(list(self.regions))
        owner = self.regions.pop(name).owner
        rounds = self._sides(owner, [Withdraw(name)], [Gone(name)])
        if self.rng.random() < 0.4:
            rounds = [
                *self._sides(owner, [Withdraw(name, self.rng.choice((0, 10)))], []),
                *self._sides(owner, [], [Gone(name)]),
            ]
        form = self.rng.choice(("alone", "batch"))
        return rounds + self._sides(owner, [], [Wrong("withdrawn", form, name)])

    def _refused(self) -> list[Round]:
        sides = []
        for side in (0, 1):
            steps: list[Step] = []
            for _ in range(4):
                names = self._theirs(side)
                what = self.rng.choice(
                    REFUSED if self.tags else [one for one in REFUSED if "tag " not in one]
                )
                form = self.rng.choice(("alone", "batch")) if what in IN_BATCH else "alone"
                if what in IN_BATCH:
                    names = [
                        name for name in names if self.regions[name].access & (READ | WRITE) == READ | WRITE
                    ]
                if names:
                    steps.append(Wrong(what, form, self.rng.choice(names)))
            sides.append(tuple(steps))
        return [(sides[0], sides[1])]

    def _end(self) -> list[Round]:
        side = self.rng.randrange(2)
        after = self.rng.sample(LAST_CALLS, 4)
        how = "close" if self.raw else self.rng.choice(("close", "close", "crossed", "abort", "unread"))
        if not self.tags:
            after = ["recv" if what == "tag" else what for what in after]
        name = next(iter(self.regions), "")
        owner = self.regions[name].owner if name else 0
        lasts = [tuple(After(what, name if owner != one else "") for what in after) for one in (0, 1)]
        if how == "crossed":
            rounds = [((Close(),), (Close(),))]
        elif how == "unread":  # what comes to an end that has closed is dropped
            sends = [self._message(self._size()) for _ in range(self.rng.randrange(5))]
            last = [*sends, *self._ops(1 - side), End(), *self._ops(1 - side), Close()]
            rounds = self._sides(side, [*self._few(), Close()], last)
        elif how == "abort":
            rounds = self._sides(side, [Abort("enough of this")], [End()])
        else:
            few: list[Step] = list(self._few())
            last = [End(), *self._ops(1 - side), *([] if self.raw else self._few()), Close()]
            rounds = self._sides(side, [*few, Close()], last)
        return [*rounds, (lasts[0], lasts[1])]


def meets(one: Op, other: Op) -> bool:
    return (one.name == other.name and one.offset < other.offset + other.length
            and other.offset < one.offset + one.length)  # fmt: skip
