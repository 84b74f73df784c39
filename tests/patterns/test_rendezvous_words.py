# SPDX-License-Identifier: Apache-2.0
"""What the ends of a rendezvous say: who lies is found out, whatever the bytes; requests move every byte."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rnic
from rnic.enums import AccessFlags, WROpcode
from rnic.patterns.cursor import LiarError
from rnic.patterns.rendezvous import words
from rnic.patterns.rendezvous.cache import RegistrationCache
from rnic.patterns.rendezvous.layout import Layout, Piece, Remote, requests
from rnic.patterns.rendezvous.measure import Measuring
from rnic.patterns.rendezvous.steps import Hear, Leave, Move, Say
from rnic.patterns.rendezvous.words import Kind, pack, pack_ask, pack_pieces

MOST = 100_000  # bytes that the end takes
HELLO = words.pack_hello(MOST)
PIECE = Remote(0, 100, 7)


@pytest.fixture(scope="module")
def pd() -> Iterator[rnic.PD]:
    with rnic.open_device("roce_lo") as ctx, ctx.alloc_pd() as domain:
        yield domain


class End:
    """An end whose peer says what a test wants."""

    def __init__(self, pd: rnic.PD, how: Any = "read", takes: tuple[int, int] = (4096, 1 << 24)) -> None:
        self.cache = RegistrationCache(pd)
        self.dealings = Measuring(how, None, MOST, 1 << 20, self.cache, 4, lambda: takes)
        self.said: list[bytes] = []
        self.moved: list[Any] = []

    def run(self, steps: Any, *heard: bytes) -> Any:
        """TimeoutError when the end waits for more."""
        left = list(heard)
        try:
            step = next(steps)
            while True:
                answer = None
                match step:
                    case Leave(message) | Say(message, _):
                        self.said.append(message)
                    case Move(wrs, _):
                        self.moved.extend(wrs)
                    case Hear():
                        if not left:
                            step = steps.throw(TimeoutError())
                            continue
                        answer = left.pop(0)
                step = steps.send(answer)
        except StopIteration as end:
            return end.value
        finally:
            steps.close()

    def begin(self) -> None:
        """It knows its peer."""
        with suppress(TimeoutError):
            self.run(self.dealings.recv(None, 0.0), HELLO)

    def recv(self, *heard: bytes) -> Any:
        return self.run(self.dealings.recv(None, 0.0), *heard)

    def send(self, *heard: bytes) -> Any:
        return self.run(self.dealings.send(Layout(bytes(10_000), "", False), 0.0), *heard)

    def measure(self, *heard: bytes) -> Any:
        return self.run(self.dealings.measure(0.0), *heard)

    def over(self) -> None:
        self.dealings.let_go()
        self.cache.close()


@pytest.fixture
def end(pd: rnic.PD) -> Iterator[End]:
    found = End(pd)
    found.begin()
    yield found
    found.over()


@pytest.fixture
def writer(pd: rnic.PD) -> Iterator[End]:
    found = End(pd, "write")
    found.begin()
    yield found
    found.over()


def test_the_bytes_are_those_of_the_page() -> None:
    assert struct.pack("<BBHI4sHHQ", 1, 0, 0, 0, b"rnRV", 1, 0, MOST) == HELLO
    assert pack(Kind.OFFER, 3, pack_pieces([PIECE])) == struct.pack("<BBHIQQI", 3, 0, 0, 3, 0, 100, 7)
    assert pack(Kind.ASK, 4, pack_ask(9), True) == struct.pack("<BBHIQ", 4, 1, 0, 4, 9)
    assert pack(Kind.DONE, 4) == struct.pack("<BBHI", 7, 0, 0, 4)


OFFER = pack(Kind.OFFER, 1, pack_pieces([PIECE]))
ASK = pack(Kind.ASK, 1, pack_ask(100))
LIES = {
    "no header": ([b"abc"], "3 bytes, which are no header"),
    "an unknown kind": ([b"\x63" + bytes(7)], "kind 99"),
    "flags": ([struct.pack("<BBHI", 2, 2, 0, 0)], "flags 0x2"),
    "what is zero": ([struct.pack("<BBHI", 2, 0, 1, 0)], "0x1"),
    "a probe that is none": ([struct.pack("<BBHI", 7, 1, 0, 1)], "DONE with flags"),
    "a number of nothing": ([pack(Kind.EAGER, 5)], "the number 5"),
    "a body of nothing": ([pack(Kind.DONE, 1, b"x")], "with 1 bytes: it has 0"),
    "a second HELLO": ([HELLO], "HELLO, and no other one"),
    "no pieces": ([pack(Kind.OFFER, 1)], "1 to 256"),
    "too many pieces": ([pack(Kind.OFFER, 1, pack_pieces([PIECE] * 257))], "1 to 256"),
    "half a piece": ([pack(Kind.OFFER, 1, bytes(21))], "20 each|tell of pieces"),
    "an empty piece": ([pack(Kind.OFFER, 1, pack_pieces([PIECE, Remote(0, 0, 1)]))], "without bytes"),
    "a piece beyond memory": ([pack(Kind.OFFER, 1, pack_pieces([Remote(2**64 - 1, 2, 1)]))], "beyond"),
    "too long an offer": ([pack(Kind.OFFER, 1, pack_pieces([Remote(0, MOST, 1), PIECE]))], "100100 bytes"),
    "too long a question": ([pack(Kind.ASK, 1, pack_ask(MOST + 1))], "takes 1 to 100000"),
    "a question of nothing": ([pack(Kind.ASK, 1, pack_ask(0))], "announced 0 bytes"),
    "a number that is not next": ([pack(Kind.ASK, 2, pack_ask(9))], "message 2: 1 is the next"),
    "an eager one behind a question": ([ASK, pack(Kind.EAGER)], "EAGER behind"),
    "a question behind a question": ([ASK, ASK], "ASK behind"),
    "a probe": ([pack(Kind.EAGER, 1, b"x", True)], "does not measure"),
    "room": ([pack(Kind.CLEAR, 1, pack_pieces([PIECE]))], "not asked for"),
    "what is not written": ([pack(Kind.WRITTEN, 1)], "gave no room"),
    "what another message is": ([ASK, pack(Kind.WRITTEN, 2)], "gave no room"),
    "what it was not given": ([pack(Kind.DONE, 0)], "was not given"),
    "a measure": ([pack(Kind.MEASURED)], "this end does not"),
    "two measures": ([pack(Kind.MEASURE, 0, bytes(8))] * 2, "says twice"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_found_out(end: End, lie: str) -> None:
    heard, why = LIES[lie]
    with pytest.raises(LiarError, match=why):
        end.recv(*heard)


@pytest.mark.parametrize(
    ("heard", "why"),
    [
        ([pack(Kind.DONE, 2)], "was not given"),
        ([pack(Kind.CLEAR, 1, pack_pieces([PIECE]))], "not asked for"),
    ],
)
def test_a_lie_about_an_offer_is_found_out(end: End, heard: list[bytes], why: str) -> None:
    with pytest.raises(LiarError, match=why):
        end.send(*heard)


ROOM = pack(Kind.CLEAR, 1, pack_pieces([Remote(0, 10_000, 7)]))


@pytest.mark.parametrize(
    ("heard", "why"),
    [
        ([pack(Kind.DONE, 1)], "was not given"),
        ([pack(Kind.CLEAR, 1, pack_pieces([PIECE]))], "room for 100 bytes: the message has 10000"),
        ([pack(Kind.CLEAR, 2, pack_pieces([Remote(0, 10_000, 7)]))], "not asked for"),
        ([ROOM, pack(Kind.DONE, 2)], "was not given"),
        ([ROOM, ROOM, pack(Kind.DONE, 1), ROOM], None),
    ],
)
def test_a_lie_about_a_question_is_found_out(writer: End, heard: list[bytes], why: str | None) -> None:
    if why is None:  # room that is given again is no lie
        writer.send(*heard)
        assert len(writer.moved) == 2
        return
    with pytest.raises(LiarError, match=why):
        writer.send(*heard)


@pytest.mark.parametrize(
    "hello",
    [b"rnRW\1\0" + bytes(10), b"rnRV\2\0" + bytes(10), b"rnRV\1\0"],
)
def test_a_hello_that_cannot_be_is_found_out(pd: rnic.PD, hello: bytes) -> None:
    end = End(pd)
    with pytest.raises(LiarError, match="HELLO"):
        end.run(end.dealings.recv(None, 0.0), pack(Kind.HELLO, 0, hello))


def test_a_channel_that_takes_no_offer_is_found_out(pd: rnic.PD) -> None:
    with pytest.raises(LiarError, match="5128 bytes are needed"):
        End(pd, takes=(4096, 5127)).recv(HELLO)


def test_the_first_word_is_hello(pd: rnic.PD) -> None:
    with pytest.raises(LiarError, match="first word is HELLO"):
        End(pd).recv(OFFER)


def test_a_number_that_comes_back_is_a_lie(end: End, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.urandom", lambda _: b"ABCDEFGH")
    with pytest.raises(LiarError, match="is this end's"):
        end.measure(pack(Kind.MEASURE, 0, b"ABCDEFGH"))


@pytest.mark.parametrize("seed", range(100))
def test_any_words_are_understood_or_a_lie(pd: rnic.PD, seed: int) -> None:
    dice = Random(seed)
    end = End(pd, dice.choice(["read", "write"]))
    end.begin()
    kinds = [kind for kind in Kind if kind is not Kind.HELLO]
    bodies = [b"", b"x", bytes(8), pack_ask(100), pack_pieces([PIECE]), pack_pieces([Remote(0, 10_000, 7)])]
    heard = [
        pack(dice.choice(kinds), dice.choice([0, 1, 1, 2]), dice.choice(bodies), dice.random() < 0.1)
        for _ in range(20)
    ]
    try:
        for _ in range(5):
            call = dice.choice([end.recv, end.send, end.measure])
            with suppress(TimeoutError):
                call(*heard)
            heard = heard[3:]
    except (LiarError, ConnectionError):
        pass
    finally:
        end.over()


cuts = st.lists(st.integers(1, 50), min_size=1, max_size=20)


@given(local=cuts, remote=cuts, max_sge=st.integers(1, 5))
def test_requests_move_every_byte_once_and_in_order(
    pd: rnic.PD, local: list[int], remote: list[int], max_sge: int
) -> None:
    while sum(remote) > sum(local):
        remote.pop()
    with pd.reg_mr(bytearray(2 * sum(local)), AccessFlags.LOCAL_WRITE) as mr:
        pieces, at = list[Piece](), 0
        for length in local:  # they lie apart, and begin with the last
            pieces.insert(0, Piece(mr, at, length))
            at += 2 * length
        wanted = [piece.offset + n for piece in pieces for n in range(piece.length)][: sum(remote)]
        there = [Remote(1000 * n, length, n) for n, length in enumerate(remote)]
        moved: list[tuple[int, int]] = []
        for wr in requests(WROpcode.RDMA_READ, pieces, there, max_sge):
            assert 1 <= len(wr.sg_list) <= max_sge
            at = wr.remote_addr
            for sge in wr.sg_list:
                moved.extend((sge.addr - mr.iova + n, at + n) for n in range(sge.length))
                at += sge.length
            assert at <= 1000 * wr.rkey + remote[wr.rkey]
        assert [here for here, _ in moved] == wanted
        assert [far for _, far in moved] == [r.addr + n for r in there for n in range(r.length)]
