# SPDX-License-Identifier: Apache-2.0
"""Service id resolution between two managers (IBA 12.11)."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest

from cm.fabric import MS, SERVICE, Fabric, Faults, Node
from rnic.cm import Event, EventType, IbCm, Resolution
from rnic.errors import VerbsError
from rnic.wire import SidrRep, SidrReq, SidrStatus, parse_cm

WAIT = 10 * MS


def resolution_of(event: Event) -> Resolution:
    assert isinstance(event.source, Resolution)
    return event.source


def answering(event: Event, now: int) -> None:
    rep = SidrRep(qpn=0x44, qkey=0x01234567, private_data=b"hi")
    resolution_of(event).send_sidr_rep(rep, now, attr_mod=3)


def two(
    faults: Faults | None = None, answer: Callable[[Event, int], None] | None = answering
) -> tuple[Fabric, Node, Node]:
    fabric = Fabric(faults)
    server, client = fabric.node("server"), fabric.node("client")
    server.cm.listen(SERVICE, 0)
    if answer is not None:
        server.on(EventType.SIDR_REQ_RECEIVED, answer)
    return fabric, server, client


def ask(client: Node, retries: int = 3) -> Resolution:
    one = client.cm.resolution("server")
    one.send_sidr_req(SidrReq(service_id=SERVICE, private_data=b"who"), 0, timeout_ns=WAIT, retries=retries)
    return one


def verdict(client: Node) -> SidrRep:
    message = client.events[-1].message
    assert isinstance(message, SidrRep)
    return message


def test_a_service_is_resolved_to_queue_pair_and_key() -> None:
    fabric, server, client = two()
    one = ask(client)
    fabric.run()
    assert fabric.names() == ["SIDR_REQ", "SIDR_REP"]
    assert (client.seen(), server.seen()) == (["SIDR_REP_RECEIVED"], ["SIDR_REQ_RECEIVED"])
    rep = verdict(client)
    assert (rep.status, rep.qpn, rep.qkey, rep.service_id) == (0, 0x44, 0x01234567, SERVICE)
    assert (rep.request_id, rep.private_data[:3]) == (one.local_comm_id, b"hi\0")
    assert client.events[0].attr_mod == 3
    assert one.over
    assert len(client.cm.table) == len(server.cm.table) == 0


@pytest.mark.parametrize("lose", [("SIDR_REQ", 0), ("SIDR_REP", 0)])
def test_what_is_lost_is_asked_again_and_the_program_hears_it_once(lose: tuple[str, int]) -> None:
    fabric, server, client = two(Faults(lose=frozenset([lose])))
    ask(client)
    fabric.run()
    assert client.seen() == ["SIDR_REP_RECEIVED"]
    assert server.seen() == ["SIDR_REQ_RECEIVED"]
    assert fabric.names().count("SIDR_REQ") == 2


def test_a_question_that_comes_again_while_the_program_thinks_is_dropped() -> None:
    fabric, server, client = two(answer=None)
    ask(client)
    fabric.run(until=2 * WAIT + MS)
    assert server.seen() == ["SIDR_REQ_RECEIVED"]
    answering(server.events[0], fabric.now)
    fabric.run()
    assert client.seen() == ["SIDR_REP_RECEIVED"]


def test_nobody_answers_a_question() -> None:
    fabric, _, client = two(Faults(loss=1.0))
    one = ask(client)
    fabric.run()
    assert client.seen() == ["SIDR_REQ_ERROR"]
    assert (fabric.now, fabric.names()) == (4 * WAIT, ["SIDR_REQ"] * 4)
    assert one.over


def test_a_service_that_nobody_serves_is_unsupported() -> None:
    fabric = Fabric()
    fabric.node("server")
    client = fabric.node("client")
    ask(client)
    fabric.run()
    assert verdict(client).status == SidrStatus.UNSUPPORTED


def test_a_program_that_lets_go_refuses() -> None:
    fabric, server, client = two(answer=lambda event, now: event.source.close(now))
    ask(client)
    fabric.run()
    assert verdict(client).status == SidrStatus.REJECT
    assert len(server.cm.table) == 0


def test_a_question_that_is_given_up_hears_nothing_more() -> None:
    fabric, _, client = two()
    ask(client).close(0)
    fabric.run()
    assert client.events == []
    assert client.cm.statistics().dropped == {"a SIDR_REP for an id that is not known": 1}


def test_questions_of_two_clients_with_the_same_id_are_two() -> None:
    cm = IbCm(1, 0xA0)
    cm.listen(SERVICE, 0)
    for source in ("one", "two"):
        cm.input(SidrReq(request_id=7, service_id=SERVICE).to_mad(1).emit(), source, 0)
    events = cm.take_events()
    assert len(events) == 2
    for event in events:
        answering(event, 0)
    assert [(send.dest, parse_cm(send.mad).emit()[:4]) for send in cm.take_sends()] == [
        ("one", bytes([0, 0, 0, 7])),
        ("two", bytes([0, 0, 0, 7])),
    ]


def test_a_second_question_is_refused_and_changes_nothing() -> None:
    fabric, _, client = two(Faults(loss=1.0))
    one = ask(client)
    with pytest.raises(VerbsError, match="SIDR_REQ_SENT"):
        one.send_sidr_req(SidrReq(), 0, timeout_ns=1, retries=0)
    fabric.run()
    assert fabric.now == 4 * WAIT


def test_a_connection_is_no_resolution() -> None:
    fabric, _, client = two()
    conn = client.cm.connection("server")
    client.cm.input(SidrRep(request_id=conn.local_comm_id).to_mad(1).emit(), "server", 0)
    fabric.settle()
    assert client.events == []


def test_nothing_is_kept_of_questions_that_are_over() -> None:
    """Though the times until which they would have waited lie ahead."""
    _, _, client = two()
    asked = [ask(client) for _ in range(1000)]
    kept = [weakref.ref(one) for one in asked]
    for one in asked:
        one.close(0)
    client.cm.take_sends()
    client.cm.take_events()
    client.cm.take_met()
    del one, asked
    gc.collect()
    assert sum(one() is not None for one in kept) < 100
