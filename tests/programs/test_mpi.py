# SPDX-License-Identifier: Apache-2.0
"""Open MPI over UCX over rnic, by mpi4py: mpirun's processes inherit what `rnic run` has set."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ibverbs.programs import DEVICE
from packages import need, need_package
from ucma.under import Program, needs_libraries

pytestmark = [needs_libraries, pytest.mark.own_way]

PYTHON = "/usr/bin/python3"
PROGRAM = Path(__file__).with_name("mpi_ranks.py")
UCX_ALONE = "--mca pml ucx --mca osc ucx --mca btl ^openib,tcp,vader --mca opal_common_ucx_devices any"


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("processes", "transport"), [(2, "rc_v"), (4, "ud_v"), (4, "rc_v")], ids=["2 by RC", "4 by UD", "4 by RC"]
)
def test_ranks(processes: int, transport: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need("mpirun", "openmpi-bin")
    if subprocess.run([PYTHON, "-c", "import mpi4py"], capture_output=True, check=False).returncode:
        need_package("python3-mpi4py")
    environment = {
        "UCX_TLS": transport,
        "UCX_NET_DEVICES": f"{DEVICE}:1",
        "UCX_LOG_LEVEL": "info",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    words = f"mpirun --oversubscribe -n {processes} {UCX_ALONE}".split()
    with Program(*words, PYTHON, PROGRAM, within=folder) as ranks:
        said = ranks.good()
    assert said.count("all is well") == processes
    assert f"tag({transport}erbs/{DEVICE}:1" in said  # what UCX says of the way that it has chosen
