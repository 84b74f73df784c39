# SPDX-License-Identifier: Apache-2.0
"""Operations are timed in batches, of which the other end knows each."""

from __future__ import annotations

import batches


def test_the_other_end_is_told_of_each_batch_and_of_the_end() -> None:
    told: list[int] = []
    ran: list[int] = []
    found = batches.measure(ran.append, told.append, 0.0)
    assert told == [*ran, 0]
    assert found["operations"] == sum(ran[2:])  # the first ones tell how many make a batch
    assert len(ran) == 5
    assert found["median_us"] > 0
