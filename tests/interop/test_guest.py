# SPDX-License-Identifier: Apache-2.0
"""What is known of a guest that was lost: the tests run again, and somebody will want to know why."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rnic.vm import Machine
from waiting import until

pytestmark = pytest.mark.interop


@pytest.fixture
def guest() -> Iterator[Machine]:
    with Machine(accelerator="tcg") as guest:
        yield guest


def test_one_that_dies_says_why(guest: Machine) -> None:
    assert not guest.lost()
    guest.spawn("echo c >/proc/sysrq-trigger")
    assert "sysrq triggered crash" in until(guest.lost, "the guest's end")


def test_one_that_hangs_says_where(guest: Machine) -> None:
    guest.interrupt()
    assert "RIP:" in guest.lost()
