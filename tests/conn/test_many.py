# SPDX-License-Identifier: Apache-2.0
"""Many processes open their devices on one address at the same time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

COUNT = 500 if os.environ.get("RNIC_SOAK") else 32
TESTS = Path(__file__).resolve().parents[1]


def test_each_of_many_processes_of_one_address_talks_to_another() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "conn.many", str(COUNT)],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        stdout=subprocess.PIPE,
        check=True,
    )
    found, local = json.loads(ran.stdout), os.environ["RNIC_LOCAL"]
    print(f"{COUNT} processes: up in {found['up']} s, talked in {found['talked']} s, RNIC_LOCAL={local}")
    assert found["failed"] == []
    assert (found["counters"]["local_sent"] > 0) == (local == "on")
