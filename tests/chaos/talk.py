# SPDX-License-Identifier: Apache-2.0
"""A conversation of which each byte is known: a caller asks, a host has memory, both compare.

Both sides are coroutines over an End (ends.py), which waits in a loop, or blocks and never waits.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from chaos.payload import LEAST, Head, Kind, WrongBytes, claimed, compare, in_slot

T = TypeVar("T")
SLOTS, SLOT, GUARD = 4, 1 << 15, 64
FIRST = 64  # the word, on a cache line of its own, and then the slots
MEMORY = FIRST + SLOTS * (SLOT + GUARD)
BLANK = 0xA5
MASK = (1 << 64) - 1


class End(Protocol):
    """One end of a connection, of whatever kind."""

    most: int
    """Bytes of a message at most."""

    async def send(self, data: bytes) -> None: ...
    async def recv(self) -> bytes | None:
        """The next message; None after a goodbye."""

    async def give(self) -> bytearray | memoryview:
        """Memory for the peer, MEMORY bytes of BLANK after a word of zero."""

    async def take(self) -> None:
        """Know the peer's memory."""

    async def write(self, pieces: list[tuple[bytes, int]]) -> None:
        """Into the peer's memory, all at once."""

    async def read(self, length: int, at: int) -> bytes: ...
    async def fetch_add(self, n: int) -> int: ...
    async def compare_swap(self, compare: int, swap: int) -> int: ...


class Tally:
    """What was done, and how it ended; of all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()

    def add(self, name: str, n: int = 1) -> None:
        with self._lock:
            self.counts[name] += n

    def take(self) -> Counter[str]:
        """What was counted since the last time."""
        with self._lock:
            taken, self.counts = self.counts, Counter()
        return taken


def place(slot: int) -> int:
    """Where a slot begins."""
    return FIRST + slot * (SLOT + GUARD)


def blank(memory: bytearray | memoryview) -> None:
    memory[:] = bytes([BLANK]) * len(memory)
    memory[:8] = bytes(8)


def word_of(memory: bytearray | memoryview) -> int:
    return int.from_bytes(memory[:8], "little")


def without_waiting(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine whose ends block."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    raise AssertionError("an end that blocks has waited for a loop")


class Caller:
    """Asks, and knows what has to come."""

    def __init__(self, end: End, who: int, dice: random.Random, tally: Tally) -> None:
        self.end, self.who, self.dice, self.tally = end, who, dice, tally
        self.seq = self.word = 0
        self.versions = [0] * SLOTS

    async def talk(self, rounds: int) -> None:
        await self.end.take()
        steps = (self.echo, self.write, self.read, self.add, self.swap)
        for _ in range(rounds):
            step = self.dice.choice(steps)
            await step()
            self.tally.add(f"did {step.__name__}")

    async def bye(self) -> None:
        await self.ask(Kind.BYE)

    async def ask(self, kind: Kind, slot: int = 0, version: int = 0, length: int = LEAST) -> Head:
        """A message, and its answer."""
        self.seq += 1
        sent = Head(kind, self.who, self.seq, slot, version, length)
        await self.end.send(sent.whole(length if kind is Kind.ECHO else LEAST))
        data = await self.end.recv()
        if data is None:
            raise EOFError
        got = Head.read(data)
        wanted = length if kind is Kind.ECHO else LEAST
        if (got.kind, got.seq, len(data)) != (Kind.ANSWER, self.seq, wanted):
            raise WrongBytes(f"{got} of {len(data)} bytes is the answer to {sent}")
        return got

    def size(self, most: int) -> int:
        """Of a message or slot: mostly small."""
        return self.dice.randint(LEAST, self.dice.choice((64, 1024, 5000, most)))

    async def echo(self) -> None:
        await self.ask(Kind.ECHO, length=self.size(self.end.most))

    async def write(self) -> None:
        """Some slots at once; what is said of the last one comes behind the WRITEs."""
        slots = self.dice.sample(range(SLOTS), self.dice.randint(1, SLOTS))
        pieces, length = [], self.size(SLOT)
        for slot in slots:
            self.versions[slot] += 1
            pieces.append((in_slot(self.who, slot, self.versions[slot], length), place(slot)))
        await self.end.write(pieces)
        for slot in slots:
            await self.ask(Kind.LOOK, slot, self.versions[slot], length)

    async def read(self) -> None:
        slot, length = self.dice.randrange(SLOTS), self.size(SLOT)
        self.versions[slot] += 1
        host = (await self.ask(Kind.FILL, slot, self.versions[slot], length)).who
        wanted = in_slot(host, slot, self.versions[slot], length)
        compare(await self.end.read(length, place(slot)), wanted, f"READ of slot {slot}")

    async def add(self) -> None:
        n = self.dice.getrandbits(64)
        self.changed("FETCH_AND_ADD", await self.end.fetch_add(n), (self.word + n) & MASK)

    async def swap(self) -> None:
        to = self.dice.getrandbits(64)
        hits = self.dice.random() < 0.7
        found = await self.end.compare_swap(self.word if hits else self.word ^ 1, to)
        self.changed("CMP_AND_SWP", found, to if hits else self.word)

    def changed(self, what: str, found: int, to: int) -> None:
        """The word, which nobody else has changed."""
        if found != self.word:
            raise WrongBytes(f"{what} found {found:#x}, not {self.word:#x}")
        self.word = to


class Host:
    """Has memory, answers, and compares."""

    def __init__(self, end: End, who: int, tally: Tally) -> None:
        self.end, self.who, self.tally = end, who, tally
        self.seq = 0
        self.caller: int | None = None
        self.versions = [0] * SLOTS
        self.memory: bytearray | memoryview = bytearray()
        self.known = bytearray()  # what is in it, but for what a WRITE that was not announced has changed

    async def talk(self) -> None:
        self.memory = await self.end.give()
        self.known = bytearray(self.memory)
        while (data := await self.end.recv()) is not None:
            head = Head.read(data)
            self.seq += 1
            if self.caller is None:
                self.caller = head.who
            if (head.who, head.seq) != (self.caller, self.seq):
                raise WrongBytes(f"{head}, where {self.caller} should say its message {self.seq}")
            answer = Head(Kind.ANSWER, self.who, self.seq, length=len(data))
            self.act(head)
            await self.end.send(answer.whole())
            self.tally.add("heard")
            if head.kind is Kind.BYE:
                return

    def act(self, head: Head) -> None:
        if head.kind not in (Kind.FILL, Kind.LOOK):
            return
        where = slice(place(head.slot), place(head.slot) + head.length)
        whose = self.who if head.kind is Kind.FILL else head.who
        self.known[where] = wanted = in_slot(whose, head.slot, head.version, head.length)
        self.versions[head.slot] = head.version
        if head.kind is Kind.FILL:
            self.memory[where] = wanted
        else:
            compare(bytes(self.memory[where]), wanted, f"slot {head.slot} after WRITE {head.version}")
        self.guards()

    def guards(self) -> None:
        """Nobody has written between the slots."""
        for at, end in [(8, FIRST), *((place(slot) + SLOT, place(slot + 1)) for slot in range(SLOTS))]:
            compare(bytes(self.memory[at:end]), bytes([BLANK]) * (end - at), f"between the slots, from {at}")

    def after(self) -> None:
        """It has ended, perhaps in the middle of a WRITE: each byte is the old or the next one."""
        if not self.known:
            return
        self.guards()
        for slot in range(SLOTS):
            found = bytes(self.memory[place(slot) : place(slot) + SLOT])
            known = bytes(self.known[place(slot) : place(slot) + SLOT])
            if found != known and self.caller is not None:
                self.torn(slot, found, known)

    def torn(self, slot: int, found: bytes, known: bytes) -> None:
        """A WRITE of the next version has not been announced, and may not have ended."""
        version = self.versions[slot] + 1
        length = claimed(found, self.caller or 0, slot, version)
        if length:  # else its head is not whole
            new = in_slot(self.caller or 0, slot, version, length) + known[length:]
            for at, byte in enumerate(found):
                if byte not in (known[at], new[at]):
                    raise WrongBytes(
                        f"slot {slot}, byte {at}: neither of version {version - 1} nor {version}"
                    )
        self.tally.add("torn by a death")
