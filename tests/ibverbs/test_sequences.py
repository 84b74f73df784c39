# SPDX-License-Identifier: Apache-2.0
"""Random sequences of verbs through libibverbs' ABI and through Python: the same results.

With RNIC_SOAK=1 there are more, and the C side is built with AddressSanitizer. RNIC_SEED and RNIC_SEQUENCES
choose others.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ibverbs.programs import DEVICE, OURS, compiled, environment
from ibverbs.sequences.compare import differs
from ibverbs.sequences.player import Player
from ibverbs.sequences.script import Script

pytestmark = pytest.mark.own_way
ROOT = Path(__file__).parents[2]
SOURCE = Path(__file__).parent / "sequences/play.c"
SANITIZED = "build-asan/tests/ibverbs/sequences/play"
SOAK = bool(os.environ.get("RNIC_SOAK"))
FIRST = int(os.environ.get("RNIC_SEED", "1"))
COUNT = int(os.environ.get("RNIC_SEQUENCES", "2000" if SOAK else "12"))
LINES = 40
SECONDS = 3600 if SOAK else 120


def player_in_c(folder: Path) -> Path:
    if not SOAK:
        return compiled(folder / "play", "-std=c11", SOURCE, *OURS)
    subprocess.run(["make", "-s", SANITIZED], cwd=ROOT, check=True)
    return ROOT / SANITIZED


def test_sequences_have_the_same_results(tmp_path: Path) -> None:
    scripts = {seed: list(Script(seed).lines(LINES)) for seed in range(FIRST, FIRST + COUNT)}
    text = "\n".join(line for script in scripts.values() for line in script) + "\n"
    done = subprocess.run(
        [player_in_c(tmp_path), DEVICE],
        input=text,
        env=environment(RNIC_VERBS_DEBUG="0", RNIC_LOCAL="off"),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{done.returncode}\n{done.stdout[-500:]}\n{done.stderr[-4000:]}"
    results = iter(done.stdout.splitlines())
    for seed, script in scripts.items():
        compare(seed, script, [next(results) for _ in script])


def compare(seed: int, script: list[str], results: list[str]) -> None:
    player = Player(DEVICE)
    try:
        for number, (line, c) in enumerate(zip(script[1:], results[1:], strict=True)):
            python = player.play(line)
            before = "\n".join(script[1 : number + 1])
            assert not differs(line, c, python), (
                f"seed {seed}: {line}\n  by C: {c}\n  by Python: {python}\nbefore:\n{before}"
            )
    finally:
        player.close()
