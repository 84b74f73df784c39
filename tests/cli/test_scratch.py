# SPDX-License-Identifier: Apache-2.0
"""Commands where no directory can be written: a container with a file system for reading alone."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack

import pytest
from rich.console import Console

from rnic.cli import demo
from rnic.cli.doctor import command, pair


@pytest.fixture(autouse=True)
def _nowhere_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setenv("RNIC_LOCAL", "on")
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_get_default_tempdir", nowhere)


def test_the_doctor_tries_shared_memory_all_the_same() -> None:
    (_, operations), _ = pair.attempt(command.doctor_peer.name or "")
    assert operations > 0


def test_the_demo_makes_its_file_in_memory() -> None:
    with ExitStack() as stack:
        file = demo.make_file(stack, 100_000, Console(quiet=True))
        assert len(file.read()) == 100_000
