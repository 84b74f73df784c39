# SPDX-License-Identifier: Apache-2.0
"""An id that was destroyed: its calls say so, and make nothing that nobody would destroy."""

from __future__ import annotations

import pytest

import rnic
from rdmacm.ends import FAST, expect, joined, listening, resolve
from rnic import QPState
from rnic.errors import VerbsError
from rnic.rdmacm import CmId, EventChannel, EventType, PortSpace, Timing, create_id
from rnic.rdmacm.ibcm.ports import Ports
from rnic.rdmacm.sockaddr import parse
from waiting import until

REPEATING = Timing(response_timeout=16, max_cm_retries=15, packet_life_time=8)  # every 270 ms, for 4 s


def repeated(client: CmId) -> None:
    """Its request has come again."""
    before = client.statistics().resent
    until(lambda: client.statistics().resent > before, "the request is repeated")


def test_a_destroyed_id_makes_no_queue_pair() -> None:
    with joined() as pair:
        pair.client.destroy()
        with pytest.raises(VerbsError, match="was destroyed"):
            pair.client.create_qp()
        assert pair.client.qp is None


def test_a_destroyed_id_tells_no_attributes() -> None:
    with joined() as pair:
        pair.client.destroy()
        with pytest.raises(VerbsError, match="was destroyed"):
            pair.client.init_qp_attr(QPState.INIT)


@pytest.mark.roce
@pytest.mark.parametrize("ps", [PortSpace.TCP, PortSpace.UDP])
def test_a_request_outlives_its_listener(ps: PortSpace) -> None:
    """The peer repeats it, and has the answer when it comes; nobody else is let in."""
    with EventChannel() as theirs, listening(theirs, ps=ps) as listener, EventChannel() as ours:
        there = ("127.0.0.1", listener.get_src_port())
        with create_id(ours, ps, timing=REPEATING) as client, create_id(ours, ps, timing=FAST) as late:
            for one in (client, late):
                resolve(one, there)
                one.create_qp()
            client.connect()
            with expect(theirs, EventType.CONNECT_REQUEST).id as server:
                listener.destroy()
                repeated(client)
                late.connect()
                assert expect(ours, EventType.REJECTED, EventType.UNREACHABLE).id is late
                server.create_qp()
                server.accept()
                assert expect(ours, EventType.ESTABLISHED).id is client


@pytest.mark.roce
def test_the_port_of_a_listener_with_an_open_request_can_be_bound_again() -> None:
    """And the request finds its process yet, whoever has the port now."""
    with (
        rnic.open_device("roce_lo") as another_process,
        EventChannel() as theirs,
        listening(theirs) as listener,
        EventChannel() as ours,
    ):
        there = ("127.0.0.1", listener.get_src_port())
        with create_id(ours, timing=REPEATING) as client, create_id(theirs) as again:
            resolve(client, there)
            client.create_qp()
            client.connect()
            with expect(theirs, EventType.CONNECT_REQUEST).id as server:
                listener.destroy()
                again.bind_addr(there)
                again.destroy()
                repeated(client)
                server.create_qp()
                server.accept()
                expect(ours, EventType.ESTABLISHED)
        Ports(another_process).claim(again, parse(there, "test"), there[1]).close()
