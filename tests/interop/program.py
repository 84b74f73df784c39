# SPDX-License-Identifier: Apache-2.0
"""A seeded sequence of all operations between two ends, and the checks of what it did."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any

from ends import Completion, End, Send

MiB = 1 << 20
LENGTH = 4 * MiB  # of an end's region
KINDS = ("RDMA_WRITE", "RDMA_READ", "SEND", "ATOMIC_FETCH_AND_ADD", "ATOMIC_CMP_AND_SWP")

Pair = tuple[End, End]
MakePair = Callable[..., Pair]

SOURCE, TARGET = 64, 2 * MiB  # where the tests put what is sent, and what arrives
GUARD = 64  # bytes before and after TARGET that must stay as they were


def noise(length: int, seed: int) -> bytes:
    return random.Random(seed).randbytes(length)


def guarded(end: End, length: int) -> bytes:
    """What lies at TARGET, after checking that nothing around it was touched."""
    raw = end.load(TARGET - GUARD, length + 2 * GUARD)
    assert raw[:GUARD] == raw[GUARD + length :] == b"\xee" * GUARD, "bytes beside the target were written"
    return raw[GUARD : GUARD + length]


def prepare_target(end: End, length: int) -> None:
    end.store(TARGET - GUARD, b"\xee" * (length + 2 * GUARD))


def rdma(opcode: str, responder: End, offset: int, sg: list[tuple[int, int]], **more: Any) -> Send:
    """A work request on the responder's region."""
    remote = responder.address
    return Send(opcode=opcode, sg=sg, remote_addr=remote.addr + offset, rkey=remote.rkey, **more)


def complete(end: End, n: int = 1, timeout: float = 60) -> list[Completion]:
    """The next n completions, all of them successful."""
    wcs = end.poll(n, timeout)
    failed = [wc for wc in wcs if wc.status != "SUCCESS"]
    assert not failed, failed
    assert len(wcs) == n, f"{len(wcs)} of {n} completions after {timeout} s"
    return wcs


def u64(end: End, offset: int) -> int:
    value: int = struct.unpack("=Q", end.load(offset, 8))[0]
    return value


class Program:
    """A seeded sequence of all operations from one end to its peer, and what it must lead to.

    The peer's region holds a window that only this end writes, a counter, a slot for each SEND, and bytes
    that nobody writes; this end's region the source of WRITE and SEND, and a slot for what each READ and
    atomic brings.

    fenced: WRITEs carry the fence flag, and READs read what they wrote.  Without it an earlier READ may bring
    the later WRITE's bytes (IBA 10.8.3.3), so READs read what nobody writes.  The kernel's fence is not for
    links that lose packets: what waits behind it may wait for ever.
    siw: without atomics, and without READs of no bytes, which siw answers with some if they wait for others.
    """

    SLOT = 16_384  # the longest message
    COUNTER, SOURCE, CONSTANT, WINDOW = 256, 1024, MiB // 2, MiB  # offsets
    RECEIVED, BROUGHT = 2 * MiB, 3 * MiB  # offsets of slots

    def __init__(
        self, requester: End, responder: End, *, n: int, seed: int, fenced: bool, siw: bool = False
    ) -> None:
        self.requester, self.responder, self.fenced, self.siw = requester, responder, fenced, siw
        rng = random.Random(seed)
        self.data = rng.randbytes(self.SLOT)
        self.window = bytearray(self.SLOT)
        self.counter = rng.getrandbits(64)
        requester.store(self.SOURCE, self.data)
        responder.store(self.CONSTANT, self.data)
        responder.store(self.WINDOW, bytes(self.window))
        responder.store(self.COUNTER, struct.pack("=Q", self.counter))
        self.brought: list[tuple[int, bytes]] = []  # (offset at this end, what must be there)
        self.received: list[tuple[int, int, bytes]] = []  # (wr_id, slot at the peer, what must be there)
        self.wrs = [self._wr(i, rng) for i in range(n)]

    def _wr(self, i: int, rng: random.Random) -> Send:
        kind = rng.choice(KINDS[:3] if self.siw else KINDS)
        start = rng.randrange(self.SLOT // 2)
        size = rng.choice([0, 1, 7, 8, 200, 1024, 4097, rng.randrange(self.SLOT // 2)])
        mine = self.BROUGHT + i * self.SLOT // 2
        if kind == "RDMA_WRITE":
            self.window[start : start + size] = self.data[:size]
            flags = ("SIGNALED", "FENCE") if self.fenced else ("SIGNALED",)
            return rdma(
                kind, self.responder, self.WINDOW + start, [(self.SOURCE, size)], wr_id=i, send_flags=flags
            )
        if kind == "RDMA_READ":
            size = max(size, 1) if self.siw else size
            area, content = (self.WINDOW, self.window) if self.fenced else (self.CONSTANT, self.data)
            self.brought.append((mine, bytes(content[start : start + size])))
            return rdma(kind, self.responder, area + start, [(mine, size)], wr_id=i)
        if kind == "SEND":
            slot = self.RECEIVED + len(self.received) * self.SLOT // 2
            self.responder.post_recv(1000 + i, [(slot, self.SLOT // 2)])
            self.received.append((1000 + i, slot, self.data[start : start + size]))
            return Send(opcode=kind, sg=[(self.SOURCE + start, size)], wr_id=i)
        self.brought.append((mine, struct.pack("=Q", self.counter)))
        if kind == "ATOMIC_FETCH_AND_ADD":
            change = {"compare_add": rng.getrandbits(64)}
            self.counter = (self.counter + change["compare_add"]) % 2**64
        else:
            change = {"compare_add": rng.choice([self.counter, 5]), "swap": rng.getrandbits(64)}
            self.counter = change["swap"] if change["compare_add"] == self.counter else self.counter
        return rdma(kind, self.responder, self.COUNTER, [(mine, 8)], wr_id=i, **change)

    def check(self, sent: list[Completion], received: list[Completion]) -> None:
        order = [wc.wr_id for wc in sent]
        if not self.requester.in_order:
            order.sort()
        assert order == [wr.wr_id for wr in self.wrs], f"completed in the order {order}"
        lengths = [(wc.wr_id, wc.byte_len) for wc in received]
        assert lengths == [(i, len(data)) for i, _, data in self.received], f"received {lengths}"
        assert self.responder.load(self.WINDOW, self.SLOT) == self.window, "a WRITE arrived wrong"
        assert u64(self.responder, self.COUNTER) == self.counter, "the atomics did not run once each"
        for offset, data in self.brought:
            wr = self.wrs[(offset - self.BROUGHT) * 2 // self.SLOT]
            assert self.requester.load(offset, len(data)) == data, f"brought wrong bytes: {wr}"
        for wr_id, slot, data in self.received:
            assert self.responder.load(slot, len(data)) == data, f"SEND {wr_id} arrived wrong"


def run_both(
    a: End,
    b: End,
    *,
    n: int,
    seed: int,
    fenced: bool = True,
    timeout: float = 60,
    siw: bool = False,
) -> None:
    """Run a program of n <= 100 operations from each end at the same time, and check all that came of it."""
    programs = [
        Program(a, b, n=n, seed=seed, fenced=fenced, siw=siw),
        Program(b, a, n=n, seed=seed + 1000, fenced=fenced, siw=siw),
    ]
    for half in (slice(0, n // 2), slice(n // 2, n)):
        for program in programs:
            program.requester.post_send(*program.wrs[half])
    wcs = []
    for program, other in (programs, reversed(programs)):
        wcs.append(complete(program.requester, len(program.wrs) + len(other.received), timeout))
    for i, program in enumerate(programs):
        sent = [wc for wc in wcs[i] if wc.wr_id < 1000]
        received = [wc for wc in wcs[1 - i] if wc.wr_id >= 1000]
        program.check(sent, received)
