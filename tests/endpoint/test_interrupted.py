# SPDX-License-Identifier: Apache-2.0
"""A signal in the middle of a call: what the call was about is done by the next one, whichever that is."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest

from endpoint.queues import SMALL, End, Pair
from rnic.endpoint import Failed, MessageReceived, Protocol
from rnic.enums import AccessFlags

READ = AccessFlags.REMOTE_READ


@contextlib.contextmanager
def interrupted(function: str) -> Iterator[None]:
    """KeyboardInterrupt where the function of that name begins, once."""

    def trace(frame: FrameType, event: str, _arg: Any) -> None:
        if event == "call" and frame.f_code.co_name == function:
            sys.settrace(None)
            raise KeyboardInterrupt

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        sys.settrace(before)


def received(end: End) -> list[bytes]:
    return [bytes(event.data) for event in end.events if isinstance(event, MessageReceived)]


@pytest.mark.parametrize(
    "call",
    [
        lambda pair: pair.a.protocol.send(b"more"),
        lambda pair: pair.a.protocol.share(0, 8, 1, READ),
        lambda pair: pair.a.protocol.withdraw(1),
        lambda pair: pair.a.protocol.close(0.0),
        lambda pair: pair.a.take_event(),
        lambda pair: pair.arrive(pair.b),
        lambda pair: pair.a.complete(0.0),
        lambda pair: pair.a.post_send(),
    ],
    ids=["send", "share", "withdraw", "close", "next_event", "receive", "sent", "next_send"],
)
def test_a_message_is_sent_though_its_call_was_interrupted(call: Callable[[Pair], object]) -> None:
    pair = Pair(replace(SMALL, receives=16), replace(SMALL, receives=16))
    pair.a.protocol.share(0, 8, 1, READ)
    pair.run()
    pair.b.protocol.send(b"event")  # something for each call to do
    pair.b.post_send()
    pair.arrive(pair.b)
    pair.b.protocol.send(b"on its way")
    pair.b.post_send()
    pair.a.protocol.send(b"out")
    pair.a.post_send()
    pair.arrive(pair.a)
    with interrupted("_queue_message"):
        pair.a.protocol.send(b"interrupted")
    call(pair)
    pair.run()
    assert received(pair.b)[:2] == [b"out", b"interrupted"]
    assert received(pair.a) == [b"event", b"on its way"]


@pytest.mark.parametrize(
    "end",
    [
        lambda protocol: protocol.lost("no more"),
        lambda protocol: protocol.disconnected(),
        lambda protocol: protocol.abort(),
    ],
    ids=["lost", "disconnected", "abort"],
)
def test_a_message_is_undelivered_though_its_call_was_interrupted(end: Callable[[Protocol], object]) -> None:
    pair = Pair()
    with interrupted("_queue_message"):
        pair.a.protocol.send(b"interrupted")
    end(pair.a.protocol)
    pair.a.take_event()
    assert isinstance(pair.a.events[-1], Failed)
    assert pair.a.events[-1].undelivered == 1


def test_what_came_in_an_interrupted_call_is_there_when_time_is_up() -> None:
    pair = Pair()
    pair.a.protocol.close(0.0, timeout=5.0)
    pair.b.protocol.send(b"in time")
    pair.b.post_send()
    with interrupted("_arrive"):
        pair.arrive(pair.b)
    pair.a.protocol.timer(5.0)
    first, second = pair.a.protocol.events()
    assert first == MessageReceived(b"in time")
    assert isinstance(second, Failed)


def test_what_came_in_an_interrupted_call_is_looked_at_and_its_receive_is_free() -> None:
    pair = Pair()
    for look in (
        lambda protocol: protocol.peek_event() is not None,
        lambda protocol: protocol.receives_to_post(),
    ):
        pair.b.protocol.send(b"in time")
        pair.b.post_send()
        with interrupted("_arrive"):
            pair.arrive(pair.b)
        assert look(pair.a.protocol)
        pair.run()


def test_receives_that_were_held_are_free_when_nobody_takes_messages_any_more() -> None:
    config = replace(SMALL, receives=16, max_backlog=100)
    pair = Pair(config, config)
    for _ in range(8):
        pair.a.protocol.send(bytes(40))
        pair.a.post_send()
    for _ in range(7):
        pair.arrive(pair.a)
    assert pair.b.protocol.statistics().held > 1
    with interrupted("_arrive"):
        pair.arrive(pair.a)
    pair.b.protocol.discard()
    assert pair.b.protocol.receives_to_post() == 8
    assert pair.b.protocol.statistics().held == 0


@pytest.mark.parametrize("call", ["cancel", "detach"])
def test_a_message_can_be_named_though_its_call_was_interrupted(call: str) -> None:
    pair = Pair()
    handle = pair.a.protocol.next_handle
    message = bytearray(b"interrupted")
    with interrupted("_queue_message"):
        pair.a.protocol.send(message)
    getattr(pair.a.protocol, call)(handle)
    message[:] = b"overwritten"
    pair.run()
    assert received(pair.b) == ([b"interrupted"] if call == "detach" else [])
