# SPDX-License-Identifier: Apache-2.0
"""What the conversations of an id have in common: an exchange of messages, and the path to the peer."""

from __future__ import annotations

from time import monotonic_ns
from typing import TYPE_CHECKING, ClassVar

import rnic.cm as cm
from rnic.rdmacm.ibcm.link import Link
from rnic.rdmacm.names import Path
from rnic.rdmacm.service import Limits, Phase

if TYPE_CHECKING:
    from rnic.rdmacm.cm_id import CmId
    from rnic.rdmacm.ibcm.manager import IbService

_S = cm.State
_PHASES = {
    _S.REQ_SENT: Phase.CALLING,
    _S.MRA_REQ_RCVD: Phase.CALLING,
    _S.SIDR_REQ_SENT: Phase.CALLING,
    _S.REP_RCVD: Phase.ANSWERED,
    _S.MRA_REP_SENT: Phase.ANSWERED,
    _S.REQ_RCVD: Phase.ASKED,
    _S.MRA_REQ_SENT: Phase.ASKED,
    _S.SIDR_REQ_RCVD: Phase.ASKED,
    _S.REP_SENT: Phase.ACCEPTED,
    _S.MRA_REP_RCVD: Phase.ACCEPTED,
    _S.ESTABLISHED: Phase.UP,
    _S.DREQ_SENT: Phase.LEAVING,
    _S.DREQ_RCVD: Phase.LEFT,
    _S.TIMEWAIT: Phase.OVER,
    _S.IDLE: Phase.OVER,
}


class IbConversation:
    """An id's part of an exchange; the exchange's `context` while it may report."""

    limits: ClassVar[Limits]
    exchange: cm.Exchange | None = None
    """None before connect()."""

    def __init__(self, one: CmId, service: IbService, link: Link) -> None:
        self.one, self.service, self.link = one, service, link

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.one!r}>"

    @property
    def phase(self) -> Phase:
        """How far it is."""
        return Phase.NEW if self.exchange is None else _PHASES[self.exchange.state]

    @property
    def state_name(self) -> str:
        """The state of the exchange."""
        return cm.State.IDLE.name if self.exchange is None else self.exchange.state.name

    def route(self, path: Path) -> None:
        """Packets are to go by this path."""
        self.link.traffic_class, self.link.hop_limit = path.traffic_class, path.hop_limit
        if path.mtu is not None:
            self.link.path_mtu = min(path.mtu, self.link.path_mtu)

    def handle(self, event: cm.Event) -> None:
        """Handle an event of the communication manager; it is repeated if memory was short."""
        raise NotImplementedError

    def close(self) -> None:
        """Refuse or release what is under way; no events follow."""
        if self.exchange is not None:
            if not self.exchange.closed:
                self.exchange.close(monotonic_ns())
            self.exchange.context = None
