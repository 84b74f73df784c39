# SPDX-License-Identifier: Apache-2.0
"""Runs rdma-core's own Python tests under `rnic run`, prints what they were, and compares that with what is known
(tests/conformance/rdma_core.toml): `make pyverbs`, `make pyverbs ARGS="test_mr test_odp"`.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import namespaces
from conformance.table import Known, known
from rdma_core.suite import MissingError, Result, modules, run, tests, version

DEVICE = "roce_lo"
OUTCOMES = ("passed", "failed", "skipped")


def difference(result: Result, rows: list[Known]) -> str:
    """What is not as it is known; "": it is."""
    row = next((one for one in rows if one.is_about(result.module, result.name)), None)
    may_be = {"passed"} if row is None else row.outcomes
    return "" if result.outcome in may_be else f"{result.outcome}, not {' or '.join(sorted(may_be))}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="make pyverbs", description=__doc__)
    parser.add_argument("modules", nargs="*", help="of the tests; without any all are run")
    chosen = parser.parse_args().modules
    try:
        said, folder = version(), tests(download=True)
    except MissingError as missing:
        sys.exit(f"make pyverbs: this machine lacks {missing}")
    with suppress(OSError):
        namespaces.network_of_our_own()
    rows, results = known(), []
    print(f"rdma-core {said}, device {DEVICE}\n{'':28}" + "".join(f"{one:>8}" for one in OUTCOMES))
    for module in chosen or modules(folder):
        found = run(folder, module, DEVICE)
        results += found
        counts = [sum(one.outcome == outcome for one in found) for outcome in OUTCOMES]
        print(f"{module:28}" + "".join(f"{n:8}" for n in counts), flush=True)
    return report(results, rows)


def report(results: list[Result], rows: list[Known]) -> int:
    """Print each test that was not passed, and what is not as it is known."""
    total = [sum(one.outcome == outcome for one in results) for outcome in OUTCOMES]
    print(f"{'all':28}" + "".join(f"{n:8}" for n in total))
    for one in results:
        if one.outcome != "passed":
            print(f"{one.outcome}: {one.module}.{one.name}: {' '.join(one.why.split())}")
    wrong = [(one, said) for one in results if (said := difference(one, rows))]
    for one, said in wrong:
        print(f"NOT AS IN tests/conformance/rdma_core.toml: {one.module}.{one.name}: {said}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
