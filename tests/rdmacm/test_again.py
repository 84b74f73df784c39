# SPDX-License-Identifier: Apache-2.0
"""A queue pair that a stopped process uses goes to the error state when that is possible."""

from __future__ import annotations

import threading
from errno import EBUSY
from typing import Any

import pytest

from rnic import QPState, VerbsError
from rnic.rdmacm import qp_states
from rnic.rdmacm.again import Again, again
from waiting import until


class Used:
    """A queue pair, so many times busy."""

    def __init__(self, times: int) -> None:
        self.left, self.closed, self.state = times, False, QPState.RTS
        self.threads: list[int] = []

    def modify(self, attr: Any) -> None:
        self.threads.append(threading.get_ident())
        if self.left:
            self.left -= 1
            raise VerbsError(EBUSY, "a process is stopped in the middle of a copy", "modify_qp")
        self.state = attr.qp_state


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rnic.rdmacm.again.PAUSE", 0.001)


def test_the_error_state_is_tried_again_elsewhere_until_it_is_reached() -> None:
    qp = Used(3)
    qp_states.to_error(qp)
    until(lambda: qp.state is QPState.ERR, "it is flushed")
    assert [one == threading.get_ident() for one in qp.threads] == [True, False, False, False]
    until(lambda: not again.is_busy, "nothing is left to do")


def test_a_queue_pair_that_is_destroyed_meanwhile_is_left_alone() -> None:
    qp = Used(1 << 30)
    qp_states.to_error(qp)
    qp.closed = True
    until(lambda: not again.is_busy, "nothing is left to do")


def test_what_fails_otherwise_is_tried_no_more_and_keeps_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    mine, done = Again(), threading.Event()

    def succeed() -> bool:
        done.set()
        return True

    mine.add(1, lambda: 1 // 0 > 0)
    mine.add(2, succeed)
    until(done.is_set, "the second is called")
    until(lambda: not mine.is_busy, "nothing is left to do")
    assert "ZeroDivisionError" in caplog.text


def test_what_memory_was_short_for_is_tried_again() -> None:
    mine, done, short = Again(), threading.Event(), [MemoryError("on purpose")]

    def call() -> bool:
        if short:
            raise short.pop()
        done.set()
        return True

    mine.add(1, call)
    until(done.is_set, "it is called again")


def test_memory_that_is_short_between_two_calls_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, done, short = Again(), threading.Event(), [MemoryError("on purpose")]
    real = mine._round

    def round_() -> None:
        if short:
            raise short.pop()
        real()

    def call() -> bool:
        done.set()
        return True

    monkeypatch.setattr(mine, "_round", round_)
    mine.add(1, call)
    until(done.is_set, "it is called")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_has_ended_is_followed_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, done = Again(), threading.Event()

    def fails() -> None:
        raise ZeroDivisionError("on purpose")

    monkeypatch.setattr(mine, "_round", fails)
    mine.add(1, lambda: True)
    thread = mine._thread
    assert thread is not None
    thread.join(60)
    monkeypatch.undo()

    def call() -> bool:
        done.set()
        return True

    mine.add(2, call)
    until(done.is_set, "it is called")
    until(lambda: not mine.is_busy, "nothing is left to do")


def test_who_has_waited_in_vain_keeps_others_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, first, second = Again(), Used(1 << 30), Used(0)
    mine.attempt(first, lambda: qp_states._flushed(first))
    assert not mine.is_held_up  # it was busy, and said so at once
    monkeypatch.setattr("rnic.rdmacm.again.LONG", 0)
    monkeypatch.setattr("rnic.rdmacm.again.PAUSE", 10)
    other = Used(1 << 30)
    assert not mine.attempt(other, lambda: qp_states._flushed(other))
    assert mine.is_held_up
    assert not mine.attempt(second, lambda: qp_states._flushed(second))
    assert not second.threads
    first.left = other.left = 0
    for one in (first, other, second):
        one.closed = True


def test_the_latest_call_for_an_object_counts() -> None:
    mine, done = Again(), threading.Event()
    mine.add(1, lambda: False)

    def succeed() -> bool:
        done.set()
        return True

    mine.add(1, succeed)
    until(done.is_set, "it is called")
    until(lambda: not mine.is_busy, "nothing is left to do")


def test_the_thread_ends_with_the_last_call_and_comes_again() -> None:
    mine = Again()
    for _ in range(2):
        mine.add(1, lambda: True)
        until(lambda: mine._thread is None, "the thread ends")
        assert not mine.is_busy
