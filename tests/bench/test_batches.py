# SPDX-License-Identifier: Apache-2.0
"""Operations are timed in batches, of which the other end knows each."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

import batches


def test_the_other_end_is_told_of_each_batch_and_of_the_end() -> None:
    told: list[int] = []
    ran: list[int] = []
    found = batches.measure(ran.append, told.append, 0.0)
    assert told == [*ran, 0]
    assert found["operations"] == sum(ran[2:])  # the first ones tell how many make a batch
    assert len(ran) == 5
    assert found["median_us"] > 0


def test_operations_are_timed_one_by_one_and_their_context_switches_counted() -> None:
    ran: list[object] = []

    def run(turns: Iterable[object]) -> None:
        for turn in turns:
            ran.append(turn)
            time.sleep(0.001)

    found = batches.each(run, 0.02, (os.getpid(),))
    assert found["operations"] < len(ran)  # the first ones warm up
    assert 1000 <= found["median_us"] <= found["p99_us"]
    assert found["mean_us"] >= 1000
    assert found["switches"] >= 1
