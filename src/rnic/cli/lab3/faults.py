# SPDX-License-Identifier: Apache-2.0
"""What can go wrong in lab 3, each with an exit code of its own."""

from __future__ import annotations

from enum import IntEnum

from rnic.cli.params import Failure


class Code(IntEnum):
    """Exit codes of `rnic lab3 sender` and `rnic lab3 receiver --once`; docs/lab3.md lists them."""

    FAILED = 1
    CONNECT = 3
    LOST = 4
    SILENT = 5
    PROTOCOL = 6
    HASH = 7
    REFUSED = 8


class Fault(Failure):
    """The transfer cannot go on."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.exit_code = int(code)  # type: ignore[misc] # its class has one for all
