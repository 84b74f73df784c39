# SPDX-License-Identifier: Apache-2.0
"""Random programs of work requests, by every way that bytes take, held against a model."""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import namespaces
from differential.program import Maker, Program
from differential.shrink import shrink
from differential.ways import Ways


def report(ways: Ways, name: str, seed: int, program: Program, said: str, shorter: bool) -> None:
    print(f"FAILED: seed {seed}, {name}: {said}")
    if shorter:
        least = shrink(program, lambda candidate: bool(ways.explain(name, candidate, seed)))
        print(f"the least of it that fails:\n{least}\n{ways.explain(name, least, seed)}")
    print(f"again: make differential SEED={seed} PROGRAMS=1 WAYS='{name}'", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tests/differential", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the first program")
    parser.add_argument("--programs", type=int, default=100)
    parser.add_argument("--ways", nargs="+", choices=Ways.NAMES, default=Ways.NAMES)
    parser.add_argument("--print", action="store_true", help="the programs, and run none")
    parser.add_argument("--no-shrink", action="store_true", help="leave what fails as it is")
    options = parser.parse_args()
    with suppress(OSError):
        namespaces.network_of_our_own()
    failed, began = 0, time.monotonic()
    with Ways() as ways:
        for seed in range(options.seed, options.seed + options.programs):
            program = Maker(seed).program()
            if options.print:
                print(f"# seed {seed}\n{program}")
                continue
            for name in options.ways:
                said = ways.explain(name, program, seed) if ways.suits(name, program) else ""
                if said:
                    failed += 1
                    report(ways, name, seed, program, said, not options.no_shrink)
    seconds = time.monotonic() - began
    print(f"{options.programs} programs by {len(options.ways)} ways in {seconds:.0f} s: {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
