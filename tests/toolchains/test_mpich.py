# SPDX-License-Identifier: Apache-2.0
"""MPICH, as Debian has it beside Open MPI: over UCX over rnic."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ibverbs.programs import DEVICE
from packages import need
from ucma.under import Program, needs_libraries

pytestmark = [needs_libraries, pytest.mark.own_way]

SOURCE = Path(__file__).with_name("ranks.c")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need("mpirun.mpich", "mpich")
    need("mpicc.mpich", "libmpich-dev")
    program = tmp_path_factory.mktemp("mpich") / "ranks"
    words: list[str | Path] = ["mpicc.mpich", "-O1", "-Wall", "-Werror", SOURCE, "-o", program]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return program


@pytest.mark.parametrize(("processes", "transport"), [(2, "rc_v"), (4, "ud_v")], ids=["2 by RC", "4 by UD"])
def test_ranks(
    ranks: Path, processes: int, transport: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {"UCX_TLS": transport, "UCX_NET_DEVICES": f"{DEVICE}:1", "UCX_LOG_LEVEL": "info"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with Program("mpirun.mpich", "-n", processes, ranks, within=folder) as run:
        said = run.good()
    assert said.count("all is well") == processes
    assert f"tag({transport}erbs/{DEVICE}" in said  # what UCX says of the way that it has chosen
