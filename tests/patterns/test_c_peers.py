# SPDX-License-Identifier: Apache-2.0
"""Ends in C, made from docs/patterns alone, and the other ends in Python."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ibverbs.programs import OURS, RDMACM
from ibverbs.programs import compiled as make_program
from rnic.rdmacm import create_id
from ucma.under import HOST, Program, call, needs_libraries

EXAMPLES = Path(__file__).parents[2] / "examples" / "c"

pytestmark = [pytest.mark.own_way, needs_libraries]


def make(name: str, folder: Path) -> Path:
    """A program, compiled with the headers that come with rnic."""
    sources = [EXAMPLES / part for part in (f"{name}.c", "cm.c", "common.c")]
    return make_program(folder / name, "-std=c11", "-Wextra", *sources, *OURS, RDMACM)


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make("ring_writer", tmp_path_factory.mktemp("ring"))


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make("credits_client", tmp_path_factory.mktemp("credits"))


def free_port() -> int:
    with create_id() as probe:
        probe.bind_addr((HOST, 0))
        return probe.get_src_port()


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("nbytes", "count"), [(256, 300), (1 << 12, 2000), (1 << 20, 200)])
@pytest.mark.parametrize("local", ["on", "off"])
def test_a_ring(local: str, nbytes: int, count: int, writer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RNIC_LOCAL", local)
    port = free_port()
    with Program(sys.executable, EXAMPLES / "ring_reader.py", port, nbytes) as reader:
        reader.listens(port)
        assert call(writer, HOST, port, count).startswith(f"{count} records put, slept ")
        assert reader.good() == f"{count} records came, each as it was put\n"


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("receives", "nbytes", "count"), [(3, 64, 200), (16, 4096, 2000), (5, 100, 0)])
@pytest.mark.parametrize("local", ["on", "off"])
def test_credits(
    local: str, receives: int, nbytes: int, count: int, client: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RNIC_LOCAL", local)
    port = free_port()
    with Program(sys.executable, EXAMPLES / "credits_server.py", port, receives, nbytes) as server:
        server.listens(port)
        assert call(client, HOST, port, count) == f"{count} messages came back as they went\n"
        assert server.good() == f"{count} messages sent back\n"
