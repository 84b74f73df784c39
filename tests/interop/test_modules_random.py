# SPDX-License-Identifier: Apache-2.0
"""Random programs for the modules rw and blockdev, held against a model; many with RNIC_SOAK=1."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from memory import Memory, losing, one_device
from module_programs import DiskProgram, RwModel, rw_program, same
from modules import Box
from program import noise
from sampling import soak

from waiting import until

pytestmark = pytest.mark.interop

SIZE = 2 << 20  # of the memory
PATIENCE = 600.0  # seconds that nothing takes
GUEST = Path(__file__).with_name("guest_modules.py").resolve()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    metafunc.parametrize("seed", range(40) if soak(metafunc.config) else [0])


@pytest.fixture(scope="module", params=["rxe", "siw"])
def kind(request: pytest.FixtureRequest, box: Box) -> Iterator[str]:
    """The guest's device, which is the only one meanwhile."""
    with one_device(box, request.param):
        yield request.param


@pytest.fixture
def memory(kind: str, seed: int, tmp_path: Path) -> Iterator[Memory]:
    """A peer whose memory has known bytes."""
    with Memory(tmp_path / "memory", SIZE, kind, "--bind=::") as memory:
        memory.write(0, noise(SIZE, seed))
        yield memory


def carry_out(box: Box, what: str, program: list[Any], tmp_path: Path, seed: int) -> list[Any]:
    """In the guest, which loses packets with every third seed."""
    source = tmp_path / "program"
    source.write_text(json.dumps(program))
    with losing(box, 1) if seed % 3 == 2 else nullcontext():
        return list(json.loads(box.machine.check(f"python3 '{GUEST}' {what} <'{source}'", PATIENCE)))


def address(box: Box, seed: int) -> str:
    """Of the peer, in both families by turns."""
    return box.machine.host_ip6 if seed % 2 else box.machine.host_ip


def test_rw(box: Box, memory: Memory, kind: str, seed: int, tmp_path: Path) -> None:
    """Each command ends as it must, and then the memory is as it must be."""
    commands, model = rw_program(seed, SIZE, 40), RwModel(memory.bytes, kind)
    with box.loaded("rw", addr=address(box, seed), port=memory.port, timeout=300):
        found = carry_out(box, "rw", commands, tmp_path, seed)
    for command, (errno, text) in zip(commands, found, strict=True):
        assert same(expected := model.results(command), (errno, text)), (command, expected, errno, text)
    expected = model.memory[: model.unknown]
    # Over iWARP a WRITE ends before it arrives.
    until(lambda: memory.bytes[: model.unknown] == expected, "the memory as it must be")


def test_disk(box: Box, memory: Memory, seed: int, tmp_path: Path) -> None:
    """What each process reads is what it has written, and so is the memory."""
    program = DiskProgram(seed, memory.bytes, count=15)
    with box.loaded("blockdev", addr=address(box, seed), port=memory.port, timeout=300):
        found = carry_out(box, "disk", program.processes, tmp_path, seed)
    assert found == program.seen
    assert memory.bytes == program.memory
