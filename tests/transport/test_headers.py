# SPDX-License-Identifier: Apache-2.0
"""What headers must say before anything of a packet counts: each fault drops it, and has its counter."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rnic.wire import BTH, Opcode, Transport
from transport.conftest import Start
from transport.datagrams import QKEY
from transport.plain import datagram, sealed

pytestmark = pytest.mark.wire

HARMLESS = b"good"


def with_bth(**fields: Any) -> Callable[[Transport], Transport]:
    return lambda packet: replace(packet, bth=replace(packet.bth, **fields))


@pytest.mark.parametrize(
    ("change", "counter"),
    [
        (with_bth(pkey=0x8001), "drop_bad_pkey"),
        (with_bth(pkey=0), "drop_bad_pkey"),
        (with_bth(tver=1), "drop_bad_version"),
        (with_bth(dqpn=0), "drop_bad_qpn"),
        (lambda packet: with_bth(dqpn=packet.bth.dqpn ^ 1)(packet), "drop_bad_qpn"),
    ],
    ids=["another partition", "no partition", "another version", "queue pair 0", "nobody's number"],
)
def test_a_header_that_cannot_be_is_dropped(
    start: Start, change: Callable[[Transport], Transport], counter: str
) -> None:
    node = start()
    own = node.call("dg_open")
    node.call("plain_open")
    packet = datagram(HARMLESS, own, QKEY, 5)
    node.call("plain_send", sealed(change(packet)))
    node.call("plain_send", sealed(packet))
    assert [got.payload for got in node.call("dg_take")] == [HARMLESS]
    counters = node.call("dg_counters")
    assert (counters[counter], counters["drop_bad_icrc"]) == (1, 0)


def test_limited_members_of_the_partition_are_heard(start: Start) -> None:
    node = start()
    own = node.call("dg_open")
    node.call("plain_open")
    node.call("plain_send", sealed(with_bth(pkey=0x7FFF)(datagram(HARMLESS, own, QKEY, 5))))
    assert [got.payload for got in node.call("dg_take")] == [HARMLESS]


def test_congestion_bits_of_the_header_mean_nothing(start: Start) -> None:
    node = start()
    own = node.call("dg_open")
    node.call("plain_open")
    marked = with_bth(fecn=True, becn=True, resv6=0x3F)(datagram(HARMLESS, own, QKEY, 5))
    node.call("plain_send", sealed(marked))
    assert [got.payload for got in node.call("dg_take")] == [HARMLESS]


@pytest.mark.parametrize("opcode", [0x1F, 0x40, 0xC4, 0xDF])
def test_an_opcode_that_stands_for_nothing_is_dropped(start: Start, opcode: int) -> None:
    node = start()
    own = node.call("dg_open")
    node.call("plain_open")
    good = sealed(datagram(HARMLESS, own, QKEY, 5))
    node.call("plain_send", bytes([opcode]) + good[1:])
    node.call("plain_send", good)
    assert [got.payload for got in node.call("dg_take")] == [HARMLESS]
    assert node.call("dg_counters")["drop_bad_opcode"] == 1


@pytest.mark.parametrize("length", [0, 11, 15, 20])
def test_what_is_too_short_for_its_headers_is_dropped(start: Start, length: int) -> None:
    node = start()
    own = node.call("dg_open")
    node.call("plain_open")
    good = sealed(datagram(HARMLESS, own, QKEY, 5))
    node.call("plain_send", good[:length])
    node.call("plain_send", good)
    assert [got.payload for got in node.call("dg_take")] == [HARMLESS]
    assert node.call("dg_counters")["drop_short"] == (1 if length else 0)


def test_only_its_peers_address_reaches_a_connection(start: Start) -> None:
    a, b = start(), start()
    for node in (a, b):
        node.call("open", "main", 64)
    ours, theirs = a.call("prepare", "main"), b.call("prepare", "main")
    a.call("complete", "main", theirs)
    b.call("complete", "main", ours)
    b.call("plain_open")
    intruder = Transport(BTH(Opcode.RC_SEND_ONLY, dqpn=theirs.qp_num, psn=ours.psn), (), b"intruder")
    b.call("plain_send", sealed(intruder))
    end = time.monotonic() + 60
    while not (dropped := b.call("counters", "main")["drop_bad_source"]):
        assert time.monotonic() < end
    assert dropped == 1
    assert (b.call("state", "main"), b.call("counters", "main")["requests_executed"]) == ("RTS", 0)
