# SPDX-License-Identifier: Apache-2.0
"""What the grader tries a sender with: files, regions and refusals.  docs/lab3.md lists them."""

from __future__ import annotations

from enum import Enum

from rnic.records import Record

REGION = 64 << 10  # bytes
PIECE = 1 << 20  # bytes: CHUNK_BYTES of the skeleton


class Step(Enum):
    """What a sender has to do, in order; the value says it in at most 20 characters."""

    CONNECT = "connects"
    ANNOUNCE = "announces its length"
    REGION = "posts its receives"
    WRITE = "writes the bytes"
    DONE = "then sends DONE"
    HASH = "announced the hash"
    ID = "sends its id"
    KEY = "prints its key"
    DISCONNECT = "disconnects"
    EXIT = "exits with code 0"
    STOP = "stops when refused"


class Case(Record):
    """A file, and how the receiver behaves."""

    name: str
    length: int
    regions: tuple[int, ...] = (REGION,)
    """Bytes of the region for each chunk; the last goes on."""
    late: bool = False
    """The sender's RNIC is slow with SENDs, instead of the receiver being fast."""
    refused: Step | None = None
    """The receiver refuses what follows this step."""

    @property
    def steps(self) -> tuple[Step, ...]:
        """What a sender is asked for."""
        steps = tuple(step for step in Step if step is not Step.STOP)
        return steps if self.refused is None else (*steps[: steps.index(self.refused) + 1], Step.STOP)


# Whole regions of sizes around the piece that a sender writes at a time, and one that is not filled.
_AROUND_A_PIECE = (1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE)

CASES = (
    Case("empty", 0),
    Case("1 byte", 1),
    Case("odd", 10007),  # no multiple of any MTU
    Case("1 region", REGION, late=True),
    Case("2.5 regions", 5 * REGION // 2 + 1),
    Case("many WRITEs", sum(_AROUND_A_PIECE) + PIECE + 3, (*_AROUND_A_PIECE, 3 * PIECE)),
    Case("refused", 1, refused=Step.ANNOUNCE),
    Case("bad verdict", 1, refused=Step.DONE),
    Case("no key", 1, refused=Step.ID),
)
