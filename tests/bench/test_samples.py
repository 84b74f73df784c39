# SPDX-License-Identifier: Apache-2.0
"""The histogram of the compiled loops says what the one in Python says (tests/cli/test_perf.py)."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest
from build import ROOT, compiler

from rnic.cli.perf.samples import Samples

LOOPS = ROOT / "src/rnic/_nic"
PERCENTS = (0, 0.1, 25, 50, 99, 99.9, 100)
PROGRAM = f"""
#include "samples.h"
#include <stdio.h>
int main(void) {{
    static struct perf_histogram h;
    unsigned long long ns;
    while (scanf("%llu", &ns) == 1)
        perf_sample(&h, ns);
    static const double percents[] = {{{", ".join(map(str, PERCENTS))}}};
    for (unsigned i = 0; i < sizeof percents / sizeof *percents; i++)
        printf("%.1f ", perf_percentile(&h, percents[i]));
    printf("%.0f %.0f %.0f %.0f", (double)h.count, (double)h.min, (double)h.max, h.sum);
}}
"""
DICE = random.Random(1)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("samples") / "program"
    command = [*compiler(), "-std=gnu11", "-O1", "-D_GNU_SOURCE", f"-I{LOOPS}"]
    source = ["-xc", "-", str(LOOPS / "samples.c"), "-o", str(made)]
    subprocess.run([*command, *source], input=PROGRAM, text=True, check=True)
    return made


@pytest.mark.parametrize(
    "times",
    [
        [],
        [7],
        [1 << 50],
        range(1, 101),
        range(100_000),
        [2047, 2048, 2049, 4095, 4096],
        [int(DICE.lognormvariate(7, 2)) for _ in range(10_000)],
    ],
    ids=len,
)
def test_percentiles_are_those_of_python(program: Path, times: list[int]) -> None:
    text = "\n".join(map(str, times))
    done = subprocess.run([str(program)], input=text, capture_output=True, text=True, check=True)
    samples = Samples()
    for ns in times:
        samples.add(ns)
    percentiles = samples.percentiles(PERCENTS) if times else [0.0] * len(PERCENTS)
    expected = [*percentiles, samples.count, samples.min, samples.max, samples.sum]
    assert [float(word) for word in done.stdout.split()] == pytest.approx(expected)
