# SPDX-License-Identifier: Apache-2.0
"""Borders of a communication manager: deadlines that are put off, what is no REQ, ids first said in MRAs."""

from __future__ import annotations

from random import Random
from typing import cast

from cm.fabric import Fabric, a_req, call, confirming, conn_of
from rnic.cm import MAX_CM_RETRIES, RESPONSE_TIMEOUT, EventType, IbCm
from rnic.cm.exchange import Exchange
from rnic.cm.ib_cm import ANSWERS_KEPT
from rnic.wire import CmAttr


class Timed:
    """An exchange of which nothing counts but when it is due."""

    def __init__(self, fired: list[int]) -> None:
        self.at: int | None = None
        self.fired = fired

    def deadline(self) -> int | None:
        return self.at

    def timer(self, now: int) -> None:
        assert self.at is not None
        assert now >= self.at
        self.fired.append(self.at)
        self.at = None


def test_what_is_due_is_done_in_its_order_however_often_it_was_put_off() -> None:
    rng, fired = Random(1), list[int]()
    cm = IbCm(1, 0xA0)
    timed = [Timed(fired) for _ in range(200)]
    for _ in range(5):
        for one in timed:
            one.at = rng.randrange(1 << 40)
            cm.timed(cast(Exchange, one), one.at)
    due = sorted(one.at for one in timed if one.at is not None)
    assert cm.deadline() == due[0]
    cm.timer(due[99])
    assert fired == due[:100]
    cm.timer(1 << 40)
    assert fired == due
    assert cm.deadline() is None


def test_only_a_req_of_another_class_version_is_answered() -> None:
    mad = a_req(local_comm_id=7).to_mad(3).emit()
    wrong_method = bytes([*mad[:3], 0x81, *mad[4:]])
    another_class = bytes([*mad[:1], 0x04, 1, *mad[3:]])
    another_message = bytes([*mad[:2], 1, *mad[3:16], *int(CmAttr.RTU).to_bytes(2, "big"), *mad[18:]])
    for data in (wrong_method, another_class, another_message):
        cm = IbCm(1, 0xA0)
        cm.input(data, "peer", 0)
        assert cm.take_sends() == []
        assert cm.deadline() is None


def test_a_peer_that_has_said_its_id_in_an_mra_is_told_by_that_id() -> None:
    fabric = Fabric()
    server, client = fabric.node("server"), fabric.node("client")
    confirming(client)
    server.on(EventType.REQ_RECEIVED, lambda event, now: conn_of(event).send_mra(20, now))
    server.cm.listen(a_req().service_id, 0)
    conn = call(fabric, client)
    fabric.run(until=fabric.now + 10_000_000)
    assert EventType.MRA_RECEIVED in [event.type for event in client.events]
    (request,) = server.events
    theirs = conn_of(request)
    assert conn.peer_id == theirs.local_comm_id


def test_as_many_answers_are_kept_as_it_is_said() -> None:
    cm = IbCm(1, 0xA0)
    mad = a_req().to_mad(1)
    for n in range(ANSWERS_KEPT + 5):
        cm.remember(f"peer {n}", mad, mad, 0)
    assert len(cm._answers) == ANSWERS_KEPT


def test_an_answer_may_take_as_long_as_the_kernel_lets_it() -> None:
    assert RESPONSE_TIMEOUT == 20  # CMA_CM_RESPONSE_TIMEOUT: 4.096 us * 2**20
    assert MAX_CM_RETRIES == 15  # CMA_MAX_CM_RETRIES
