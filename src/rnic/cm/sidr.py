# SPDX-License-Identifier: Apache-2.0
"""Service id resolution: which queue pair serves a datagram service (IBA 12.11); and listeners."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from rnic.cm.events import Address, EventType
from rnic.cm.exchange import Exchange, Owner, Signal, telling
from rnic.cm.states import Action, Input
from rnic.cm.timing import MAX_CM_RETRIES
from rnic.records import replace
from rnic.wire import MAD, SidrRep, SidrReq, SidrStatus


class Resolution(Exchange):
    """One question and its answer, at either end: send_sidr_req() and event SIDR_REP_RECEIVED, or the
    opposite.
    """

    def __init__(self, owner: Owner, local_comm_id: int, peer: Address, *, tid: int) -> None:
        super().__init__(owner, local_comm_id, peer)
        self.req: SidrReq | None = None  # as sent or received
        self._tid = tid
        self._asked: MAD | None = None  # the SIDR_REQ as it came

    def send_sidr_req(
        self, req: SidrReq, now: int, *, timeout_ns: int, retries: int = MAX_CM_RETRIES
    ) -> None:
        """Ask for a service; the request id is filled in. The message has no room for times, so they are
        arguments.
        """
        req = replace(req, request_id=self.local_comm_id)
        mad = req.to_mad(self._tid)
        self._step(Input.SEND_SIDR_REQ, Signal(now, req, mad, wait=timeout_ns, retries=retries))

    def send_sidr_rep(self, rep: SidrRep, now: int, *, attr_mod: int = 0) -> None:
        """Answer, which ends the resolution; request id and service id are filled in."""
        if self.req is not None:
            rep = replace(rep, request_id=self.req.request_id, service_id=self.req.service_id)
        self._step(Input.SEND_SIDR_REP, Signal(now, rep, rep.to_mad(self._tid, attr_mod)))

    def _send_req(self, signal: Signal) -> None:
        assert isinstance(signal.message, SidrReq)
        assert signal.mad is not None
        self.req = signal.message
        self._ask(signal.mad, signal.wait, signal.retries, signal.now)

    def _take_req(self, signal: Signal) -> None:
        assert isinstance(signal.message, SidrReq)
        assert signal.mad is not None
        self.req, self._asked, self._tid = signal.message, signal.mad, signal.mad.tid
        self._tell(EventType.SIDR_REQ_RECEIVED, signal)

    def _send_rep(self, signal: Signal) -> None:
        assert signal.mad is not None
        assert self._asked is not None
        self.owner.send(self.peer, signal.mad)
        self.owner.remember(self.peer, self._asked, signal.mad, signal.now)

    def _refuse_question(self, signal: Signal) -> None:
        assert self.req is not None
        rep = refusal(self.req, SidrStatus.REJECT)
        self._send_rep(replace(signal, message=rep, mad=rep.to_mad(self._tid)))

    actions: ClassVar[dict[Action, Callable[..., None]]] = {
        Action.SEND_SIDR_REQ: _send_req,
        Action.TAKE_SIDR_REQ: _take_req,
        Action.SEND_SIDR_REP: _send_rep,
        Action.REFUSE_SIDR: _refuse_question,
        Action.TAKE_SIDR_REP: telling(EventType.SIDR_REP_RECEIVED),
        Action.RESEND: Exchange._resend,
        Action.GIVE_UP_SIDR: telling(EventType.SIDR_REQ_ERROR),
    }


def refusal(req: SidrReq, status: SidrStatus) -> SidrRep:
    """The answer that refuses."""
    return SidrRep(request_id=req.request_id, status=status, service_id=req.service_id)


class Listener(Exchange):
    """A listener for a service id: each REQ and SIDR_REQ for it makes a new object and an event."""

    def __init__(
        self, owner: Owner, service_id: int, spawn: Callable[[Listener, Input, Signal], None]
    ) -> None:
        super().__init__(owner, 0, None)
        self.service_id = service_id
        self._spawn_one = spawn

    def __repr__(self) -> str:
        return f"<Listener {self.service_id:#018x} {self.state.name}>"

    def listen(self, now: int) -> None:
        """Begin to listen. Raises EADDRINUSE if another listener has the service."""
        self._step(Input.LISTEN, Signal(now))

    def _nothing(self, _signal: Signal) -> None:
        """Its maker notes the change of state."""

    def _spawn(self, signal: Signal) -> None:
        event = Input.REQ if not isinstance(signal.message, SidrReq) else Input.SIDR_REQ
        self._spawn_one(self, event, signal)

    actions: ClassVar[dict[Action, Callable[..., None]]] = {
        Action.LISTEN: _nothing,
        Action.UNLISTEN: _nothing,
        Action.SPAWN: _spawn,
    }
