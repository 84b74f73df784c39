# SPDX-License-Identifier: Apache-2.0
"""Rates and their numbers."""

from __future__ import annotations

import ctypes

from ibverbs.programs import LIBRARY


def test_a_rate_that_came_with_lanes_of_14_gbps_is_no_multiple() -> None:
    ours = ctypes.CDLL(str(LIBRARY))
    assert [ours.ibv_rate_to_mult(rate) for rate in (2, 10, 11, 18, 19)] == [1, 48, -1, -1, 11]
    assert [ours.mult_to_ibv_rate(mult) for mult in (1, 48, 6, 10, 40)] == [2, 10, 0, 0, 0]
