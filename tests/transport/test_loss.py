# SPDX-License-Identifier: Apache-2.0
"""Reliable means reliable: what comes through a link that loses, repeats and reorders is what was sent, once.

Both ends send through the fault injector, so that requests, responses and acknowledges are hit alike.  The
seeds are fixed, but which packet a random number hits depends on timing: no two runs are the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic

import pytest

from rnic import Counters, Faults, WROpcode
from rnic.testing import Options
from transport.conftest import Record, Start
from transport.joining import join, move, reconnect
from transport.node import Node
from transport.worker import Remote

pytestmark = pytest.mark.roce

MIB = 1 << 20
REGION = 64 * MIB  # memory at each end: more than this goes through it in rounds, with new content each
CHUNK = 256 << 10  # bytes of a request
ATOMICS = 1000
SEED = 20
DROPS = [name for name in Counters.texts() if name.startswith("drop_")]
# The drops that loss, repetition and reordering explain: ghosts of earlier attempts, and a READ or atomic
# that comes again after its responder has forgotten it.  A busy machine adds packets that were forwarded,
# while the members of the port learn of each other, to a process whose queue was full.
EXPLAINED = {"drop_bad_psn", "drop_duplicate", "drop_resources", "drop_slot_full"}


@dataclass(frozen=True)
class Link:
    """How bad, how much of each operation goes over it, and what its user sets."""

    rate: float
    sample: int
    full: int
    timeout: int
    depth: int = 16  # atomics posted at a time
    gives_up: bool = False  # whether RETRY_EXC_ERR is to be expected


# At 20 % one packet in 400,000 is lost eight times in a row, and retry_cnt goes no higher than 7: what the
# user of such a link does is what the test does, connect again and go on from where it was.  Atomics go one
# by one there, since with each that is lost all that follow have to be asked for again.
LINKS = [
    pytest.param(Link(0.01, 64 * MIB, 1024 * MIB, timeout=14), id="1%"),
    pytest.param(Link(0.05, 16 * MIB, 256 * MIB, timeout=13), id="5%"),
    pytest.param(Link(0.20, 16 * MIB, 16 * MIB, timeout=10, depth=1, gives_up=True), id="20%"),
]


def faults(rate: float, seed: int) -> Faults:
    return Faults(seed=seed, loss=rate, reorder=rate, duplicate=rate)


@dataclass
class Ends:
    """Two nodes on a bad link, memory of the same size in each."""

    a: Node
    b: Node
    at_a: Remote
    at_b: Remote
    link: Link
    total: int
    seconds: float = 0.0
    reconnected: int = 0

    def rounds(self) -> range:
        """Seeds of the content, as many as there are regions in the total."""
        return range(max(1, self.total // REGION))

    @property
    def nbytes(self) -> int:
        return min(self.total, REGION)

    def move(self, opcode: WROpcode) -> None:
        """All of a's memory to, or from, b's."""
        done = 0
        while done < self.nbytes:
            done, status, seconds = self.a.call("move", "main", opcode, self.at_b, CHUNK, done)
            self.seconds += seconds
            self.go_on(status)

    def send(self) -> None:
        """All of a's memory into b's, by SENDs; b knows best how much has come."""
        done = 0
        while done < self.nbytes:
            self.b.begin("receive", "main", CHUNK, done)
            assert self.b.result() == "ready"
            _, status, seconds = self.a.call("move", "main", WROpcode.SEND, self.at_b, CHUNK, done)
            self.seconds += seconds
            self.b.tell("stop")
            done = self.b.result()
            self.go_on(status)

    def go_on(self, status: str) -> None:
        if status == "SUCCESS":
            return
        assert status == "RETRY_EXC_ERR"
        assert self.link.gives_up
        self.reconnected += 1
        reconnect(self.a, self.b)

    def late_drops(self) -> set[str]:
        """What packets of a connection that was given up cause while the next one is being made."""
        return {"drop_bad_state"} if self.reconnected else set()


@pytest.fixture(params=LINKS)
def ends(request: pytest.FixtureRequest, start: Start, soak: bool) -> Ends:
    link: Link = request.param
    total = link.full if soak else link.sample
    a, b = start(), start()
    # An atomic that was given up cannot be begun anew: it may have been executed.
    atomics = request.function is test_atomics_are_executed_exactly_once
    timeout = max(link.timeout, 13) if atomics else link.timeout
    at_a, at_b = join(a, b, min(total, REGION), Options(timeout=timeout, retry_cnt=7))
    a.call("faults", "main", faults(link.rate, SEED))
    b.call("faults", "main", faults(link.rate, SEED + 1))
    return Ends(a, b, at_a, at_b, link, total)


def assert_accounted(ends: Ends, record: Record) -> None:
    """The injector has done its work, and every drop has a reason that it explains."""
    a, b = (Counters(node.call("counters", "main")) for node in (ends.a, ends.b))
    for counters in (a, b):
        assert counters.fault_lost > 0
        assert {name for name in DROPS if counters[name]} <= EXPLAINED | ends.late_drops()
        assert counters.tx_errors == 0
    assert a.fault_duplicated + b.fault_duplicated > 0
    assert a.fault_reordered + b.fault_reordered > 0
    assert a.requests_resent > 0
    record(
        seconds=round(ends.seconds, 2),
        mib=ends.total // MIB,
        lost=a.fault_lost + b.fault_lost,
        resent=a.requests_resent,
        timeouts=a.timeouts,
        reconnected=ends.reconnected,
        socket_drops=ends.a.call("udp_drops"),
    )


@pytest.mark.one_in(3)
def test_writes_arrive_as_sent(ends: Ends, record: Record) -> None:
    for seed in ends.rounds():
        sent = ends.a.call("fill", "main", seed)
        ends.move(WROpcode.RDMA_WRITE)
        assert ends.b.call("digest", "main") == sent
    assert_accounted(ends, record)


@pytest.mark.one_in(3)
def test_reads_fetch_what_is_there(ends: Ends, record: Record) -> None:
    for seed in ends.rounds():
        there = ends.b.call("fill", "main", seed)
        ends.move(WROpcode.RDMA_READ)
        assert ends.a.call("digest", "main") == there
    assert_accounted(ends, record)


@pytest.mark.one_in(3)
def test_sends_arrive_once_and_in_order(ends: Ends, record: Record) -> None:
    for seed in ends.rounds():
        sent = ends.a.call("fill", "main", seed)
        ends.send()
        assert ends.b.call("digest", "main") == sent
    assert_accounted(ends, record)


@pytest.mark.one_in(3)
def test_atomics_are_executed_exactly_once(ends: Ends, record: Record) -> None:
    count, began, depth = ATOMICS * (10 if ends.total > REGION else 1), monotonic(), ends.link.depth
    added = ends.a.call("fetch_add", "main", ends.at_b, count, 3, depth)
    assert added == [3 * i for i in range(count)]
    swapped = ends.a.call("swap_chain", "main", ends.at_b, 3 * count, count, depth)
    assert swapped == [3 * count + i for i in range(count)]
    assert ends.b.call("word", "main") == 4 * count
    ends.seconds, ends.total = monotonic() - began, 0
    assert_accounted(ends, record)


def test_every_packet_is_lost_by_the_injector_or_counted_by_its_receiver(start: Start) -> None:
    a, b = start(), start()
    _, at_b = join(a, b, 8 * MIB, Options(timeout=14))
    before = a.call("udp_drops")
    for node, seed in ((a, SEED), (b, SEED + 1)):
        node.call("faults", "main", Faults(seed=seed, loss=0.02, duplicate=0.02))
    sent = a.call("fill", "main", 1)
    move(a, WROpcode.RDMA_WRITE, at_b, CHUNK)
    a.call("zero", "main")
    move(a, WROpcode.RDMA_READ, at_b, CHUNK)
    assert a.call("digest", "main") == sent
    for node in (a, b):
        node.call("close_qp", "main")  # what it still had to send is sent
    ours, theirs = (Counters(node.call("counters", "main")) for node in (a, b))
    left = sum(c.tx_packets - c.fault_lost + c.fault_duplicated for c in (ours, theirs))
    came = sum(c.rx_packets - c.forwarded_out for c in (ours, theirs))
    if a.call("udp_drops") == before:
        assert came == left
    else:
        assert came < left


def test_retries_that_are_used_up_end_in_the_status_that_says_so(start: Start) -> None:
    a, b = start(), start()
    _, at_b = join(a, b, MIB, Options(timeout=8, retry_cnt=3))
    a.call("faults", "main", Faults(seed=SEED, loss=1.0))
    status, words, _ = a.call("one", "main", WROpcode.RDMA_WRITE, at_b)
    assert status == "RETRY_EXC_ERR"
    assert "the peer did not answer, retry_cnt times" in words
    assert a.call("state", "main") == "ERR"
    counters = Counters(a.call("counters", "main"))
    assert counters.timeouts == 4
    assert counters.fault_lost == counters.tx_packets >= 4
    assert b.call("state", "main") == "RTS", "it has seen nothing"
