# SPDX-License-Identifier: Apache-2.0
"""Messages of the CM that are lost on real sockets: what they were for is done in time, or said to fail."""

from __future__ import annotations

import os

import pytest

from rdmacm.ends import other
from rdmacm.load import Caller, lose, serve
from rnic.rdmacm import EventType, Timing

pytestmark = pytest.mark.roce

SOAK = bool(os.environ.get("RNIC_SOAK"))
COUNT = 2000 if SOAK else 60
SLOTS = 1024
TIMING = Timing(response_timeout=16, max_cm_retries=15, packet_life_time=8)
NEGOTIATED = 16 * 4.096e-6 * (2**16 + 2 * 2**8)  # seconds: a REQ and 15 repetitions
BUSY = 60.0  # for a machine that has other things to do


@pytest.mark.parametrize("loss", [0.2, 0.6])
def test_handshakes_and_releases_end_in_time(loss: float) -> None:
    """At 20 % hardly one of a million handshakes may fail, at 60 % one of some hundred, which says so."""
    with other(serve, SLOTS, loss) as peer:
        caller = Caller(peer.hear(), 32, TIMING)
        caller.may_fail = loss > 0.2
        lose(caller.anchor, loss)
        rate = caller.cycle(COUNT)
        failed = dict(caller.failed)
        print(f"\nloss {loss:.0%}: {COUNT} cycles, {rate:.0f} a second, failed: {failed}")
        print(f"handshake: {caller.slowest:.2f} s at most, {NEGOTIATED:.2f} s negotiated")
        assert caller.slowest < NEGOTIATED + BUSY
        assert sum(failed.values()) < COUNT / 10
        assert set(failed) <= {EventType.UNREACHABLE, EventType.REJECTED}
        lose(caller.anchor, 0)
        caller.close()
        peer.way.send("stop")
        assert peer.hear() == "done"


def test_a_peer_that_hears_nothing_is_unreachable_in_time() -> None:
    with other(serve, SLOTS, 1.0) as peer:
        caller = Caller(peer.hear(), 8, TIMING)
        caller.may_fail = True
        caller.cycle(8)
        assert caller.failed == {EventType.UNREACHABLE: 8}
        assert NEGOTIATED * 0.9 < caller.slowest < NEGOTIATED + BUSY
        caller.close()
        peer.way.send("stop")
        assert peer.hear() == "done"
