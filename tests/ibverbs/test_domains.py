# SPDX-License-Identifier: Apache-2.0
"""Parent domains of libibverbs, with allocators of the program's own."""

from __future__ import annotations

from pathlib import Path

from ibverbs.programs import DEVICE, OURS, compiled, run


def test_objects_lie_where_the_program_puts_them(tmp_path: Path) -> None:
    program = compiled(tmp_path / "allocators", Path(__file__).parent / "programs/allocators.c", *OURS)
    said = [line for line in run(program, DEVICE).text.splitlines() if not line.startswith("rnic:")]
    assert said == ["3 made", "3 taken back"]
