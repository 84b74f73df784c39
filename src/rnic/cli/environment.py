# SPDX-License-Identifier: Apache-2.0
"""The environment variables that steer rnic: the device's (nic_env.h), and those of commands alone."""

from __future__ import annotations

import os

from rnic._nic import nic
from rnic.records import Record


class Variable(Record):
    """A variable of the environment, in words."""

    name: str
    values: str
    """What it can be."""
    otherwise: str
    """What counts without it."""
    text: str
    """What it is for."""


DEVICE = tuple(Variable(*row) for row in nic.env_rows())
LAB3_SECRET = Variable(
    "RNIC_LAB3_SECRET", "any text", "a random one", "the secret of `rnic lab3`, of which keys are made"
)
HEAP = Variable(
    "RNIC_HEAP",
    "`on` or `off`",
    "`on`",
    "`rnic run`: whether peers on this host can map what a program allocates in whole pages",
)
COMMANDS = (LAB3_SECRET, HEAP)


def is_local() -> bool:
    """Whether peers on this host are reached through shared memory. Raises VerbsError for a wrong value."""
    return nic.env_local()


def shown() -> str:
    """What is set, in a line; of secrets only that they are."""
    device = [f"{one.name}={value}" for one in DEVICE if (value := os.environ.get(one.name))]
    commands = [one.name for one in COMMANDS if os.environ.get(one.name)]
    return ", ".join([*device, *commands])
