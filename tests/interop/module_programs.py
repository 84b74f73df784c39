# SPDX-License-Identifier: Apache-2.0
"""Random programs for the modules rw and blockdev, legal and illegal ones, and what must come of them.

guest_modules.py carries them out in the guest.
"""

from __future__ import annotations

import random
import string
import struct
import zlib
from errno import EACCES, ECONNRESET, EINVAL, EIO, EOPNOTSUPP

Result = tuple[int, str]  # errno, or 0, and the text of the module
Operation = tuple[str, int, int, int, list[int]]  # what, offset, length, seed, cuts

ACCESS: Result = (EACCES, "remote access error")
ENDED: Result = (ECONNRESET, "WR flushed")  # all that siw says of a refusal, but while it still sends:
SENDING: Result = (EIO, "local QP operation error")
LONGEST = 1 << 20  # of one command of rw
LETTERS = string.ascii_letters + string.digits + string.punctuation
WORDS = ["write", "add", "swap", "lend", "stale", "beyond", "badkey", *["read", "pattern", "api"] * 2]
PAGE, SECTOR = 4096, 512
WORK_BYTES = 16 * PAGE  # of a work request that <rdma/rw.h> makes for rw over rxe


def pattern(length: int, seed: int) -> bytes:
    """As rw.c makes it."""
    return bytes((seed + i + i // 251) & 0xFF for i in range(length))


class RwModel:
    """The peer's memory, and what commands of rw do to it, over rxe or siw."""

    def __init__(self, memory: bytes, kind: str) -> None:
        self.memory, self.kind = bytearray(memory), kind
        # A WRITE across the end of the memory: an iWARP device may have written what comes before it.
        self.unknown = len(memory)  # from here on

    def results(self, command: str) -> list[Result]:
        """What the command may end with; the memory changes as it must."""
        word, _, rest = command.partition(" ")
        if word in ("lend", "stale"):
            return [(0, rest.upper())] if word == "lend" else [ENDED]
        if word in ("beyond", "badkey"):
            return self.refused(0)
        offset, _, rest = rest.partition(" ")
        if word in ("add", "swap"):
            return self.atomic(int(offset), [int(number) for number in rest.split()])
        numbers = [int(number) for number in rest.split()] if word != "write" else [len(rest)]
        return self.move(word, int(offset), numbers[0], rest.encode("latin-1"), numbers[1:])

    def move(self, word: str, at: int, length: int, text: bytes, seed: list[int]) -> list[Result]:
        """The commands read, write, pattern and api."""
        if not 0 < length <= LONGEST:
            return [(EINVAL, "")]
        data = pattern(length, *seed) if seed else text
        if at + length > len(self.memory):
            return self.beyond(word, at, data)
        if word == "read":
            if at + length > self.unknown:
                return [(0, "crc32 ")]
            return [(0, f"crc32 {zlib.crc32(self.memory[at : at + length]):08x}")]
        self.memory[at : at + length] = data
        moved = f"{length} bytes there and back, crc32 {zlib.crc32(data):08x}"
        return [(0, "" if word == "write" else moved)]

    def beyond(self, word: str, at: int, data: bytes) -> list[Result]:
        """Not all of it lies in the memory."""
        inside = max(0, len(self.memory) - at)
        if self.kind == "siw":
            if word != "read":
                self.unknown = min(self.unknown, at)
            return self.refused(word == "write")
        if word == "api" and len(data) > WORK_BYTES:  # the work requests before the wrong one are carried out
            whole = inside // WORK_BYTES * WORK_BYTES
            self.memory[at : at + whole] = data[:whole]
            if whole < (len(data) - 1) // WORK_BYTES * WORK_BYTES:
                return [ENDED]  # the API hears of the last one alone, which is flushed
        return [ACCESS]

    def refused(self, is_write: bool) -> list[Result]:
        """On iWARP a WRITE has ended well before the peer refuses it."""
        if self.kind == "rxe":
            return [ACCESS]
        return [ENDED, SENDING, *[(0, "")] * is_write]

    def atomic(self, at: int, numbers: list[int]) -> list[Result]:
        """The commands add and swap."""
        if self.kind == "siw":
            return [(EOPNOTSUPP, "")]
        is_inside = at + 8 <= len(self.memory)
        if at % 8:
            return [(EINVAL, "")]  # rxe posts none that is not aligned
        if not is_inside:
            return [ACCESS]
        (before,) = struct.unpack_from("=Q", self.memory, at)
        after = before + numbers[0] if len(numbers) == 1 else numbers[1] if before == numbers[0] else before
        struct.pack_into("=Q", self.memory, at, after % 2**64)
        return [(0, f"before: {before}")]


def rw_program(seed: int, size: int, count: int) -> list[str]:
    """Commands for a memory of so many bytes."""
    draw = random.Random(seed)
    return [_rw_command(draw, size) for _ in range(count)]


def _rw_command(draw: random.Random, size: int) -> str:
    word = draw.choice(WORDS)
    if word in ("beyond", "badkey"):
        return word
    text = "".join(draw.choices(LETTERS, k=draw.choice([1, 2, 63, 300])))
    if word in ("lend", "stale"):
        return f"{word} {text}"
    length = len(text) if word == "write" else _length(draw)
    if word in ("add", "swap"):
        length = 8
    at = _offset(draw, size, length)
    number = draw.choice([0, 1, 2**32, 2**64 - 1, draw.getrandbits(64)])
    match word:
        case "write":
            return f"write {at} {text}"
        case "read":
            return f"read {at} {length}"
        case "add":
            return f"add {at & ~7 if draw.random() < 0.8 else at} {number}"
        case "swap":
            return f"swap {at & ~7 if draw.random() < 0.8 else at} {number} {draw.getrandbits(64)}"
        case _:
            return f"{word} {at} {length} {draw.getrandbits(32)}"


def _length(draw: random.Random) -> int:
    near = draw.choice([1, 256, 1024, PAGE, 2 * PAGE, 16 * PAGE, draw.randrange(1, 100_000)])
    return draw.choice(
        [max(0, near + draw.randint(-2, 2))] * 8 + [0, LONGEST, LONGEST + 1, draw.randrange(LONGEST)]
    )


def _offset(draw: random.Random, size: int, length: int) -> int:
    last = max(0, size - length)
    if draw.random() < 0.8:
        return draw.choice([0, last, draw.randint(0, last), draw.randint(0, last) & -PAGE])
    return draw.choice([last + 1, size - 1, size, size + 1, 2**40, 2**63, 2**64 - max(1, length), 2**64 - 1])


class DiskProgram:
    """Processes that each have a part of the disk, and the bytes that must be there then."""

    def __init__(self, seed: int, memory: bytes, count: int, processes: int = 4) -> None:
        self.memory = bytearray(memory)
        draw = random.Random(seed)
        part = len(memory) // processes // PAGE * PAGE
        self.processes: list[tuple[bool, list[Operation]]] = []
        self.seen: list[list[int]] = []
        for number in range(processes):
            direct = draw.random() < 0.7
            operations = [_disk_operation(draw, direct, number * part, part) for _ in range(count)]
            self.processes.append((direct, operations))
            self.seen.append([crc for operation in operations for crc in self._carry_out(operation)])

    def _carry_out(self, operation: Operation) -> list[int]:
        what, at, length, seed, _ = operation
        if what == "write":
            self.memory[at : at + length] = random.Random(seed).randbytes(length)
        return [zlib.crc32(self.memory[at : at + length])] if what == "read" else []


def _disk_operation(draw: random.Random, direct: bool, start: int, part: int) -> Operation:
    unit = SECTOR if direct else 1
    longest = draw.choice([8, 64, 2500]) * SECTOR // unit
    length = min(draw.randint(1, longest) * unit, part)
    at = start + draw.randint(0, (part - length) // unit) * unit
    inner = range(1, length // SECTOR)
    cuts = sorted(draw.sample(inner, min(draw.choice([0, 0, 3, 40]), len(inner))))
    return draw.choice(["write"] * 5 + ["read"] * 5 + ["flush"]), at, length, draw.getrandbits(31), cuts


def same(expected: list[Result], found: Result) -> bool:
    """Whether one of them was found; a READ's text goes on with the bytes."""
    errno, text = found
    return any(
        errno == number and (text == words or (words[:6] == "crc32 " and text.startswith(words)))
        for number, words in expected
    )
