# SPDX-License-Identifier: Apache-2.0
"""Every call in every state of an id, at both ends, is answered as the Linux kernel answers it."""

from __future__ import annotations

import os
import random
from contextlib import ExitStack, closing

import pytest

import rnic.enums
import rnic.rdmacm
from rdmacm import kernel_calls
from rdmacm.ends import exchange_of
from rdmacm.seat import Seat
from rdmacm.walk import STATES, Conversation, compare
from waiting import until

pytestmark = pytest.mark.roce

RECORD = kernel_calls.load()
SAMPLE = None if os.environ.get("RNIC_SOAK", "0") not in ("", "0") else 8


# Whose TIMEWAIT ends with an event: connections that were, not those that were refused.
EXITS = {
    "both disconnect": ["child", "one"],
    "child rejects": [],
    "one rejects": [],
    "answered, child is destroyed": [],
    "answered, one is destroyed": [],
}


def seat(stack: ExitStack) -> Seat:
    return stack.enter_context(closing(Seat(rnic.rdmacm, rnic.enums, "127.0.0.1")))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("state", STATES)
def test_every_call_is_answered_as_the_kernel_answers_it(state: str) -> None:
    words = list(RECORD[state])
    for word in words if SAMPLE is None else random.Random(state).sample(words, SAMPLE):
        with ExitStack() as stack:
            talk = Conversation(seat(stack), seat(stack)).hold(state, [word])
        assert not list(compare(state, [word], RECORD[state][word], talk))


@pytest.mark.parametrize("state", EXITS)
def test_the_end_of_timewait_is_told_as_the_kernel_tells_it(state: str) -> None:
    with ExitStack() as stack:
        seats = seat(stack), seat(stack)
        Conversation(*seats).hold(state, [])
        exchanges = [
            said for end in seats for one in end.ids.values() if (said := exchange_of(one)) is not None
        ]
        until(lambda: all(one.over for one in exchanges), "TIMEWAIT ends")
        for serial, end in enumerate(seats):
            end.ask("127.0.0.1", serial)  # what the agents were about to tell is told before the answer
            assert not end.events()
        assert sorted(name for end in seats for name in end.exits) == EXITS[state]
