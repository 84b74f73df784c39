# SPDX-License-Identifier: Apache-2.0
"""Random programs of two ends, each by some ways.

python tests/namespaces.py env PYTHONPATH=tests python -m conn.differential --seed 1 --programs 100
"""

from __future__ import annotations

import argparse

from conn.differential.runner import explain, steps, ways, workers


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the first program")
    parser.add_argument("--programs", type=int, default=100)
    parser.add_argument("--ways", type=int, default=3, help="by which each program goes")
    parser.add_argument("--version", type=int, default=2, help="the oldest that an end speaks; 0: no hello")
    options = parser.parse_args()
    runs = done = wrong = 0
    with workers() as made:
        for seed in range(options.seed, options.seed + options.programs):
            chosen = ways(seed, options.ways, options.version)
            said = explain(made, chosen, seed)
            runs, done, wrong = runs + len(chosen), done + len(chosen) * steps(seed), wrong + bool(said)
            if said:
                print(said, flush=True)
    print(f"{runs} runs of {options.programs} programs, {done} steps, {wrong} programs differ")
    return bool(wrong)


if __name__ == "__main__":
    raise SystemExit(main())
