# SPDX-License-Identifier: Apache-2.0
"""The fixture that runs the command `rnic`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from cli.commands import Command


@pytest.fixture
def rnic() -> Iterator[Callable[..., Command]]:
    """Starts a command; whatever still runs when the test ends is killed."""
    running: list[Command] = []

    def start(*args: object, terminal: bool = False, anew: bool = False) -> Command:
        running.append(Command(*args, terminal=terminal, anew=anew))
        return running[-1]

    yield start
    for command in running:
        command.close()
