# SPDX-License-Identifier: Apache-2.0
"""A writer in C, made from docs/patterns/ring.md alone, puts records into the ring of a reader in Python."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ibverbs.programs import OURS, RDMACM
from ibverbs.programs import compiled as make_program
from rnic.rdmacm import create_id
from ucma.under import HOST, Program, call, needs_libraries

EXAMPLES = Path(__file__).parents[2] / "examples" / "c"
PARTS = ["ring_writer.c", "cm.c", "common.c"]

pytestmark = [pytest.mark.own_way, needs_libraries]


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, compiled with the headers that come with rnic."""
    program = tmp_path_factory.mktemp("ring") / "ring_writer"
    sources = [EXAMPLES / part for part in PARTS]
    return make_program(program, "-std=c11", "-Wextra", *sources, *OURS, RDMACM)


@pytest.mark.parametrize(("nbytes", "count"), [(256, 300), (1 << 12, 2000), (1 << 20, 200)])
@pytest.mark.parametrize("local", ["on", "off"])
def test_a_ring(local: str, nbytes: int, count: int, writer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RNIC_LOCAL", local)
    with create_id() as probe:
        probe.bind_addr((HOST, 0))
        port = probe.get_src_port()
    with Program(sys.executable, EXAMPLES / "ring_reader.py", port, nbytes) as reader:
        reader.listens(port)
        assert call(writer, HOST, port, count).startswith(f"{count} records put, slept ")
        assert reader.good() == f"{count} records came, each as it was put\n"
