# SPDX-License-Identifier: Apache-2.0
"""Many processes have one address at the same time: what becomes of one is no matter of the others."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from time import monotonic

import pytest

from rnic import Faults, WROpcode
from rnic.testing import Options
from transport.conftest import Record, Start
from transport.joining import join, move
from transport.node import Node
from transport.worker import Remote

KIB = 1 << 10
HALF = 256 * KIB  # bytes of one WRITE and one READ of the load
NOBODY = 65534
# Those that live must not give up on a machine with other work: 1.1 s, eight times.  A request to the dead is
# given up after eight times 34 ms.
LASTING, SHORT = Options(timeout=18), Options(timeout=13, retry_cnt=7)


class Couple:
    """Two nodes, of which a writes to b and reads back, on and on."""

    def __init__(self, start: Start, options: Options) -> None:
        self.a, self.b = start(), start()
        _, self.at_b = join(self.a, self.b, 2 * HALF, options)

    def begin(self) -> None:
        self.a.begin("pump", "main", self.at_b)

    def running(self) -> None:
        assert self.a.result() == "running"

    def end(self) -> dict[str, object]:
        self.a.tell("stop")
        return self.outcome()

    def outcome(self) -> dict[str, object]:
        found: dict[str, object] = self.a.result()
        return found


@pytest.mark.wire
def test_eight_processes_of_one_address_survive_that_one_is_killed_and_one_is_stopped(
    start: Start, record: Record
) -> None:
    doomed, frozen, *survivors = [
        Couple(start, options) for options in (SHORT, SHORT, LASTING, LASTING)
    ]  # four couples, eight processes
    for couple in (doomed, frozen, *survivors):
        couple.begin()
    for couple in (doomed, frozen, *survivors):
        couple.running()

    killed_at = monotonic()
    doomed.b.kill()
    ended = doomed.outcome()
    to_notice_kill = monotonic() - killed_at
    assert ended["status"] == "RETRY_EXC_ERR"
    assert "is the peer's process alive" in str(ended["why"])
    assert doomed.a.call("state", "main") == "ERR"

    stopped_at = monotonic()
    frozen.b.signal(signal.SIGSTOP)
    ended = frozen.outcome()
    to_notice_stop = monotonic() - stopped_at
    assert ended["status"] == "RETRY_EXC_ERR"

    began = monotonic()
    new = Couple(start, LASTING)  # while one member of the port is dead and one does not answer
    new.begin()
    new.running()
    to_join = monotonic() - began

    outcomes = [couple.end() for couple in (*survivors, new)]
    assert all(outcome["status"] == "SUCCESS" for outcome in outcomes), outcomes
    assert all(int(str(outcome["rounds"])) > 0 for outcome in outcomes)

    frozen.b.signal(signal.SIGCONT)
    assert frozen.b.call("state", "main") == "RTS", "it cannot know yet"
    status, _, _ = frozen.b.call("one", "main", WROpcode.RDMA_WRITE, (0, 0))
    assert status == "RETRY_EXC_ERR", "its peer's queue pair is in the error state"
    frozen.b.call("close", "main")
    frozen.a.call("close", "main")
    _, at_b = join(frozen.a, frozen.b, HALF, LASTING)
    sent = frozen.a.call("fill", "main", 1)
    move(frozen.a, WROpcode.RDMA_WRITE, at_b, 64 * KIB)
    assert frozen.b.call("digest", "main") == sent

    record(
        seconds_until_peer_of_killed_has_its_completion=round(to_notice_kill, 3),
        seconds_until_peer_of_stopped_has_its_completion=round(to_notice_stop, 3),
        seconds_until_two_new_processes_have_moved_data=round(to_join, 3),
        seconds_of_the_survivors_longest_write_and_read=round(max(_longest(o) for o in outcomes[:-1]), 3),
        rounds_of_survivors=[outcome["rounds"] for outcome in outcomes],
    )


def _longest(outcome: dict[str, object]) -> float:
    return float(str(outcome["longest"]))


def test_the_other_members_go_on_within_a_moment_when_one_is_killed(start: Start, record: Record) -> None:
    """Sockets change their places when one goes: packets are steered wrong until that is noticed."""
    nodes = [Couple(start, LASTING) for _ in range(2)]
    bystander = start()
    bystander.call("open", "main", 4096)
    for couple in nodes:
        couple.begin()
        couple.running()
    bystander.kill()
    began, pauses = monotonic(), []
    for couple in nodes:
        outcome = couple.end()
        assert outcome["status"] == "SUCCESS"
        pauses.append(_longest(outcome))
    record(longest_write_and_read=round(max(pauses), 3), seconds=round(monotonic() - began, 3))


@pytest.mark.wire
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("opcode", [WROpcode.RDMA_WRITE, WROpcode.RDMA_READ])
def test_a_second_user_works_on_the_same_address_by_forwarding(start: Start, opcode: WROpcode) -> None:
    owner, other = start(), start(uid=NOBODY)
    at_owner, at_other = join(owner, other, HALF, LASTING)
    for node, remote, peer in ((owner, at_other, other), (other, at_owner, owner)):
        source, target = (node, peer) if opcode == WROpcode.RDMA_WRITE else (peer, node)
        target.call("zero", "main")
        content = source.call("fill", "main", 5)
        move(node, opcode, remote, 64 * KIB)
        assert target.call("digest", "main") == content
    assert owner.call("counters", "main")["forwarded_out"] > 0
    assert other.call("counters", "main")["forwarded_in"] > 0


@pytest.mark.wire
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_mark_of_congestion_arrives_by_forwarding_though_the_owner_takes_none(start: Start) -> None:
    owner, a, b = start(), start(uid=NOBODY), start(uid=NOBODY)
    owner.call("open", "main", 4096, congestion_control=False)
    _, at_b = join(a, b, HALF, LASTING, congestion_control=True)
    a.call("faults", "main", Faults(mark=1.0))
    move(a, WROpcode.RDMA_WRITE, at_b, 64 * KIB)
    sender, receiver = a.call("counters", "main"), b.call("counters", "main")
    assert receiver["forwarded_in"] > 0
    assert 0 < receiver["ecn_marked"] <= sender["fault_marked"]
    assert sender["cnp_handled"] > 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_the_header_of_a_datagram_arrives_by_forwarding(start: Start, address: str) -> None:
    owner, a, b = start(), start(uid=NOBODY), start(uid=NOBODY)
    owner.call("open", "main", 4096)
    qpn = b.call("dg_open", address=address)
    a.call("dg_open", address=address)
    grh = {"traffic_class": 0x60, "hop_limit": 33}
    until = monotonic() + 60
    while monotonic() < until:
        assert a.call("dg_send", address, qpn, b"seen?", **grh) == "SUCCESS"
        (found,) = b.call("dg_take")
        if (found.route.hop_limit, found.route.traffic_class) == (33, 0x60):
            return
    raise AssertionError(found)


@pytest.mark.roce
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_the_second_user_takes_the_port_over_when_its_owner_is_killed(start: Start, record: Record) -> None:
    owner = start()
    owner.call("open", "main", 4096)
    a, b = start(uid=NOBODY), start(uid=NOBODY)
    _, at_b = join(a, b, 2 * HALF, LASTING)
    a.begin("pump", "main", at_b)
    assert a.result() == "running"
    began = monotonic()
    owner.kill()
    a.tell("stop")
    outcome = a.result()
    assert outcome["status"] == "SUCCESS"
    sent = a.call("fill", "main", 1)
    move(a, WROpcode.RDMA_WRITE, at_b, 64 * KIB)
    assert b.call("digest", "main") == sent
    record(seconds_until_data_flowed_again=round(monotonic() - began, 3), longest=_longest(outcome))


def test_slot_and_port_are_free_at_once_when_a_parent_is_killed_and_its_forked_child_lives(
    start: Start, private_namespace: str, record: Record
) -> None:
    parent, witness = start(netns=private_namespace), start(netns=private_namespace)
    parent.call("open", "main", 4096)
    assert witness.call("held_by_rnic"), "the witness sees nothing where something is"
    child = parent.call("fork")
    try:
        parent.kill()
        began = monotonic()
        assert witness.call("held_by_rnic") == []
        witness.call("open", "main", 4096)
        record(seconds_to_look_and_to_open=round(monotonic() - began, 3))
        assert Path(f"/proc/{child}/stat").read_text().split(")")[1].split()[0] in "SR", "the child lives"
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_forked_child_disturbs_nobody(start: Start) -> None:
    a, b = start(), start()
    at_a, at_b = join(a, b, HALF, LASTING)
    children = [a.call("fork"), b.call("fork")]
    try:
        assert_moves(a, b, at_b)
        assert_moves(b, a, at_a)
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
    assert_moves(a, b, at_b)


def assert_moves(a: Node, b: Node, at_b: Remote) -> None:
    sent = a.call("fill", "main", 3)
    move(a, WROpcode.RDMA_WRITE, at_b, 64 * KIB)
    assert b.call("digest", "main") == sent


@pytest.mark.roce
def test_processes_come_and_are_killed_again_and_again_beside_one_that_stays(start: Start) -> None:
    steady = start()
    for i in range(4):
        passing = start()
        at_passing, at_steady = join(passing, steady, HALF, SHORT, name=f"{i}")
        for a, b, remote in ((passing, steady, at_steady), (steady, passing, at_passing)):
            sent = a.call("fill", f"{i}", i)
            move(a, WROpcode.RDMA_WRITE, remote, 64 * KIB, f"{i}")
            assert b.call("digest", f"{i}") == sent
        passing.kill()
    for i in range(4):
        status, _, _ = steady.call("one", f"{i}", WROpcode.RDMA_WRITE, (0, 0))
        assert status == "RETRY_EXC_ERR"
