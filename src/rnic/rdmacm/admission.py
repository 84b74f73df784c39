# SPDX-License-Identifier: Apache-2.0
"""The limits of a listener: how many connections, how many half-open ones, and for how long."""

from __future__ import annotations

import math
from errno import EINVAL
from typing import TYPE_CHECKING

from rnic.cm.timing import LONGEST, iba_ns
from rnic.errors import VerbsError
from rnic.records import MutableRecord, field

if TYPE_CHECKING:
    from rnic.rdmacm.cm_id import CmId

MAX_HALF_OPEN = 1024
HANDSHAKE_TIMEOUT = iba_ns(LONGEST) / 1e9
_LONGEST = 1e9  # seconds, some 30 years
_HANDSHAKE_NS = 10**9  # a peer that lives answers a REP in this time; who does not can give way to a newcomer


class Admission(MutableRecord):
    """The connections that a listener has accepted, and its limits; protected by the registry's lock.

    A connection is half-open when the program has accepted it and the peer's last message, the RTU, has not
    come. Any host that can send packets can make half-open connections from any address, and never answer. So
    their number is limited, and a new one replaces the one that has waited longest: a live peer needs its
    place only for the time of one answer.
    """

    max_connections: int | None = None
    max_half_open: int = MAX_HALF_OPEN
    handshake_timeout: float = HANDSHAKE_TIMEOUT  # seconds
    # Ids that are not destroyed, and when they came or were accepted.
    _known: dict[CmId, int] = field(default_factory=dict)
    _half_open: dict[CmId, None] = field(default_factory=dict)  # the oldest first

    def __post_init__(self) -> None:
        for name, value in ("max_connections", self.max_connections), ("max_half_open", self.max_half_open):
            if value is not None and value < 1:
                raise VerbsError(EINVAL, f"{name} is {value}; it is 1 at least", "listen")
        if not (0 < self.handshake_timeout <= _LONGEST or self.handshake_timeout == math.inf):
            text = (
                f"handshake_timeout is {self.handshake_timeout}; it is a number of seconds above 0, "
                f"at most {_LONGEST:g}, or math.inf for no limit"
            )
            raise VerbsError(EINVAL, text, "listen")

    def is_full(self, now: int) -> bool:
        """Whether one more would exceed the limits, even if it replaced a half-open connection."""
        if self.max_connections is None or len(self._known) < self.max_connections:
            return False
        oldest = next(iter(self._half_open), None)
        if oldest is None or now - self._known[oldest] < _HANDSHAKE_NS:
            return True
        self._give_up(oldest)
        return False

    def asked(self, one: CmId, now: int) -> None:
        """Count a request; the program's time to accept begins."""
        self._begin(one, now)

    def accepted(self, one: CmId, now: int) -> None:
        """The REP was sent: the peer's time to answer begins, however long the program took to accept."""
        if len(self._half_open) >= self.max_half_open:
            self._give_up(next(iter(self._half_open)))
        self._half_open[one] = None
        self._begin(one, now)

    def settled(self, one: CmId) -> None:
        """The peer has answered, or the handshake has failed."""
        self._half_open.pop(one, None)

    def forget(self, one: CmId) -> None:
        """An id is destroyed, or another one replaces it."""
        self._half_open.pop(one, None)
        self._known.pop(one, None)

    def _begin(self, one: CmId, now: int) -> None:
        self._known[one] = now
        if math.isfinite(self.handshake_timeout):
            one.need_connection("accept").expire_at(now + round(self.handshake_timeout * 1e9))

    def _give_up(self, one: CmId) -> None:
        self.forget(one)
        if one.conversation is not None:
            one.need_connection("accept").give_up()
