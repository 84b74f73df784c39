# SPDX-License-Identifier: Apache-2.0
"""Percentiles of the native loops are of the whole time, however many samples there are."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from build import HERE, compiler

# Each sample is its number.
PROGRAM = """
#include "loops.h"
int main(int argc, char **argv) {
    struct samples s = {0};
    uint64_t n = strtoull(argv[argc - 1], NULL, 0);
    for (uint64_t i = 0; i < n; i++)
        samples_add(&s, i);
    printf("%u %.3f %.3f %.3f", s.count, samples_at(&s, 0), samples_at(&s, 0.5), samples_at(&s, 1));
}
"""
ROOM = 1 << 20


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("samples") / "program"
    command = [*compiler(), "-std=gnu11", "-O1", "-D_GNU_SOURCE", f"-I{HERE}", "-xc", "-", "-o", str(made)]
    subprocess.run(command, input=PROGRAM, text=True, check=True)
    return made


@pytest.mark.parametrize(
    ("count", "every"), [(1, 1), (1000, 1), (ROOM, 1), (ROOM + 1, 2), (2 * ROOM + 1, 4), (5 * ROOM, 8)]
)
def test_samples_are_of_the_whole_time(program: Path, count: int, every: int) -> None:
    done = subprocess.run([str(program), str(count)], capture_output=True, text=True, check=True)
    kept, least, middle, most = done.stdout.split()
    last = (count - 1) // every * every
    assert int(kept) == last // every + 1
    assert float(least) == 0
    assert float(most) == pytest.approx(last / 1e3)
    assert float(middle) == pytest.approx(last / 2e3, abs=every / 1e3)
