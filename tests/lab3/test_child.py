# SPDX-License-Identifier: Apache-2.0
"""A student's program and what is around it."""

from __future__ import annotations

from pathlib import Path

from rnic.cli.lab3.child import Child, Surroundings


class Files:
    """A server of device files, which closes that of a dead program when it has been asked a few times."""

    def __init__(self) -> None:
        self.asked, self.pids = 0, set[int]()

    def abandoned(self) -> int:
        return int(self.asked > 3)

    def has_open(self, pid: int) -> bool:
        self.asked += 1
        self.pids.add(pid)
        return self.asked <= 3


def test_what_a_dead_program_abandoned_counts_when_its_file_is_closed(tmp_path: Path) -> None:
    program, files = tmp_path / "sender", Files()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    around = Surroundings({}, files.abandoned, files.has_open)
    with Child(program, [], 60, late=False, is_iwarp=True, around=around) as child:
        child.wait(60)
        assert child.has_abandoned
    assert len(files.pids) == 1
