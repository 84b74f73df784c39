# SPDX-License-Identifier: Apache-2.0
"""Communication ids: whose they are, and when they come back."""

from __future__ import annotations

from collections.abc import Hashable
from random import Random

import pytest

from cm.fabric import MS, SERVICE, a_rep, a_req, call, server_and_client
from rnic.cm import INDEX_BITS, SLOT_BITS, ConnTable, IbCm, Resolution, State, receiver_id, slot_of
from rnic.errors import VerbsError
from rnic.wire import MESSAGES, Drep, Rej, Req, SidrRep, SidrReq, WireError


def some(cm: IbCm, count: int, peer: Hashable = "peer") -> list[Resolution]:
    return [cm.resolution(peer) for _ in range(count)]


@pytest.mark.parametrize("slot", [0, 1, 511, 1023])
def test_an_id_carries_its_slot_in_the_upper_bits(slot: int) -> None:
    cm = IbCm(slot, 1)
    ids = [one.local_comm_id for one in some(cm, 100)]
    assert {slot_of(found) for found in ids} == {slot}
    assert {found >> 22 for found in ids} == {slot}
    assert len(set(ids)) == 100
    assert 0 not in ids
    assert (SLOT_BITS, INDEX_BITS) == (10, 22)


def test_a_slot_has_ten_bits() -> None:
    with pytest.raises(WireError, match="slot"):
        IbCm(1024, 1)


def test_ids_of_two_managers_with_one_slot_differ_in_their_order() -> None:
    assert IbCm(1, 1).resolution("x").local_comm_id != IbCm(1, 1).resolution("x").local_comm_id


class Ones(Random):
    """Where every bit is drawn as 1."""

    def getrandbits(self, k: int, /) -> int:
        return (1 << k) - 1


def test_a_transaction_id_is_a_number_of_the_manager_and_the_id_of_the_exchange() -> None:
    cm = IbCm(5, 1, rng=Ones())
    calls = [cm.connection("peer"), cm.connection("peer")]
    for conn in calls:
        conn.send_req(a_req(), 0)
    one = cm.resolution("peer")
    one.send_sidr_req(SidrReq(), 0, timeout_ns=1)
    ids = [exchange.local_comm_id for exchange in (*calls, one)]
    assert [send.mad.tid for send in cm.take_sends()] == [0xFFFFFFFF << 32 | number for number in ids]


def test_the_index_of_an_id_is_all_of_its_bits() -> None:
    """The counter is at its end, and goes on from there; the mask is all ones."""
    table = IbCm(5, 1, rng=Ones()).table
    index = (1 << INDEX_BITS) - 1
    assert [table.allocate() for _ in range(3)] == [5 << INDEX_BITS | index ^ n for n in range(3)]


def test_an_id_of_no_bits_is_passed_over() -> None:
    table = IbCm(0, 1, rng=Ones()).table
    table._counter = (1 << INDEX_BITS) - 2
    assert table.allocate() == (1 << INDEX_BITS) - 1


def test_who_calls_a_service_is_known_until_the_last_of_them_has_an_answer() -> None:
    cm = IbCm(5, 1)
    first, second, third = (cm.connection("peer") for _ in range(3))
    for conn in (first, second, third):
        conn.send_req(a_req(), 0)
    assert cm.table.is_calling(SERVICE, "peer")
    assert not cm.table.is_calling(SERVICE, "another")
    assert not cm.table.is_calling(SERVICE + 1, "peer")
    for conn in (second, first):
        conn.close(0)
        assert cm.table.is_calling(SERVICE, "peer")
    rep = a_rep(local_comm_id=7, remote_comm_id=third.local_comm_id)
    cm.input(rep.to_mad(1).emit(), "peer", 0)
    assert third.state is State.REP_RCVD
    assert not cm.table.is_calling(SERVICE, "peer")


def test_an_id_comes_back_after_all_others() -> None:
    cm = IbCm(3, 1, rng=Random(3))
    ids = set()
    for _ in range(5000):
        one = cm.resolution("peer")
        ids.add(one.local_comm_id)
        one.close(0)
    assert len(ids) == 5000
    assert len(cm.table) == 0


def test_ids_in_use_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rnic.cm.conn_table.INDEX_BITS", 2)
    table = ConnTable(0, Random(0).getrandbits)
    table._counter %= 4
    table._mask %= 4
    cm = IbCm(0, 1)
    cm.table = table
    taken = some(cm, 3)
    assert {one.local_comm_id for one in taken} == {1, 2, 3}
    with pytest.raises(VerbsError, match="in use"):
        cm.resolution("peer")
    taken[1].close(0)
    assert cm.resolution("peer").local_comm_id == taken[1].local_comm_id


def test_an_id_in_timewait_is_not_given_out() -> None:
    fabric, server, client = server_and_client()
    conn = call(fabric, client)
    fabric.run(until=MS)
    conn.send_dreq(fabric.now)
    fabric.run(until=fabric.now + MS // 2)
    assert conn.state is State.TIMEWAIT
    client.cm.table._counter = (client.cm.table._counter - 1) % (1 << INDEX_BITS)  # the same would be next
    assert client.cm.table.allocate() != conn.local_comm_id
    fabric.run()
    assert len(client.cm.table) == len(server.cm.table) == 0


def test_the_receivers_id_is_found_in_every_message() -> None:
    assert receiver_id(Req(local_comm_id=1)) is None
    assert receiver_id(SidrReq(request_id=1)) is None
    assert receiver_id(SidrRep(request_id=7)) == 7
    assert receiver_id(Drep(local_comm_id=1, remote_comm_id=7)) == 7
    assert receiver_id(Rej(remote_comm_id=0)) == 0
    for cls in MESSAGES.values():
        receiver_id(cls())


def test_nothing_is_left_of_a_thousand_connections() -> None:
    fabric, server, client = server_and_client()
    for number in range(1000):
        call(fabric, client, local_qpn=number + 2)
        fabric.settle()
    server.answers = {kind: answer for kind, answer in server.answers.items() if kind.name == "DREQ_RECEIVED"}
    fabric.run()
    for node in (server, client):
        table = node.cm.table
        assert not table._by_local
        assert not table._by_remote
        assert not table._by_qpn
        assert not table._calling
        assert node.cm.deadline() is None
