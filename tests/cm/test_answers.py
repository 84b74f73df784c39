# SPDX-License-Identifier: Apache-2.0
"""What the manager itself says and counts: each refusal, each datagram that is dropped."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cm.fabric import SERVICE, a_rep, a_req
from cm.test_states import PEER_GUID, PEER_ID, Bench
from rnic.cm import Connection, State
from rnic.wire import (
    Answered,
    Apr,
    CmMessage,
    Drep,
    Dreq,
    Lap,
    Mra,
    Rej,
    RejReason,
    Rep,
    Rtu,
    SidrRep,
    SidrReq,
    SidrStatus,
    TransportType,
    parse_cm,
)

NOBODY = 0x55  # an id that nobody has
TID = 0x1234


def served() -> tuple[Bench, Connection]:
    """One connection, and a listener."""
    bench = Bench()
    conn = bench.established()
    bench.cm.listen(SERVICE, bench.now)
    bench.cm.take_sends()
    bench.cm.take_events()
    return bench, conn


def other_req(**changed: Any) -> CmMessage:
    return replace(a_req(local_comm_id=NOBODY, local_ca_guid=PEER_GUID), **changed)


def refused(reason: RejReason, message: Answered, local: int = 0) -> Rej:
    return Rej(local_comm_id=local, remote_comm_id=NOBODY, message=message, reason=reason)


REFUSALS: dict[str, tuple[CmMessage, CmMessage, str]] = {
    "no listener": (
        other_req(service_id=SERVICE + 1),
        refused(RejReason.INVALID_SERVICE_ID, Answered.REQ),
        "a REQ that is refused: invalid_service_id",
    ),
    "transport": (
        other_req(transport_type=TransportType.RD),
        refused(RejReason.INVALID_TRANSPORT_TYPE, Answered.REQ),
        "a REQ that is refused: invalid_transport_type",
    ),
    "connected already": (
        other_req(local_qpn=0x222),
        refused(RejReason.STALE_CONN, Answered.REQ),
        "a REQ from a queue pair that is connected already",
    ),
    "REP to nobody": (
        Rep(local_comm_id=NOBODY, remote_comm_id=NOBODY + 1),
        refused(RejReason.INVALID_COMM_ID, Answered.REP, NOBODY + 1),
        "a REP for an id that is not known",
    ),
    "DREQ to nobody": (
        Dreq(local_comm_id=NOBODY, remote_comm_id=NOBODY + 1),
        Drep(local_comm_id=NOBODY + 1, remote_comm_id=NOBODY),
        "a DREQ for an id that is not known",
    ),
    "SIDR_REQ": (
        SidrReq(request_id=NOBODY, service_id=SERVICE + 1),
        SidrRep(request_id=NOBODY, service_id=SERVICE + 1, status=SidrStatus.UNSUPPORTED),
        "a SIDR_REQ for a service without a listener",
    ),
}


@pytest.mark.parametrize(("said", "answer", "counted"), REFUSALS.values(), ids=REFUSALS)
def test_a_refusal_names_who_asked_in_its_transaction(
    said: CmMessage, answer: CmMessage, counted: str
) -> None:
    bench, _ = served()
    bench.cm.input(said.to_mad(TID).emit(), "another", bench.now)
    (send,) = bench.cm.take_sends()
    assert (send.dest, send.mad.tid) == ("another", TID)
    assert parse_cm(send.mad) == parse_cm(answer.to_mad(TID))
    assert bench.cm.statistics().dropped == {counted: 1}
    assert bench.cm.take_events() == []


def test_a_req_of_another_version_is_refused_with_its_own_id_and_none_of_ours() -> None:
    bench, _ = served()
    mad = other_req().to_mad(TID).emit()
    bench.cm.input(bytes([*mad[:2], 1, *mad[3:]]), "another", bench.now)
    (send,) = bench.cm.take_sends()
    assert send.mad.tid == TID
    expected = refused(RejReason.INVALID_CLASS_VERSION, Answered.REQ)
    assert parse_cm(send.mad) == parse_cm(expected.to_mad(TID))
    assert bench.cm.statistics().dropped == {"malformed": 1}


def test_a_peer_that_is_called_is_refused_as_unsupported() -> None:
    bench = Bench()
    bench.active()
    bench.cm.take_sends()
    bench.say(other_req(), TID)
    (send,) = bench.cm.take_sends()
    expected = refused(RejReason.UNSUPPORTED, Answered.REQ)
    assert parse_cm(send.mad) == parse_cm(expected.to_mad(TID))
    assert bench.cm.statistics().dropped == {"a REQ that is refused: unsupported": 1}


def test_a_rep_from_a_queue_pair_that_is_connected_is_refused_with_both_ids() -> None:
    bench, conn = served()
    calling = bench.cm.connection("peer")
    calling.send_req(a_req(local_qpn=0x333), bench.now)
    bench.cm.take_sends()
    bench.say(a_rep(local_comm_id=NOBODY, remote_comm_id=calling.local_comm_id, local_ca_guid=PEER_GUID), TID)
    rej, dreq = bench.cm.take_sends()
    expected = refused(RejReason.STALE_CONN, Answered.REP, calling.local_comm_id)
    assert (parse_cm(rej.mad), rej.mad.tid) == (parse_cm(expected.to_mad(TID)), TID)
    assert isinstance(parse_cm(dreq.mad), Dreq)
    assert (conn.state, calling.state) == (State.DREQ_SENT, State.REQ_SENT)
    assert bench.cm.statistics().dropped == {"a REP from a queue pair that is connected already": 1}


NO_ID = "an id that is not known"
DROPS: dict[str, tuple[CmMessage, str]] = {
    "MRA": (Mra(local_comm_id=PEER_ID, message=Answered.REP), f"an MRA for {NO_ID}"),
    "MRA of nothing": (Mra(local_comm_id=PEER_ID, message=3), f"an MRA for {NO_ID}"),
    "REJ": (Rej(local_comm_id=PEER_ID, message=Answered.OTHER), f"a REJ for {NO_ID}"),
    "REJ of the REQ": (Rej(local_comm_id=PEER_ID, message=Answered.REQ), f"a REJ for {NO_ID}"),
    "REJ, timeout": (Rej(local_comm_id=PEER_ID, reason=RejReason.TIMEOUT), f"a REJ for {NO_ID}"),
    "RTU": (Rtu(local_comm_id=PEER_ID), f"RTU: {NO_ID}"),
    "DREP": (Drep(local_comm_id=PEER_ID), f"DREP: {NO_ID}"),
    "LAP": (Lap(local_comm_id=PEER_ID), f"LAP: {NO_ID}"),
    "APR": (Apr(local_comm_id=PEER_ID), f"APR: {NO_ID}"),
    "SIDR_REP": (SidrRep(request_id=NOBODY), f"a SIDR_REP for {NO_ID}"),
}


@pytest.mark.parametrize(("said", "counted"), DROPS.values(), ids=DROPS)
def test_what_answers_nobody_is_counted(said: CmMessage, counted: str) -> None:
    bench, conn = served()
    bench.say(said)
    assert bench.cm.statistics().dropped == {counted: 1}
    assert (bench.cm.take_sends(), bench.cm.take_events()) == ([], [])
    assert conn.state is State.ESTABLISHED


@pytest.mark.parametrize("name", ["local_comm_id", "remote_comm_id"])
@pytest.mark.parametrize("cls", [Mra, Rej, Rtu, Drep, Lap, Apr])
def test_both_ids_must_be_right(cls: type[Any], name: str) -> None:
    bench, conn = served()
    right = {"local_comm_id": PEER_ID, "remote_comm_id": conn.local_comm_id}
    more = {"message": 1} if cls in (Mra, Rej) else {}
    bench.say(cls(**(right | {name: NOBODY}), **more))
    (reason,) = bench.cm.statistics().dropped
    assert NO_ID in reason
    assert conn.state is State.ESTABLISHED


def test_a_rep_to_who_has_not_called_is_no_stale_one() -> None:
    bench, conn = served()
    idle = bench.cm.connection("peer")
    bench.say(a_rep(local_comm_id=NOBODY, remote_comm_id=idle.local_comm_id, local_ca_guid=PEER_GUID))
    (reason,) = bench.cm.statistics().dropped
    assert reason == "REP in IDLE: nothing was sent that could be answered"
    assert (conn.state, bench.cm.take_sends()) == (State.ESTABLISHED, [])


def test_a_rej_for_a_timeout_finds_its_way_by_the_guid_that_it_begins_with() -> None:
    bench = Bench()
    conn = bench.passive()
    guid = PEER_GUID.to_bytes(8, "big")
    rej = Rej(local_comm_id=PEER_ID, reason=RejReason.TIMEOUT, ari=guid + b"more", ari_length=12)
    bench.say(rej)
    assert conn.over


def test_an_answer_for_good_is_said_again_and_counted() -> None:
    bench = Bench()
    conn = bench.passive()
    bench.cm.listen(SERVICE, bench.now)
    conn.send_rej(RejReason.CONSUMER_DEFINED, bench.now)
    (first,) = bench.cm.take_sends()
    bench.say(a_req(local_comm_id=PEER_ID, local_ca_guid=PEER_GUID))
    assert bench.cm.take_sends() == [first]
    assert bench.cm.statistics().dropped == {"a request that was answered for good": 1}
