# SPDX-License-Identifier: Apache-2.0
"""A message that was announced: at the end that has it, and at the end that gets it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from rnic.enums import AccessFlags
from rnic.patterns.rendezvous.layout import Held, Layout, hold_blank

if TYPE_CHECKING:
    from rnic.patterns.rendezvous.cache import RegistrationCache
    from rnic.patterns.rendezvous.layout import Remote

__all__ = ["FILL", "HAND_OUT", "TAKE_IN", "How", "In", "Out"]

How = Literal["read", "write"]
FILL = AccessFlags.LOCAL_WRITE
HAND_OUT, TAKE_IN = AccessFlags.REMOTE_READ, AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE


class Out:
    """The message that this end has announced, until the peer has it."""

    def __init__(self, how: How, source: Layout, probe: bool) -> None:
        self.how, self.source, self.probe = how, source, probe
        self.number: int | None = None  # the peer has not heard of it
        self.invited = False  # it goes where the peer has said ahead, without an announcement
        self.held: Held | None = None  # which the peer READs
        self.cleared: list[Remote] | None = None  # where it may be written
        self.written = False

    def step_aside(self) -> int:
        """Its call is over: a copy stays, of which the peer gets the message. Returns its bytes."""
        if self.held is not None:
            self.held.move_away(blank=False)
            total, self.source = self.source.total, Layout((), "send()", False)
            return total
        self.source = Layout(self.source.join(b""), "send()", False)
        return self.source.total


class In:
    """The message that the peer has announced, until it is here."""

    def __init__(self, number: int, total: int, pieces: list[Remote] | None, probe: bool) -> None:
        self.number, self.total, self.probe = number, total, probe
        self.pieces = pieces  # where to READ it; None: the peer WRITEs it
        self.data: bytes | None = None  # where it lands, or
        self.target: Layout | None = None  # where it lands
        self.held: Held | None = None  # registrations of that
        self.spoiled = False  # the peer WRITEs elsewhere, as the call that gave the buffer is over
        self.withdrawn = False  # and was told not to do it, if it has not begun

    def land(self, target: Layout | None, cache: RegistrationCache, access: AccessFlags) -> Held:
        """Register the place where it lands."""
        if target is None:
            self.data, self.held = hold_blank(self.total, cache, access)
        else:
            self.held = target.hold(cache, access, access == TAKE_IN)
        self.target = target
        return self.held

    def spoil(self) -> None:
        """The call that gave the buffer is over: what the peer WRITEs is lost, and it has to do it again."""
        if self.target is not None and self.held is not None:
            self.held.move_away(blank=True)
            self.target, self.spoiled = None, True

    def release(self) -> None:
        """Nobody fills the place any more."""
        if self.held is not None:
            self.held.release()
        self.held = self.target = self.data = None
        self.spoiled = False
