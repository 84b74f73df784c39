# SPDX-License-Identifier: Apache-2.0
"""The protocol for a peer that says no hello: what a disconnect means for messages on their way."""

from __future__ import annotations

from collections import deque

import pytest

from rnic.conn.raw import Raw
from rnic.endpoint import Closed, Config, Failed, LostError, Outgoing, PeerClosed, State


def on_its_way() -> Raw:
    """With one message, handed out and not completed."""
    raw = Raw(Config(raw=True), 4, 4)
    kept: deque[Outgoing] = deque()
    raw.send(b"last word")
    assert raw.next_send(kept)
    return raw


def events(raw: Raw) -> list[object]:
    found: list[object] = []
    while (event := raw.next_event()) is not None:
        found.append(event)
    return found


def test_a_message_whose_acknowledgement_comes_after_the_disconnect_has_arrived() -> None:
    raw = on_its_way()
    raw.disconnected()
    raw.disconnected()  # each turn of a connection tells it
    assert not raw.finished
    raw.sent(1, 0.0)
    assert raw.state is State.CLOSED
    assert [type(event) for event in events(raw)] == [PeerClosed, Closed]


def test_a_message_that_fails_after_the_disconnect_came_too_late() -> None:
    raw = on_its_way()
    raw.disconnected()
    raw.lost("WR_FLUSH_ERR")
    assert isinstance(raw.error, LostError)
    assert "disconnected with messages to it on their way" in str(raw.error)
    assert [type(event) for event in events(raw)] == [Failed]
    assert raw.undelivered == 1


@pytest.mark.parametrize("more", [0, 1])
def test_a_message_that_was_not_sent_comes_too_late(more: int) -> None:
    raw = on_its_way()
    for _ in range(more):
        raw.send(b"more")
    raw.disconnected()
    assert raw.finished is (more > 0)
