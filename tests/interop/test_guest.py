# SPDX-License-Identifier: Apache-2.0
"""What is known of a guest that was lost: the tests run again, and somebody will want to know why."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from lab.guest import Guest

from waiting import until

pytestmark = pytest.mark.interop


@pytest.fixture
def guest() -> Iterator[Guest]:
    with Guest() as guest:
        yield guest


def test_one_that_dies_says_why(guest: Guest) -> None:
    assert not guest.lost()
    guest.spawn("echo c >/proc/sysrq-trigger")
    assert "sysrq triggered crash" in until(guest.lost, "the guest's end")


def test_one_that_hangs_says_where(guest: Guest) -> None:
    guest.interrupt()
    assert "RIP:" in guest.lost()
