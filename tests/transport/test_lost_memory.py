# SPDX-License-Identifier: Apache-2.0
"""Memory that a program takes back while its region is registered: what uses it fails, by every transport."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from typing import Any

import pytest

from rnic import MR, SGE, QPState, RecvWR, SendFlags, SendWR, WCStatus, WROpcode
from rnic.testing import ALL_ACCESS, End, Options, Pair
from waiting import until

pytestmark = pytest.mark.own_way

PAGE = mmap.PAGESIZE
BYTES = 64 * PAGE
WAYS: dict[str, dict[str, Any]] = {
    "RoCE": {"device": "roce_lo", "local": True},
    "RoCE over the wire": {"device": "roce_lo", "local": False},
    "iWARP": {"device": "iwarp_lo"},
    "iWARP without CRC": {"device": "iwarp_lo", "options": Options(crc=False)},
    "iWARP with markers": {"device": "iwarp_lo", "options": Options(markers=True)},
}
SIZES = [8, 3000, BYTES - PAGE]
ONE_SIDED = [(opcode, n) for opcode in (WROpcode.RDMA_WRITE, WROpcode.RDMA_READ) for n in SIZES]
ONE_SIDED += [(WROpcode.ATOMIC_FETCH_AND_ADD, 8)]
SENDS = [(WROpcode.SEND, n) for n in SIZES]
# An atomic over iWARP, and a READ of which a segment cannot be finished: the connection ends in its midst.
REFUSED = {WCStatus.REM_ACCESS_ERR}
IWARP_REFUSED = {WCStatus.REM_ACCESS_ERR, WCStatus.REM_OP_ERR, WCStatus.RETRY_EXC_ERR}

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class Losable:
    """A region of the program's own memory, of which the second half can be lost."""

    def __init__(self, end: End) -> None:
        self.addr: int = libc.mmap(None, BYTES, 3, 0x22, -1, 0)
        ctypes.memset(self.addr, 1, BYTES)
        self.mr: MR = end.pd.reg_mr(addr=self.addr, length=BYTES, access=ALL_ACCESS)

    def lose(self) -> None:
        """Protected, not unmapped: another thread's memory could come to be there."""
        assert libc.mprotect(self.addr + BYTES // 2, BYTES // 2, 0) == 0

    def piece(self, n: int) -> SGE:
        """n bytes, of which the last one is lost."""
        return SGE(addr=self.at(n), length=n, lkey=self.mr.lkey)

    def at(self, n: int) -> int:
        return self.addr + max(BYTES // 2 - n // 2 & ~7, 0) if n > 8 else self.addr + BYTES // 2

    def close(self) -> None:
        self.mr.close()
        libc.munmap(self.addr, BYTES)


@pytest.fixture(params=WAYS)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with Pair(**WAYS[request.param]) as made:
        yield made


@pytest.fixture
def lost(pair: Pair, request: pytest.FixtureRequest) -> Iterator[Losable]:
    made = Losable(pair.a if "own" in request.node.name else pair.b)
    yield made
    made.close()


def ask(end: End, opcode: WROpcode, here: SGE, at: int, rkey: int) -> None:
    end.qp.post_send(SendWR(1, opcode, SendFlags.SIGNALED, [here], at, rkey, compare_add=1))


def ended(end: End) -> bool:
    return end.qp.state is QPState.ERR


def was_named(capfd: pytest.CaptureFixture[str], lost: Losable) -> bool:
    return f"lkey {lost.mr.lkey:#x} that is still registered" in capfd.readouterr().err


@pytest.mark.parametrize(("opcode", "n"), ONE_SIDED, ids=str)
def test_a_peer_has_an_error(
    pair: Pair, lost: Losable, capfd: pytest.CaptureFixture[str], opcode: WROpcode, n: int
) -> None:
    here = pair.a.memory(BYTES)
    lost.lose()
    ask(pair.a, opcode, SGE(here, 0, n), lost.at(n), lost.mr.rkey)
    (wc,) = pair.a.wait()
    until(lambda: ended(pair.b) and ended(pair.a), "both queue pairs have ended")
    iwarp = pair.a.ctx.device.name.startswith("iwarp")
    if not iwarp or opcode is not WROpcode.RDMA_WRITE:  # which is complete over iWARP when it has left
        assert wc.status in (IWARP_REFUSED if iwarp else REFUSED)
    assert was_named(capfd, lost)


@pytest.mark.parametrize("n", SIZES)
def test_a_receive_has_an_error(pair: Pair, lost: Losable, capfd: pytest.CaptureFixture[str], n: int) -> None:
    here = pair.a.memory(BYTES)
    pair.b.qp.post_recv(RecvWR(1, [lost.piece(n)]))
    lost.lose()
    ask(pair.a, WROpcode.SEND, SGE(here, 0, n), 0, 0)
    (wc,) = pair.b.wait()
    assert wc.status is WCStatus.LOC_PROT_ERR
    until(lambda: ended(pair.b) and ended(pair.a), "both queue pairs have ended")
    assert was_named(capfd, lost)


@pytest.mark.parametrize(("opcode", "n"), SENDS + ONE_SIDED, ids=str)
def test_a_request_of_ones_own_has_an_error(
    pair: Pair, lost: Losable, capfd: pytest.CaptureFixture[str], opcode: WROpcode, n: int
) -> None:
    there = pair.b.memory(BYTES)
    pair.b.qp.post_recv(RecvWR(1, [SGE(there)]))
    lost.lose()
    ask(pair.a, opcode, lost.piece(n), there.addr, there.rkey)
    (wc,) = pair.a.wait()
    assert wc.status is WCStatus.LOC_PROT_ERR
    assert was_named(capfd, lost)


@pytest.mark.parametrize("pair", ["RoCE"], indirect=True)
def test_the_cause_comes_with_a_cure(pair: Pair, lost: Losable) -> None:
    here = pair.a.memory(PAGE)
    lost.lose()
    ask(pair.a, WROpcode.RDMA_READ, SGE(here, 0, 8), lost.at(8), lost.mr.rkey)
    (wc,) = pair.a.wait()
    assert "the pages behind the rkey are not mapped" in wc.explain()
    assert "deregister a region before its memory is freed" in wc.explain()
