# SPDX-License-Identifier: Apache-2.0
"""What the ends of a rendezvous say: who lies is found out, whatever the bytes; requests move every byte."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from random import Random
from typing import Any

import numpy as np
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
from rnic.patterns.rendezvous.steps import Hear, Leave, More, Move, Say
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
                answer: Any = None
                match step:
                    case Leave(message):
                        self.said.append(message)
                    case More():
                        answer = bool(left and left[0][0] == Kind.INVITE)
                    case Say(message, _, begins):
                        begins()
                        self.said.append(message)
                    case Move(wrs, _, behind):
                        self.moved.extend(wrs)
                        if behind is not None:
                            self.said.append(behind())
                    case Hear():
                        if not left or (left[0][0] != Kind.INVITE and self._looks_only()):
                            step = steps.throw(TimeoutError())
                            continue
                        answer = left.pop(0)
                step = steps.send(answer)
        except StopIteration as end:
            return end.value
        finally:
            steps.close()

    def _looks_only(self) -> bool:
        """It has said nothing as yet that the peer could answer."""
        out = self.dealings._out
        return out is not None and out.number is None

    def begin(self) -> None:
        """It knows its peer."""
        with suppress(TimeoutError):
            self.run(self.dealings.recv(None, 0.0), HELLO)

    def recv(self, *heard: bytes) -> Any:
        return self.run(self.dealings.recv(None, 0.0), *heard)

    def recv_into(self, *heard: bytes) -> Any:
        target = Layout(np.zeros(10_000, np.uint8), "", True)
        return self.run(self.dealings.recv(target, 0.0), *heard)

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
    assert pack(Kind.INVITE, 5, pack_pieces([PIECE])) == struct.pack("<BBHIQQI", 10, 0, 0, 5, 0, 100, 7)
    assert pack(Kind.FILLED, 5, pack_ask(9)) == struct.pack("<BBHIQ", 11, 0, 0, 5, 9)


OFFER = pack(Kind.OFFER, 1, pack_pieces([PIECE]))
ASK = pack(Kind.ASK, 1, pack_ask(100))
LIES = {
    "no header": ([b"abc"], "3 bytes, which are no header"),
    "an unknown kind": ([b"\x63" + bytes(7)], "kind 99"),
    "flags": ([struct.pack("<BBHI", 2, 2, 0, 0)], "flags 0x2"),
    "what is zero": ([struct.pack("<BBHI", 2, 0, 1, 0)], "0x1"),
    "a probe that is none": ([struct.pack("<BBHI", 7, 1, 0, 1)], "DONE with flags"),
    "a number of nothing": ([pack(Kind.MEASURED, 5)], "the number 5"),
    "an eager one that is not next": ([pack(Kind.EAGER, 5)], "message 5: 1 is the next"),
    "an invitation for later": ([pack(Kind.INVITE, 2, pack_pieces([PIECE]))], "invites message 2, and 0"),
    "two invitations": ([pack(Kind.INVITE, 1, pack_pieces([PIECE]))] * 2, "invites message 1 too often"),
    "what was not offered withdrawn": ([pack(Kind.INVITE, 1)], "invites message 1 too often"),
    "an invitation withdrawn twice": (
        [pack(Kind.INVITE, 1, pack_pieces([PIECE])), pack(Kind.INVITE, 1), pack(Kind.INVITE, 1)],
        "invites message 1 too often",
    ),
    "an invitation to nowhere": ([pack(Kind.INVITE, 1, pack_pieces([Remote(0, 0, 1)]))], "without bytes"),
    "what nobody invited": ([pack(Kind.FILLED, 1, pack_ask(9))], "none was"),
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


INVITED = pack(Kind.INVITE, 1, pack_pieces([Remote(0, 6000, 7), Remote(0, 5000, 8)]))
FILLED = pack(Kind.FILLED, 2, pack_ask(10_000))


@pytest.mark.parametrize("how", ["read", "write"])
def test_an_invited_message_needs_no_announcement(pd: rnic.PD, how: Any) -> None:
    end = End(pd, how)
    end.begin()
    end.send(INVITED, pack(Kind.DONE, 1))
    assert [(wr.remote_addr, wr.rkey) for wr in end.moved] == [(0, 7), (0, 8)]
    assert [sum(sge.length for sge in wr.sg_list) for wr in end.moved] == [6000, 4000]
    assert end.said[1:] == [pack(Kind.FILLED, 1, pack_ask(10_000))]
    assert end.dealings.statistics().invited == end.dealings.statistics().announced == 1
    end.over()


@pytest.mark.parametrize(
    "heard",
    [
        [pack(Kind.INVITE, 1, pack_pieces([Remote(0, 9999, 7)]))],
        [pack(Kind.INVITE, 1)],  # withdrawn
    ],
)
def test_where_it_has_no_place_it_is_announced(end: End, heard: list[bytes]) -> None:
    if heard[0] == pack(Kind.INVITE, 1):
        with suppress(TimeoutError):
            end.recv(INVITED, *heard)
        heard = []
    end.send(*heard, pack(Kind.DONE, 1))
    assert end.said[1][0] == Kind.OFFER
    assert end.dealings.statistics().invited == 0


def test_an_invitation_is_for_one_message(end: End) -> None:
    with suppress(TimeoutError):
        end.recv(INVITED)
    end.run(end.dealings.send(Layout(b"eager", "", False), 0.0))
    end.send(pack(Kind.DONE, 2))
    assert [said[0] for said in end.said[1:]] == [Kind.EAGER, Kind.OFFER]


def test_what_was_filled_elsewhere_is_asked_for_again(end: End) -> None:
    end.send(INVITED, pack(Kind.CLEAR, 1, pack_pieces([Remote(0, 10_000, 9)])), pack(Kind.DONE, 1))
    assert [wr.rkey for wr in end.moved] == [7, 8, 9]
    assert [said[0] for said in end.said[1:]] == [Kind.FILLED, Kind.WRITTEN]


@pytest.mark.parametrize(
    ("heard", "why"),
    [
        ([INVITED, pack(Kind.DONE, 2)], "was not given"),
        ([INVITED, pack(Kind.CLEAR, 1, pack_pieces([PIECE]))], "room for 100 bytes: the message has 10000"),
        ([INVITED] * 3, "too often"),
    ],
)
def test_a_lie_about_an_invitation_is_found_out(end: End, heard: list[bytes], why: str) -> None:
    with pytest.raises(LiarError, match=why):
        end.send(*heard)


def invites(end: End) -> None:
    """It has taken a long message by recv_into(), and waits for the next one in its buffer."""
    assert end.recv_into(pack(Kind.ASK, 1, pack_ask(100)), pack(Kind.WRITTEN, 1)) == 100
    with pytest.raises(TimeoutError):
        end.recv_into()
    assert end.said[-1][0] == Kind.INVITE


@pytest.mark.parametrize(
    ("heard", "why"),
    [
        (pack(Kind.FILLED, 2, pack_ask(10_001)), "10001 bytes fill a place of 10000"),
        (pack(Kind.FILLED, 2, pack_ask(0)), "0 bytes fill"),
        (pack(Kind.FILLED, 3, pack_ask(9)), "message 3: 2 is the next"),
        (pack(Kind.WRITTEN, 2), "gave no room"),
    ],
)
def test_a_lie_about_what_was_filled_is_found_out(end: End, heard: bytes, why: str) -> None:
    invites(end)
    with pytest.raises(LiarError, match=why):
        end.recv_into(heard)


def test_a_place_that_is_gone_is_withdrawn_and_given_anew_if_it_was_filled(end: End) -> None:
    invites(end)
    assert end.recv_into(FILLED, pack(Kind.WRITTEN, 2)) == 10_000
    withdrawn = pack(Kind.INVITE, 2)
    assert [said[0] for said in end.said[-3:]] == [withdrawn[0], Kind.CLEAR, Kind.DONE]
    assert withdrawn in end.said
    with pytest.raises(LiarError, match="none was"):
        end.recv_into(FILLED)


def test_any_message_ends_the_invitation(end: End) -> None:
    invites(end)
    assert end.recv_into(pack(Kind.EAGER, 2, b"short")) == 5
    with pytest.raises(LiarError, match="none was"):
        end.recv_into(pack(Kind.FILLED, 3, pack_ask(9)))


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
            call = dice.choice([end.recv, end.recv_into, end.send, end.measure])
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
