# SPDX-License-Identifier: Apache-2.0
"""What a process of libibverbs has of another process' context."""

from __future__ import annotations

from pathlib import Path

from ibverbs.programs import DEVICE, OURS, compiled, run


def test_device_memory_is_shared_and_ordinary_memory_is_not(tmp_path: Path) -> None:
    program = compiled(tmp_path / "import", Path(__file__).parent / "programs/import.c", *OURS)
    said = run(program, DEVICE, RNIC_VERBS_DEBUG="1").text
    assert said.splitlines()[-1] == "12345678"
    assert "ordinary memory: Operation not supported" in said
    assert "only memory of alloc_mr (but what others may only read), device memory" in said
