# SPDX-License-Identifier: Apache-2.0
"""PYTHONPATH=tests python -m chaos --seconds 60 --seed 1"""

from __future__ import annotations

import argparse
import sys

import namespaces
from chaos.director import Plan, run
from chaos.plants import PLANTS


def main() -> None:
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--members", type=int, default=6, help="processes at a time")
    parser.add_argument("--plant", choices=sorted(PLANTS), default="", help="a fault, which has to be found")
    parser.add_argument("--calm", action="store_true", help="traffic alone")
    args = parser.parse_args()
    try:
        namespaces.network_of_our_own()
    except OSError as error:
        print(f"no network namespace of our own: {error}; other programs here are in the way")
    good, report = run(Plan(args.seconds, args.seed, args.members, args.plant, args.calm))
    print(report)
    sys.exit(not good)


if __name__ == "__main__":
    main()
