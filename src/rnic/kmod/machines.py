# SPDX-License-Identifier: Apache-2.0
"""The machines in which modules are tested: a fresh one each, or one that the user names."""

from __future__ import annotations

from contextlib import ExitStack

from rnic.kmod import place
from rnic.kmod.place import Box, Say
from rnic.vm import Machine


class Machines:
    """Gives a machine that is well; a context manager.

    Without a name it starts its own, which ends with it. A machine that a module has spoilt is replaced
    before it is used again.
    """

    def __init__(self, name: str, say: Say) -> None:
        self._name, self.say = name, say
        self._held = ExitStack()
        self._box: Box | None = None

    def take(self) -> Box:
        """The machine."""
        if self._box is None:
            if self._name:
                self._box = self._held.enter_context(place.ready(self._name, self.say))
            else:
                self.say("starting a machine")
                self._box = Box(self._held.enter_context(Machine(transport="both")))
        return self._box

    def spoil(self) -> None:
        """It cannot be relied on any more."""
        self._box = None
        self._held.close()
        if self._name:
            place.restart(self._name, self.say)

    def __enter__(self) -> Machines:
        return self

    def __exit__(self, *exc: object) -> None:
        self._held.close()
