# SPDX-License-Identifier: Apache-2.0
"""What a peer asks for is within reason."""

from __future__ import annotations

import pytest

from rnic.cm import LONGEST_ACK, ack_timeout, iba_ns, peer_ack_timeout


@pytest.mark.parametrize(("asked", "own", "code"), [(14, 18, 14), (20, 18, 20), (22, 18, 21), (31, 18, 21)])
def test_a_peers_ack_timeout_is_cut(asked: int, own: int, code: int) -> None:
    assert peer_ack_timeout(asked, own) == code


def test_no_timeout_at_all_is_replaced_by_our_own() -> None:
    assert peer_ack_timeout(0, 17) == 17
    assert peer_ack_timeout(0, ack_timeout(31, 16)) == LONGEST_ACK


def test_no_time_of_a_peer_is_longer_than_69_s() -> None:
    assert iba_ns(24) == iba_ns(31) == 4096 << 24


@pytest.mark.parametrize(
    ("delay", "life", "code"),
    [(15, 16, 17), (16, 16, 18), (17, 16, 18), (18, 16, 19), (19, 16, 19), (0, 0, 2), (0, 1, 2), (31, 16, 31),
     (15, 31, 31), (30, 29, 31), (31, 31, 31)],
)  # fmt: skip
def test_an_ack_timeout_is_the_way_twice_and_the_delay(delay: int, life: int, code: int) -> None:
    """As the kernel rounds the sum: one more than the larger code when the smaller is at least half of it."""
    assert ack_timeout(delay, life) == code
