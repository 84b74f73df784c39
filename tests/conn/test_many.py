# SPDX-License-Identifier: Apache-2.0
"""Many processes open their devices on one address at the same time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

COUNT = 500 if os.environ.get("RNIC_SOAK") else 60
TESTS = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("local", ["off", "on"])
def test_each_of_many_processes_of_one_address_talks_to_another(local: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "conn.many", str(COUNT)],
        env={**os.environ, "PYTHONPATH": str(TESTS), "RNIC_LOCAL": local},
        stdout=subprocess.PIPE,
        check=True,
    )
    found = json.loads(ran.stdout)
    print(f"{COUNT} processes: up in {found['up']} s, talked in {found['talked']} s, RNIC_LOCAL={local}")
    assert found["failed"] == []
    assert (found["counters"]["local_sent"] > 0) == (local == "on")
