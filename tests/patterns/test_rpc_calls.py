# SPDX-License-Identifier: Apache-2.0
"""Frames and tables of calls, without a connection: what cannot be is refused."""

from __future__ import annotations

import re
from array import array
from random import Random

import pytest

import rnic
from rnic.patterns.cursor import LiarError
from rnic.patterns.rpc import RefusedCallError, Status
from rnic.patterns.rpc.calls import Asked, Asking, Order
from rnic.patterns.rpc.frames import Call, Cancel, Failure, Reply, parse

FRAMES = [
    (Call(7, 1500, "up", b"xyz"), "1102000007000000dc05000000000000757078797a"),
    (Reply(7, b"XYZ"), "120000000700000058595a"),
    (Failure(7, Status.FAILED, "Key", "no"), "13010300070000004b65796e6f"),
    (Cancel(7), "1400000007000000"),
]


@pytest.mark.parametrize(("frame", "data"), FRAMES, ids=lambda one: type(one).__name__)
def test_bytes_of_a_frame(frame: Call | Reply | Failure | Cancel, data: str) -> None:
    assert frame.pack().hex() == data
    assert parse(bytes.fromhex(data)) == frame


@pytest.mark.parametrize(
    "data",
    [
        "",
        "11020000070000",  # no header
        "2102000007000000000000000000000075700a",  # of another version
        "110000000700000000000000000000007570",  # no name
        "110900000700000000000000000000007570",  # a name beyond the end
        "11020100070000000000000000000000757000",  # what is zero is not
        "1102000007000000000000000000000075",
        "110200000700000000000000000000007580",  # no UTF-8
        "120100000700000058",
        "130109000700000058",
        "1301000107000000" + "58" * 5000,
        "140000000700000058",
        "1500000007000000",
    ],
)
def test_what_is_no_frame_is_a_lie(data: str) -> None:
    with pytest.raises(LiarError):
        parse(bytes.fromhex(data))


@pytest.mark.parametrize("seed", range(100))
def test_any_bytes_are_a_frame_or_a_lie(seed: int) -> None:
    dice = Random(seed)
    good = bytearray(bytes.fromhex(dice.choice(FRAMES)[1]))
    for _ in range(dice.randint(0, 3)):
        good[dice.randrange(len(good))] = dice.randrange(256)
    try:
        frame = parse(bytes(good[: dice.randint(0, len(good))]))
    except LiarError:
        return
    assert parse(frame.pack()) == frame


def test_long_texts_of_errors_are_cut_at_a_character() -> None:
    frame = parse(Failure(1, Status.FAILED, "é" * 300, "é" * 5000).pack())
    assert isinstance(frame, Failure)
    assert (len(frame.kind), len(frame.text)) == (127, 2048)


# ------------------------------------------------------------------------------------ the client's table


def asking(limit: int = 2, window: int = 1000) -> Asking[str]:
    return Asking(limit, window, 10_000)


def test_answers_find_those_who_wait_in_any_order() -> None:
    table = asking()
    numbers = [table.begin("m", b"", None, who)[0] for who in ("a", "b")]
    assert table.answer(Reply(numbers[1], b"2").pack()) == ("b", Reply(numbers[1], b"2"))
    assert table.answer(Reply(numbers[0], b"1").pack()) == ("a", Reply(numbers[0], b"1"))
    assert len(table) == 0


def test_room_is_limited_by_number_and_by_bytes_but_one_call_has_it_always() -> None:
    table = asking()
    assert table.has_room(1_000_000)
    table.begin("m", bytes(500), None, "a")
    assert not table.has_room(500)
    assert table.has_room(100)
    table.begin("m", b"", None, "b")
    assert not table.has_room(0)


def test_a_call_that_was_given_up_counts_until_it_is_answered() -> None:
    table = asking(limit=1)
    number, _ = table.begin("m", b"", None, "a")
    assert table.give_up(number) == Cancel(number).pack()
    assert not table.has_room(0)
    assert table.waiters() == []
    assert table.answer(Reply(number, b"").pack())[0] is None
    assert table.give_up(number) is None
    assert table.has_room(0)


def test_numbers_go_round_and_leave_out_those_in_use() -> None:
    table = asking(limit=3)
    table._last = 0xFFFFFFFE
    numbers = [table.begin("m", b"", None, "a")[0] for _ in range(2)]
    table._last = 0xFFFFFFFE
    assert [*numbers, table.begin("m", b"", None, "a")[0]] == [0xFFFFFFFF, 1, 2]


@pytest.mark.parametrize("frame", [Reply(5, b""), Failure(0, Status.BUSY, "", ""), Cancel(1), FRAMES[0][0]])
def test_an_answer_that_nobody_asked_for_is_a_lie(frame: Reply | Failure | Cancel | Call) -> None:
    table = asking()
    table.begin("m", b"", None, "a")
    with pytest.raises(LiarError):
        table.answer(frame.pack())


def test_a_second_answer_is_a_lie() -> None:
    table = asking()
    number, _ = table.begin("m", b"", None, "a")
    table.answer(Reply(number, b"").pack())
    with pytest.raises(LiarError, match="does not wait"):
        table.answer(Reply(number, b"").pack())


def test_a_server_that_leaves_gets_no_calls() -> None:
    table = asking()
    table.begin("m", b"", None, "a")
    assert isinstance(table.over(), rnic.ClosedError)
    table.answer(Failure(0, Status.LEAVING, "", "good night").pack())
    with pytest.raises(RefusedCallError, match="good night"):
        table.begin("m", b"", None, "b")
    assert isinstance(table.over(), RefusedCallError)
    assert table.all_over() == ["a"]


@pytest.mark.parametrize(("method", "body"), [("", b""), ("m" * 256, b""), ("m", bytes(10_001))])
def test_calls_that_cannot_be_are_refused(method: str, body: bytes) -> None:
    with pytest.raises(ValueError, match="bytes"):
        asking().begin(method, body, None, "a")


def test_a_call_of_the_wrong_type_says_so() -> None:
    for body, why in (("text", "text.encode"), (None, "buffer")):
        with pytest.raises(TypeError, match=re.escape(why)):
            asking().begin("m", body, None, "a")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="80000 bytes"):
        asking().begin("m", array("d", bytes(80_000)), None, "a")  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------ the server's table


def asked(limit: int = 2, max_body: int = 100) -> Asked:
    return Asked(frozenset({"m"}), limit, max_body)


def call(number: int = 1, *, left: int = 0, method: str = "m", body: bytes = b"") -> bytes:
    return Call(number, left, method, body).pack()


def test_an_order_is_answered_once() -> None:
    table = asked()
    order = table.message(call(body=b"x"), 5.0)
    assert isinstance(order, Order)
    assert (order.method, order.body, order.until, order.is_late(1e9)) == ("m", b"x", None, False)
    assert table.done(order, b"y", 5.0) == Reply(1, b"y")
    assert len(table) == 0


@pytest.mark.parametrize(
    ("result", "answer"),
    [
        (bytearray(b"y"), Reply(1, b"y")),
        (KeyError("k"), Failure(1, Status.FAILED, "KeyError", "'k'")),
        (3, Failure(1, Status.FAILED, "TypeError", "the handler returned int: it returns bytes")),
    ],
)
def test_what_a_handler_does_is_an_answer(result: object, answer: Reply | Failure) -> None:
    table = asked()
    order = table.message(call(), 5.0)
    assert isinstance(order, Order)
    assert table.done(order, result, 5.0) == answer


def test_a_reply_whose_memory_has_gone_is_an_error() -> None:
    gone = memoryview(b"gone")
    gone.release()
    table = asked()
    order = table.message(call(), 0)
    assert isinstance(order, Order)
    failure = table.done(order, gone, 0)
    assert isinstance(failure, Failure)
    assert (failure.status, failure.kind) == (Status.FAILED, "ValueError")


def test_a_reply_that_is_too_long_is_an_error() -> None:
    table = asked()
    order = table.message(call(), 5.0)
    assert isinstance(order, Order)
    answer = table.done(order, bytes(101), 5.0)
    assert isinstance(answer, Failure)
    assert answer.status == Status.TOO_LONG


def test_the_deadline_counts_from_the_arrival() -> None:
    table = asked()
    order = table.message(call(left=2_000_000), 5.0)
    assert isinstance(order, Order)
    assert (order.until, order.left(6.0), order.is_late(6.9), order.is_late(7.0)) == (7.0, 1.0, False, True)
    answer = table.done(order, b"", 7.0)
    assert isinstance(answer, Failure)
    assert answer.status == Status.DEADLINE


def test_a_cancelled_order_is_marked_and_answered_so() -> None:
    table = asked()
    order = table.message(call(), 5.0)
    assert table.message(Cancel(1).pack(), 5.0) is order
    assert isinstance(order, Order)
    answer = table.done(order, b"", 5.0)
    assert isinstance(answer, Failure)
    assert answer.status == Status.CANCELLED
    again = table.message(Cancel(1).pack(), 5.0)  # the two have crossed
    assert isinstance(again, Failure)
    client = asking()
    assert client.answer(again.pack())[0] is None


@pytest.mark.parametrize(
    ("message", "leaving", "status"),
    [
        (call(3, method="other"), None, Status.UNKNOWN),
        (call(3), None, Status.BUSY),
        (call(3, body=bytes(101)), None, Status.TOO_LONG),
        (call(3), "good night", Status.LEAVING),
    ],
)
def test_refusals(message: bytes, leaving: str | None, status: Status) -> None:
    table = asked()
    table.message(call(1), 5.0)
    table.message(call(2), 5.0)
    refusal = table.message(message, 5.0, leaving)
    assert isinstance(refusal, Failure)
    assert (refusal.number, refusal.status) == (3, status)
    assert len(table) == 2


def test_bodies_that_wait_are_limited_together() -> None:
    table = asked(limit=10)
    assert isinstance(table.message(call(1, body=bytes(60)), 5.0), Order)
    refusal = table.message(call(2, body=bytes(60)), 5.0)
    assert isinstance(refusal, Failure)
    assert refusal.status == Status.BUSY


@pytest.mark.parametrize("message", [call(1), call(0), Reply(1, b"").pack(), Failure(1, 1, "", "").pack()])
def test_what_a_client_does_not_send_is_a_lie(message: bytes) -> None:
    table = asked()
    table.message(call(1), 5.0)
    with pytest.raises(LiarError):
        table.message(message, 5.0)
