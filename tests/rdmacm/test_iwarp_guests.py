# SPDX-License-Identifier: Apache-2.0
"""Strangers who connect to listeners of iWARP have a quarter of all descriptors, whatever they do then."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import ExitStack
from errno import EMFILE
from itertools import cycle

import pytest

from rdmacm.ends import expect
from rdmacm.iwarp_peer import REQUEST, Stranger, calling, listening
from rnic.rdmacm import CmId, EventChannel, EventType
from rnic.rdmacm.iwcm import arrivals, sockets
from rnic.rdmacm.iwcm.guests import guests
from rnic.rdmacm.registry import registry
from waiting import until

E_ = EventType
SHARE = 9


@pytest.fixture(autouse=True)
def few_descriptors(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (4 * SHARE, 4096))
    yield
    assert not guests._silent
    assert not guests._asked


def come(stack: ExitStack, *listeners: CmId, number: int) -> list[Stranger]:
    """Strangers who connect, one behind the other, to the listeners in turn, and say nothing."""
    found = []
    for listener, _ in zip(cycle(listeners), range(number), strict=False):
        before = guests._silent.copy()
        found.append(stack.enter_context(calling(listener.get_src_port())))
        until(lambda: guests._silent.keys() - before.keys(), "it is taken")  # noqa: B023
    return found


def asks(stranger: Stranger, channel: EventChannel) -> CmId:
    stranger.say(REQUEST)
    return expect(channel, E_.CONNECT_REQUEST).id


def is_refused(stranger: Stranger) -> None:
    stranger.say(REQUEST)
    assert stranger.hear_frame().rejected
    assert stranger.is_over()


def test_silent_ones_give_way_whichever_listener_they_came_to() -> None:
    with (
        EventChannel() as channel,
        listening(channel) as one,
        listening(channel) as other,
        ExitStack() as stack,
    ):
        strangers = come(stack, one, other, number=SHARE + 3)
        for each in strangers[:3]:
            assert each.is_over()
        assert len(guests._silent) == SHARE
        for each in strangers[3:]:
            asks(each, channel).destroy()


def test_requests_count_until_they_are_answered() -> None:
    """Also those that the program has taken; and one silent connection is there to be refused, or served."""
    with (
        EventChannel() as channel,
        listening(channel) as one,
        listening(channel) as other,
        ExitStack() as stack,
    ):
        strangers = come(stack, one, other, number=SHARE)
        waiting = [stack.enter_context(asks(each, channel)) for each in strangers]
        first, second = come(stack, one, other, number=2)
        assert first.is_over()
        is_refused(second)
        waiting[0].destroy()
        waiting[1].create_qp()
        waiting[1].accept()
        assert not strangers[1].hear_frame().rejected
        for _ in range(2):
            (late,) = come(stack, one, number=1)
            asks(late, channel).destroy()
        strangers[2].sock.close()  # and so does one who does not wait for the answer
        expect(channel, E_.UNREACHABLE)
        for _ in range(3):
            (late,) = come(stack, other, number=1)
            stack.enter_context(asks(late, channel))
        is_refused(*come(stack, other, number=1))


def test_who_is_refused_for_want_of_descriptors_leaves_others_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused: list[bool] = []
    with EventChannel() as channel, listening(channel) as listener:

        def no_descriptor(_: object) -> None:
            raise OSError(EMFILE, "Too many open files")

        def refuse(*_: object) -> bool:
            refused.append(True)
            return len(refused) < 100 * arrivals._AT_ONCE + 1

        monkeypatch.setattr(sockets, "accept", no_descriptor)
        monkeypatch.setattr(sockets.Spare, "refuse", refuse)
        with calling(listener.get_src_port()):
            until(lambda: refused, "it looks at who has come")
            with registry.lock:
                assert len(refused) % arrivals._AT_ONCE == 0
            monkeypatch.undo()


def test_a_forked_child_has_none() -> None:
    with EventChannel() as channel, listening(channel) as listener, ExitStack() as stack:
        come(stack, listener, number=3)
        child = os.fork()
        if not child:
            os._exit(len(guests._silent))
        assert os.waitpid(child, 0) == (child, 0)
        assert len(guests._silent) == 3
