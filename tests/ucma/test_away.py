# SPDX-License-Identifier: Apache-2.0
"""What a program's process may write to a line: bytes from outside, which end one connection at most."""

from __future__ import annotations

import socket
import struct
from typing import cast

import pytest

from rnic import StreamAttr, StreamEnd, StreamEvent
from rnic.rdmacm.iwcm.away import AwayQP
from rnic.rdmacm.iwcm.manager import IwService

EVENT = struct.Struct("=IBBBBi")  # struct rnic_stream_event


class Service:
    """Stands in for the service, and keeps what it is told."""

    def __init__(self) -> None:
        self.ends: list[StreamEvent] = []

    def watch(self, _who: object, _events: int) -> None:
        """Nothing: the test calls ready()."""

    def unwatch(self, _who: object) -> None:
        """Likewise."""

    def ended(self, event: StreamEvent) -> None:
        """Keep it."""
        self.ends.append(event)


@pytest.mark.parametrize(
    ("said", "end"),
    [
        (EVENT.pack(7, StreamEnd.TERMINATED, 1, 2, 3, 0), StreamEnd.TERMINATED),
        (b"", StreamEnd.CLOSED),
        (b"\x01", StreamEnd.CLOSED),
        (EVENT.pack(7, max(StreamEnd) + 1, 1, 2, 3, 0), StreamEnd.CLOSED),
        (EVENT.pack(7, 255, 255, 255, 255, -1), StreamEnd.CLOSED),
    ],
    ids=["an event", "nothing", "a part", "no end", "nonsense"],
)
def test_whatever_a_program_says_ends_its_connection(said: bytes, end: StreamEnd) -> None:
    service = Service()
    ours, peer = socket.socketpair()
    away = AwayQP(cast("IwService", service), [], 7)
    with ours, peer:
        away.attach_stream(ours, StreamAttr(initiator=True))
        assert away._stream is not None
        line = away._stream[1]
        with line:
            if said:
                line.send(said)
        away.ready(0)
    assert [(one.qp_num, one.end) for one in service.ends] == [(7, end)]
    assert away.sock is None
