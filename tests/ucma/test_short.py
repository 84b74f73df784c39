# SPDX-License-Identifier: Apache-2.0
"""Many short connections of RDMA-CM, which end beside traffic."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from busy import busy_processors
from ucma.under import HOST, Program, compiled, needs_libraries

pytestmark = needs_libraries

PARTS = 20
ROUNDS = 500 if os.environ.get("RNIC_SOAK") else 100
_ports = count(23600 + os.getpid() % 1000)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checks each message and WRITE, and that no last completion is missing; see there."""
    return compiled("short", tmp_path_factory.mktemp("short"), "-lrdmacm", "-libverbs")


@pytest.fixture
def busy() -> Iterator[None]:
    with busy_processors():
        yield


@pytest.mark.own_way
@pytest.mark.one_in(PARTS)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("local", ["on", "off"])
def test_what_has_arrived_is_told_by_both_ends(
    part: int,  # noqa: ARG001 - of the rounds
    local: str,
    program: Path,
    busy: None,  # noqa: ARG001 - it is meanwhile
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RNIC_LOCAL", local)
    port = next(_ports)
    with Program(program, "server", port, ROUNDS) as server:
        server.listens(port)
        with Program(program, "client", HOST, port, ROUNDS) as client:
            assert client.good() == f"{ROUNDS} rounds\n"
        assert server.good() == f"{ROUNDS} rounds\n"
