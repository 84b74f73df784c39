# SPDX-License-Identifier: Apache-2.0
"""Every pair of state and input: what the table says is what happens; and the table as it is printed."""

from __future__ import annotations

from collections.abc import Callable
from errno import EINVAL
from pathlib import Path

import pytest

from mpa.ends import DEPTHS, REPLY, REQUEST, UNTIL, in_each_state
from rnic.errors import VerbsError
from rnic.mpa import TABLE, Action, EventType, Input, Startup, State, markdown
from rnic.mpa.startup import Signal

CALLS: dict[Input, Callable[[Startup], object]] = {
    Input.SEND_REQUEST: lambda one: one.send_request(DEPTHS, b"", 5, UNTIL),
    Input.AWAIT_REQUEST: lambda one: one.await_request(5, UNTIL),
    Input.SEND_REPLY: lambda one: one.send_reply(DEPTHS, b"", 5),
    Input.SEND_REJECT: lambda one: one.send_reject(b"no", 5),
    Input.CLOSE: lambda one: one.close(5),
    Input.TIMEOUT: lambda one: one.give_up(5),
}
TELLS = {
    Action.TAKE_REQUEST: EventType.REQUEST,
    Action.TAKE_REPLY: EventType.REPLY,
    Action.TERMINATE: EventType.FAILED,
    Action.TAKE_REJECT: EventType.REJECTED,
    Action.FALL_BACK: EventType.OLD_PEER,
    Action.RESET: EventType.REJECTED,
    Action.FAIL: EventType.FAILED,
    Action.EXPIRE: EventType.FAILED,
}
SENDS = (Action.SEND_REQUEST, Action.SEND_REPLY, Action.SEND_REJECT, Action.TERMINATE, Action.EXPIRE)


def put(one: Startup, event: Input) -> None:
    """What a driver does, or what follows from bytes and their end."""
    if event in CALLS:
        CALLS[event](one)
    else:
        one._step(event, Signal(5, REQUEST if event is Input.REQUEST else REPLY))


def test_there_is_a_row_for_every_pair() -> None:
    assert set(TABLE) == {(state, one) for state in State for one in Input}
    assert {one for one in Input if one.is_call} < set(CALLS)


@pytest.mark.parametrize("event", Input, ids=lambda one: one.name)
def test_what_the_table_says_is_what_happens(event: Input) -> None:
    for state, one in in_each_state():
        row = TABLE[state, event]
        if row.action is Action.REFUSE:
            with pytest.raises(VerbsError, match=row.reason) as caught:
                put(one, event)
            assert caught.value.errno == EINVAL
            assert (one.state, one.take_out(), one.take_events()) == (state, b"", [])
            continue
        put(one, event)
        assert one.state is row.next, (state, event)
        told = [TELLS[row.action]] if row.action in TELLS else []
        assert [found.type for found in one.take_events()] == told, (state, event)
        assert bool(one.take_out()) == (row.action in SENDS), (state, event)
        if one.state in (State.UP, State.OVER):
            assert (one.deadline, one.wanted) == (None, 0)


def test_the_page_is_the_table() -> None:
    page = Path(__file__).parents[2] / "docs/mpa-states.md"
    assert page.read_text() == markdown()
