# SPDX-License-Identifier: Apache-2.0
"""One table of what each end sees when a request is refused, by every way that bytes take.

The ways are the wire, with packets of 1 KiB and of the largest path MTU; the ring in shared memory;
and, between processes of one user, the peer's memory itself, where what may not be done goes as a
packet. What the specification gives for each refusal: IBA 9.7.4.1, 9.9.3 and 11.6.2. A key is
looked at when its message begins, so a WRITE with immediate that needs several packets on the wire
is refused before its receive is known of, by whatever way it goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import pytest

from rnic import MTU, SGE, AccessFlags, EventType, RecvWR, SendFlags, SendWR, WCStatus, WROpcode
from rnic.testing import ALL_ACCESS, End, Options, Pair

pytestmark = pytest.mark.own_way

SIZE = 1 << 17
ROOM = 100  # bytes of a receive that is too short
SECONDS = 60.0  # that only a hang needs
S, W, WI, R = WROpcode.SEND, WROpcode.RDMA_WRITE, WROpcode.RDMA_WRITE_WITH_IMM, WROpcode.RDMA_READ
CAS, ADD, AW = WROpcode.ATOMIC_CMP_AND_SWP, WROpcode.ATOMIC_FETCH_AND_ADD, WROpcode.ATOMIC_WRITE
WORDS = (CAS, ADD, AW)
RIGHT = {
    W: AccessFlags.REMOTE_WRITE,
    WI: AccessFlags.REMOTE_WRITE,
    AW: AccessFlags.REMOTE_WRITE,
    R: AccessFlags.REMOTE_READ,
    CAS: AccessFlags.REMOTE_ATOMIC,
    ADD: AccessFlags.REMOTE_ATOMIC,
}
ON_MEMORY = tuple(RIGHT)
LENGTHS = (1024, 1025, 5000, 100_000)


@dataclass(frozen=True)
class Seen:
    """By the requester, by the receive that was posted, and as an event at the responder."""

    request: WCStatus
    receive: WCStatus = WCStatus.WR_FLUSH_ERR
    event: EventType | None = None


ACCESS = Seen(WCStatus.REM_ACCESS_ERR, event=EventType.QP_ACCESS_ERR)
ACCESS_TOLD = Seen(WCStatus.REM_ACCESS_ERR, WCStatus.LOC_ACCESS_ERR, EventType.QP_ACCESS_ERR)
INVALID = Seen(WCStatus.REM_INV_REQ_ERR, event=EventType.QP_REQ_ERR)


@dataclass
class Asked:
    """What is posted at a, and what of b it is for."""

    a: End
    b: End
    rights: AccessFlags  # of b's memory
    addr: int = 0
    rkey: int = 0
    receive: int = SIZE  # bytes of the receive at b
    closes: ExitStack = field(default_factory=ExitStack)


def wrong_key(asked: Asked, _length: int) -> None:
    asked.rkey ^= 0x10000


def out_of_bounds(asked: Asked, length: int) -> None:
    asked.addr += SIZE - length + 8


def other_domain(asked: Asked, _length: int) -> None:
    pd = asked.closes.enter_context(asked.b.ctx.alloc_pd())
    mr = asked.closes.enter_context(pd.alloc_mr(SIZE, ALL_ACCESS))
    asked.addr, asked.rkey = mr.addr, mr.rkey


def misaligned(asked: Asked, _length: int) -> None:
    asked.addr += 4


def too_long(asked: Asked, length: int) -> None:
    asked.receive = length - 1


def nothing(asked: Asked, length: int) -> None:
    pass


def told_if_one_packet(opcode: WROpcode, length: int, path_mtu: int) -> Seen:
    return ACCESS_TOLD if opcode is WI and length <= path_mtu else ACCESS


@dataclass(frozen=True)
class Refusal:
    name: str
    opcodes: tuple[WROpcode, ...]
    seen: Callable[[WROpcode, int, int], Seen]
    change: Callable[[Asked, int], None] = nothing
    queue_pair_lacks: bool = False  # the right
    memory_lacks: bool = False
    depth: int = 16  # max_dest_rd_atomic of b


TABLE = (
    Refusal("wrong key", ON_MEMORY, told_if_one_packet, wrong_key),
    Refusal("out of bounds", ON_MEMORY, told_if_one_packet, out_of_bounds),
    Refusal("another domain", ON_MEMORY, told_if_one_packet, other_domain),
    Refusal("the region lacks the right", ON_MEMORY, told_if_one_packet, memory_lacks=True),
    Refusal("the queue pair lacks the right", ON_MEMORY, lambda *_: INVALID, queue_pair_lacks=True),
    Refusal("both lack it", ON_MEMORY, lambda *_: INVALID, queue_pair_lacks=True, memory_lacks=True),
    Refusal("misaligned", WORDS, lambda *_: INVALID, misaligned),
    Refusal("no responder resources", (R, *WORDS), lambda *_: INVALID, depth=0),
    Refusal(
        "longer than the receive",
        (S,),
        lambda *_: Seen(WCStatus.REM_INV_REQ_ERR, WCStatus.LOC_LEN_ERR),
        too_long,
    ),
)
ROWS = [(refusal, opcode) for refusal in TABLE for opcode in refusal.opcodes]


@dataclass(frozen=True)
class Way:
    name: str
    path_mtu: MTU
    local: bool
    direct: bool = False


WAYS = (
    Way("wire, 1 KiB", MTU.MTU_1024, False),
    Way("wire, 4 KiB", MTU.MTU_4096, False),
    Way("ring, 1 KiB", MTU.MTU_1024, True),
    Way("ring, 4 KiB", MTU.MTU_4096, True),
    Way("memory", MTU.MTU_4096, True, True),
)


@contextmanager
def ends(way: Way, refusal: Refusal, opcode: WROpcode) -> Iterator[Asked]:
    """Two ends that have spoken, so that a's requests are not the first, by that way."""
    lacks = RIGHT.get(opcode, AccessFlags(0))
    allowed = Options().access & ~lacks if refusal.queue_pair_lacks else Options().access
    rights = ALL_ACCESS & ~lacks if refusal.memory_lacks else ALL_ACCESS
    here = Options(path_mtu=way.path_mtu)
    there = Options(path_mtu=way.path_mtu, access=allowed, max_dest_rd_atomic=refusal.depth)
    with Pair(local=way.local, options=here, options_b=there) as pair:
        asked = Asked(pair.a, pair.b, rights)
        pair.b.qp.post_recv(RecvWR(0, []))
        pair.a.qp.post_send(SendWR(0, S, SendFlags.SIGNALED, []))
        pair.a.wait_ok()
        pair.b.wait_ok()
        with asked.closes:
            yield asked


def ask(asked: Asked, way: Way, refusal: Refusal, opcode: WROpcode, length: int) -> Seen:
    """What is seen; the region is ordinary memory where only packets reach it."""
    source, room = asked.a.memory(SIZE), asked.b.memory(SIZE)
    if way.direct:
        target = asked.b.memory(SIZE, asked.rights)
    else:
        target = asked.b.register(bytearray(SIZE), asked.rights)
    asked.addr, asked.rkey = target.addr, target.rkey
    refusal.change(asked, length)
    asked.b.qp.post_recv(RecvWR(7, [SGE(room, 0, asked.receive)]))
    piece = SGE(source, 0, length)
    asked.a.qp.post_send(
        SendWR(1, opcode, SendFlags.SIGNALED, [piece], asked.addr, asked.rkey, compare_add=1)
    )
    (request,) = asked.a.wait(1, SECONDS)
    (receive,) = asked.b.wait(1, SECONDS)
    assert receive.wr_id == 7
    event = asked.b.ctx.get_async_event(SECONDS) if refusal.change is not too_long else None
    assert bytes(target.buf) == bytes(SIZE), "nothing of it was done"
    return Seen(request.status, receive.status, event.event_type if event else None)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
@pytest.mark.parametrize(("refusal", "opcode"), ROWS, ids=lambda x: x.name)
def test_both_ends_see_the_same_by_every_way(way: Way, refusal: Refusal, opcode: WROpcode) -> None:
    for length in (8,) if opcode in WORDS else LENGTHS:
        with ends(way, refusal, opcode) as asked:
            seen = ask(asked, way, refusal, opcode, length)
        assert seen == refusal.seen(opcode, length, 128 << way.path_mtu), f"{length} bytes"
