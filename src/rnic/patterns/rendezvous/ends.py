# SPDX-License-Identifier: Apache-2.0
"""What an end for a thread and one for tasks have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from rnic.enums import AccessFlags, QPState, WCStatus
from rnic.patterns.chain import QueueError
from rnic.patterns.credits.ends import Ends as ChannelEnds
from rnic.patterns.cursor import LiarError
from rnic.patterns.rendezvous import words
from rnic.patterns.rendezvous.cache import RegistrationCache
from rnic.patterns.rendezvous.measure import Measuring

if TYPE_CHECKING:
    from rnic import PD
    from rnic.patterns.credits import AsyncChannel, Channel
    from rnic.patterns.rendezvous.base import RendezvousStatistics
    from rnic.patterns.rendezvous.sides import How

__all__ = ["LONGEST", "Ends"]

LONGEST = 1 << 30
_NEEDED = AccessFlags.REMOTE_READ | AccessFlags.REMOTE_WRITE
_NOT_THEIRS = frozenset({WCStatus.REM_ACCESS_ERR, WCStatus.REM_INV_REQ_ERR})


def blamed(error: QueueError) -> Exception:
    """A READ or WRITE has failed: the peer has lied if it is about keys or lengths that it gave."""
    if error.wc.status not in _NOT_THEIRS:
        return error
    return LiarError(f"the peer's memory is not what it says: {error}")


class Ends:
    """The end's dealings, and what it keeps for them."""

    def __init__(
        self,
        channel: Channel | AsyncChannel,
        how: How,
        threshold: int | None,
        max_message: int,
        max_backlog: int,
        cache: RegistrationCache | None,
    ) -> None:
        if not isinstance(channel, ChannelEnds):
            raise TypeError(f"give a Channel or AsyncChannel on the queue pair, not {type(channel).__name__}")
        qp = channel.qp
        assert qp.pd is not None  # a channel needs it
        rights = qp.query()[0].qp_access_flags or 0
        if qp.state is not QPState.ERR and rights & _NEEDED != _NEEDED:
            raise ValueError(
                f"the queue pair lets its peer do {rights!r}, and a rendezvous needs {_NEEDED!r}: "
                "set qp_access_flags"
            )
        if (most := channel.max_message) < words.LONGEST:
            raise ValueError(
                f"the channel takes messages of {most} bytes: max_message={words.LONGEST} is needed"
            )
        if cache is not None and cache.pd is not qp.pd:
            raise ValueError("the cache is of another protection domain than the queue pair")
        self._owns_cache = cache is None
        self.cache = RegistrationCache(cast("PD", qp.pd)) if cache is None else cache
        """Its registrations."""
        self._dealings = Measuring(
            how,
            threshold,
            max_message,
            max_backlog,
            self.cache,
            qp.cap.max_send_sge,
            lambda: channel.peer,
            lambda: bool(qp.statistics().counters["local_direct"]),
        )
        self._closed = self._inside = False

    def statistics(self) -> RendezvousStatistics:
        """What it has sent and received so far."""
        return self._dealings.statistics()

    @property
    def threshold(self) -> int | None:
        """From how many bytes on a message is announced; None: not known yet.

        As given, or as measured; before that what does not fit one SEND is announced. In any case what the
        peer's channel does not take is.
        """
        return self._dealings.threshold

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("the rendezvous is closed")

    def _let_go(self) -> None:
        self._dealings.let_go()
        if self._owns_cache:
            self.cache.close()
