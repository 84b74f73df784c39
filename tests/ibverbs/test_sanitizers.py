# SPDX-License-Identifier: Apache-2.0
"""Programs that are compiled with a sanitizer, under `rnic run`."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from ibverbs.programs import OURS, compiled
from rnic.programs import elf
from rnic.programs.surroundings import HEAP, PRELOAD
from rnic.testing.pytest import Run

LEAKS = 99
OPTIONS = {"ASAN_OPTIONS": f"exitcode={LEAKS}"}


def sanitized(folder: Path) -> Path:
    """A program with AddressSanitizer, where that works."""
    source, probe = folder / "probe.c", folder / "probe"
    source.write_text("int main(void) { return 0; }\n")
    for words in (["cc", "-fsanitize=address", str(source), "-o", str(probe)], [str(probe)]):
        if not shutil.which(words[0]) or subprocess.run(words, capture_output=True, check=False).returncode:
            pytest.skip("needs a C compiler whose AddressSanitizer works here")
    own = Path(__file__).parent / "programs/sanitized.c"
    return compiled(folder / "sanitized", "-g", "-fsanitize=address", own, *OURS)


def test_leaks_are_found_and_no_others(rnic_run: Run, tmp_path: Path) -> None:
    program = sanitized(tmp_path)
    good = rnic_run(program, "leaks", env=OPTIONS)
    tidy = rnic_run(program, fail="reg_mr=ENOMEM", env=OPTIONS)
    leaks = rnic_run(program, "leaks", fail="reg_mr=ENOMEM", env=OPTIONS)
    assert good.wait() == 0, good.output
    assert tidy.wait() == 1, tidy.output
    assert leaks.wait() == LEAKS, leaks.output
    assert "LeakSanitizer: detected memory leaks" in leaks.output


def test_a_sanitizer_that_is_linked_statically_allocates_itself(rnic_run: Run, tmp_path: Path) -> None:
    source = tmp_path / "main.c"
    source.write_text(
        "#include <stdio.h>\n#include <stdlib.h>\nvoid __asan_init(void);\nvoid __asan_init(void) {}\n"
        'int main(void) { puts(getenv("LD_PRELOAD")), puts(getenv("ASAN_OPTIONS")); }\n'
    )
    program = rnic_run(compiled(tmp_path / "main", "-rdynamic", source), env={"ASAN_OPTIONS": "exitcode=9"})
    assert program.wait() == 0
    preloads, options = program.output.splitlines()
    assert PRELOAD in preloads
    assert HEAP not in preloads
    assert options == "exitcode=9:verify_asan_link_order=0"


def test_broken_files_are_not_followed(tmp_path: Path) -> None:
    program, bad = Path("/proc/self/exe"), tmp_path / "bad"
    good = program.read_bytes()
    assert elf.read(program)
    table = int.from_bytes(good[32:40], "little")
    for at in range(table, table + 4 * 56, 4):
        bad.write_bytes(good[:at] + b"\xff" * 16 + good[at + 16 : 8192])
        assert elf.read(bad)
