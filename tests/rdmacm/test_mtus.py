# SPDX-License-Identifier: Apache-2.0
"""Two ends of a cable whose network devices have different MTUs: the connection has the smaller path MTU."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from rdmacm.mortal import End, Mortal, Wire, cable, end, mortal
from rnic import WROpcode
from rnic.rdmacm import EventType

pytestmark = [pytest.mark.skipif(os.geteuid() != 0, reason="needs root"), pytest.mark.roce]


@pytest.fixture(params=[(9000, 1500), (1500, 9000)], ids=["calls from 9000", "calls from 1500"])
def wire(request: pytest.FixtureRequest) -> Iterator[Wire]:
    with cable(*request.param) as found:
        yield found


def test_the_smaller_one_is_agreed_upon_and_data_passes_both_ways(wire: Wire) -> None:
    with mortal(netns=wire.netns) as peer, end() as me:
        me.ask(peer.do("listen", wire.there), wire.there)
        peer.do("take")
        peer.do("accept")
        me.expect(EventType.ESTABLISHED)
        peer.do("expect", EventType.ESTABLISHED)
        assert me.path_mtu() == peer.do("path_mtu") == "MTU_1024"
        writes_arrive(me, peer)


def writes_arrive(me: End, peer: Mortal) -> None:
    """Pieces of many packets; the data of one that is too large for either device would be lost."""
    mine, theirs = me.register(), peer.do("register")
    me.begin(WROpcode.RDMA_WRITE, theirs)
    assert all(me.rest())
    peer.do("begin", WROpcode.RDMA_WRITE, mine)
    assert all(peer.do("rest"))
