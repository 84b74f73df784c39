# SPDX-License-Identifier: Apache-2.0
"""What a round measures, its tables and targets: connections, programs, verbs on one host, network path."""

from __future__ import annotations

import applications
import connections
import idle
import network
import samehost
from stats import Rounds
from tables import Measurements, Setting, Table, Target

PATHS = (connections, applications, idle, samehost, network)


def measurements(s: Setting) -> Measurements:
    """All of them, in the order of a round."""
    return {key: run for path in PATHS for key, run in path.measurements(s).items()}


def tables() -> list[Table]:
    return [table for path in PATHS for table in path.tables()]


def targets() -> list[Target]:
    return [target for path in PATHS for target in path.targets()]


def notes(rounds: Rounds) -> dict[str, list[str]]:
    return network.notes(rounds)
