# SPDX-License-Identifier: Apache-2.0
"""The extended queue pair of libibverbs: bytes come in every way that it has, in one chain."""

from __future__ import annotations

from pathlib import Path

from ibverbs.programs import DEVICE, OURS, compiled, run


def test_bytes_of_every_kind_in_one_chain(tmp_path: Path) -> None:
    program = compiled(tmp_path / "builder", Path(__file__).parent / "programs/builder.c", *OURS)
    assert run(program, DEVICE).text.splitlines() == [
        "rnic: ibv_wr_complete: send flags 0x10 are not supported (Invalid argument)",
        "rnic: ibv_wr_complete: more bytes inline than max_inline_data (Invalid argument)",
        "rnic: ibv_wr_complete: more scatter/gather elements than max_send_sge (Invalid argument)",
        "copied",
        "inline, without a key",
        "by its key",
        "inline once more",
        "copied from two places",
    ]
