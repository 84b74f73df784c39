# SPDX-License-Identifier: Apache-2.0
"""Runs rdma-core's own Python tests under `rnic run`, prints what they were, and compares that with what is
known (tests/conformance/rdma_core.toml): `make pyverbs`, `make pyverbs ARGS="test_mr test_odp"`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import namespaces
import rnic
from conformance.table import Known, known
from rdma_core.suite import MissingError, Result, difference, modules, run, tests, version

NEEDS_CABLE = (
    "test_rdmacm"  # an id that is bound to the loopback has no device, which pyverbs does not expect
)
LOOPBACK = "roce_lo"
OUTCOMES = ("passed", "failed", "skipped")


def device_of_our_own() -> str:
    """One end of a cable in a network namespace of our own, or else the loopback's device."""
    try:
        namespaces.network_of_our_own()
        ip("link", "add", "rnica", "type", "veth", "peer", "name", "rnicb")
        for name in ("rnica", "rnicb"):
            ip("link", "set", name, "addrgenmode", "none")
            ip("link", "set", name, "up")
        ip("addr", "add", "10.97.0.1/24", "dev", "rnica")
    except (OSError, subprocess.CalledProcessError):
        return LOOPBACK
    with rnic.open_device("roce_rnica") as ctx:
        while ctx.query_port(1).state is not rnic.PortState.ACTIVE:  # a new cable takes the kernel a moment
            time.sleep(0.01)
    return "roce_rnica"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make pyverbs", description=__doc__)
    parser.add_argument("modules", nargs="*", help="of the tests; without any all are run")
    chosen = parser.parse_args().modules
    try:
        said, folder = version(), tests(download=True)
    except MissingError as missing:
        sys.exit(f"make pyverbs: this machine lacks {missing}")
    device = device_of_our_own()
    rows, results = known(), []
    print(f"rdma-core {said}, device {device}\n{'':28}" + "".join(f"{one:>8}" for one in OUTCOMES))
    for module in chosen or modules(folder):
        if module == NEEDS_CABLE and device == LOOPBACK:
            print(f"{module}: did not run: it takes root, and a network namespace, to make a network device")
            continue
        found = run(folder, module, device)
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
