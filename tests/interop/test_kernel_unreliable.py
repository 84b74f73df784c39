# SPDX-License-Identifier: Apache-2.0
"""Unreliable services between rnic and the kernel while packets are lost and doubled, in both roles.

No model says what arrives.  What does is whole, in order and in the oldest receive; the rest leaves no trace.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from link import Link
from test_kernel_differential import ends, server  # noqa: F401 - a fixture

from differential.program import GRH, IN, OUT, SIZE, Connect, Program

if TYPE_CHECKING:
    from differential.end import Request
    from differential.model import Completion

pytestmark = pytest.mark.interop

RECEIVES, MESSAGES = 60, 24
SLOT = 1088  # of a receive, and of a message
LAST = 0xFFFFFFFF  # the immediate of what comes when nothing is lost any more
FAULTS = {"loss": 0.05, "duplicate": 0.03}


@pytest.fixture
def heals(link: Link) -> Iterator[None]:
    yield
    healed(link)


def suffers(link: Link, who: str) -> None:
    link.rnic_faults(seed=7, **FAULTS) if who == "rnic" else link.kernel_faults(**FAULTS)


def healed(link: Link) -> None:
    link.rnic_faults()
    link.kernel_faults()


def message(number: int, length: int, imm: int) -> Request:
    from differential.end import Request

    flags = ("SIGNALED",)
    return Request(number, "SEND_WITH_IMM", ((OUT + number * SLOT, length),), flags, imm=imm)


def received_to_last(sender: Any, receiver: Any) -> list[Completion]:
    """What arrives up to LAST, which is sent again if it does not: the guest may still ask for an address."""
    found: list[Completion] = []
    for _ in range(12):
        sender.post_send([message(MESSAGES, 8, LAST)], True)
        assert [wc.status for wc in sender.collect(1, 0)[0]] == ["SUCCESS"]
        limit = time.monotonic() + 5
        while time.monotonic() < limit:
            found += receiver.collect(0, 1, 1)[1]
            if any(wc.imm_data == LAST for wc in found):
                return found
    pytest.fail(f"{LAST} does not arrive, only {found}")


@pytest.mark.usefixtures("heals")
@pytest.mark.combinations(
    8, family=["ipv4", "ipv6"], service=["UC", "UD"], suffer=["rnic", "kernel"], seed=range(1, 5)
)
def test_what_arrives_is_whole_and_in_order(
    link: Link,
    server: tuple[str, int],  # noqa: F811
    family: str,
    service: str,
    suffer: str,
    seed: int,
) -> None:
    rng = random.Random(seed)
    program = Program(service, (True, True), False)
    with ends(link, server, family, program) as both:
        how = Connect(mtu=256 if service == "UC" else 1024)
        addresses = [end.address() for end in both]
        for i, end in enumerate(both):
            end.connect(addresses[1 - i], how, 5 + i, 6 - i, "WRITE")
        suffers(link, suffer)  # not before: the kernel gives up an address that it cannot resolve in time
        sender, receiver = both if suffer == "rnic" else reversed(both)
        head = GRH if service == "UD" else 0
        slots = [IN + i * SLOT for i in range(RECEIVES)]
        receiver.post_recv([(i, ((at, SLOT),), False) for i, at in enumerate(slots)])
        sent, before = sender.memory(), receiver.memory()
        lengths = [rng.choice([0, 1, 255, 256, 257, 1000, rng.randint(0, 1024)]) for _ in range(MESSAGES)]
        sender.post_send([message(i, n, i) for i, n in enumerate(lengths)], True)
        done, _ = sender.collect(MESSAGES, 0)
        assert [(wc.wr_id, wc.status) for wc in done] == [(i, "SUCCESS") for i in range(MESSAGES)]
        healed(link)
        found, after = received_to_last(sender, receiver), receiver.memory()

    lengths.append(8)
    assert [(wc.wr_id, wc.status) for wc in found] == [(i, "SUCCESS") for i in range(len(found))]
    numbers = [MESSAGES if wc.imm_data == LAST else wc.imm_data or 0 for wc in found]
    assert numbers == sorted(numbers)
    for number, wc, slot in zip(numbers, found, slots, strict=False):
        assert wc.byte_len == head + lengths[number]
        at = slot + head
        there = OUT + number * SLOT
        assert after[at : at + lengths[number]] == sent[there : there + lengths[number]]
    touched = slots[len(found)]  # by messages that have not come to their end
    assert after[:IN] == before[:IN]
    assert after[touched + SLOT : SIZE] == before[touched + SLOT : SIZE]
