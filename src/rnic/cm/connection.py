# SPDX-License-Identifier: Apache-2.0
"""A connection, active or passive, from the REQ to the end of TIMEWAIT (IBA 12.9)."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from rnic.cm.events import Address, EventType
from rnic.cm.exchange import Exchange, Owner, Signal, telling
from rnic.cm.states import HALF_OPEN, Action, Input, State
from rnic.cm.timing import LONGEST_ACK, PACKET_LIFE_TIME, iba_ns, retries_within
from rnic.records import replace
from rnic.wire import (
    MAD,
    Answered,
    Apr,
    AprStatus,
    Drep,
    Dreq,
    Lap,
    Mra,
    Rej,
    RejReason,
    Rep,
    Req,
    Rtu,
)

# What a REJ of ours answers, by the state that it is sent in (IBA 12.6.7); elsewhere it answers nothing.
_REJECTED = {
    State.REQ_RCVD: Answered.REQ,
    State.MRA_REQ_SENT: Answered.REQ,
    State.REP_RCVD: Answered.REP,
    State.MRA_REP_SENT: Answered.REP,
}


class Connection(Exchange):
    """One end of a connection.

    Active: send_req(), event REP_RECEIVED, send_rtu(). Passive: event REQ_RECEIVED, send_rep(), event
    RTU_RECEIVED. Then send_dreq(), or event DREQ_RECEIVED and send_drep(); TIMEWAIT_EXIT is the end.
    """

    def __init__(
        self,
        owner: Owner,
        local_comm_id: int,
        peer: Address,
        *,
        tid: int,
        packet_life_time: int = PACKET_LIFE_TIME,
    ) -> None:
        super().__init__(owner, local_comm_id, peer)
        self.packet_life_time = packet_life_time  # n of 4.096 us * 2^n, one way
        self.remote_comm_id = 0  # 0: not known yet
        self.remote_ca_guid = 0
        self.local_qpn = 0
        self.remote_qpn = 0
        self.req: Req | None = None  # as sent or received
        self.rep: Rep | None = None
        self._own_tid = tid
        self._tid = tid  # of what the other messages belong to: the REQ's
        self._dreq_tid = tid
        self.asked: MAD | None = None  # the REQ as it came, at the passive end
        self._rej: MAD | None = None
        self._cm_wait = 0  # ns to wait for an answer
        self._cm_retries = 0

    # ------------------------------------------------------------------ calls

    def send_req(self, req: Req, now: int, *, attr_mod: int = 0) -> None:
        """Request a connection from the peer; ids and GUID are filled in.

        `req` says with remote_cm_timeout and max_cm_retries how long to wait for an answer, and how often to
        repeat.
        """
        req = replace(req, local_comm_id=self.local_comm_id, local_ca_guid=self.owner.ca_guid)
        self._step(Input.SEND_REQ, Signal(now, req, req.to_mad(self._own_tid, attr_mod)))

    def send_mra(
        self, service_timeout: int, now: int, private_data: bytes = b"", *, held: bool = False
    ) -> None:
        """Ask for 4.096 us * 2^`service_timeout` to answer a REQ or REP.

        `held`: send it only when the peer repeats its message.
        """
        about = Answered.REQ if self.state is State.REQ_RCVD else Answered.REP
        mra = Mra(
            local_comm_id=self.local_comm_id,
            remote_comm_id=self.remote_comm_id,
            message=about,
            service_timeout=service_timeout,
            private_data=private_data,
        )
        self._step(Input.SEND_MRA, Signal(now, mra, mra.to_mad(self._tid), held=held))

    def send_rep(self, rep: Rep, now: int, *, attr_mod: int = 0) -> None:
        """Accept a REQ; ids and GUID are filled in."""
        rep = replace(
            rep,
            local_comm_id=self.local_comm_id,
            remote_comm_id=self.remote_comm_id,
            local_ca_guid=self.owner.ca_guid,
        )
        self._step(Input.SEND_REP, Signal(now, rep, rep.to_mad(self._tid, attr_mod)))

    def send_rtu(self, now: int, private_data: bytes = b"") -> None:
        """Confirm a REP; the connection is established."""
        rtu = Rtu(
            local_comm_id=self.local_comm_id, remote_comm_id=self.remote_comm_id, private_data=private_data
        )
        self._step(Input.SEND_RTU, Signal(now, rtu, rtu.to_mad(self._tid)))

    def send_rej(self, reason: int, now: int, *, ari: bytes = b"", private_data: bytes = b"") -> None:
        """Refuse a REQ or REP, or give up a connection; `ari` has at most 72 bytes."""
        rej = self._make_rej(reason, ari, private_data)
        self._step(Input.SEND_REJ, Signal(now, rej, rej.to_mad(self._tid)))

    def expire_at(self, until: int) -> None:
        """Give the handshake up at this time if it is not over by then, however long the peer wants to take.

        It is for the passive end, until the connection is established. The last call counts; a call after
        that does nothing.
        """
        if self.state in HALF_OPEN:
            self._until = until
            self._arm(self._due)

    def give_up(self, now: int) -> None:
        """Give up a handshake of the passive end before its time, to make room for others."""
        self._step(Input.TIMEOUT, Signal(now))

    def establish(self, now: int) -> None:
        """Complete the connection: data arrived before the RTU (IBA 12.9.7, "communication established")."""
        self._step(Input.ESTABLISH, Signal(now))

    def send_dreq(self, now: int, private_data: bytes = b"") -> None:
        """Release the connection."""
        dreq = self._make_dreq(private_data)
        self._step(Input.SEND_DREQ, Signal(now, dreq, dreq.to_mad(self._own_tid)))

    def send_drep(self, now: int, private_data: bytes = b"") -> None:
        """Confirm a DREQ. In TIMEWAIT, to which a DREP of the peer may have led, it does nothing."""
        drep = self._make_drep(private_data)
        self._step(Input.SEND_DREP, Signal(now, drep, drep.to_mad(self._dreq_tid)))

    # ------------------------------------------------------------------ messages

    def _make_rej(self, reason: int, ari: bytes = b"", private_data: bytes = b"") -> Rej:
        # To a REQ whose id nobody has been told, the answer carries none (as the kernel has it).
        return Rej(
            local_comm_id=0 if self.state is State.REQ_RCVD else self.local_comm_id,
            remote_comm_id=self.remote_comm_id or self.peer_id,  # of an MRA: it finds its way by it
            message=_REJECTED.get(self.state, Answered.OTHER),
            reason=reason,
            ari=ari,
            ari_length=len(ari),
            private_data=private_data,
        )

    def stale(self) -> Rej:
        """The REJ for a REQ that is repeated when its connection is over (IBA 12.6.7.2, reason 10)."""
        return replace(self._make_rej(RejReason.STALE_CONN), message=Answered.REQ)

    def _make_dreq(self, private_data: bytes = b"") -> Dreq:
        return Dreq(
            local_comm_id=self.local_comm_id,
            remote_comm_id=self.remote_comm_id,
            remote_qpn=self.remote_qpn,
            private_data=private_data,
        )

    def _make_drep(self, private_data: bytes = b"") -> Drep:
        return Drep(
            local_comm_id=self.local_comm_id, remote_comm_id=self.remote_comm_id, private_data=private_data
        )

    # ------------------------------------------------------------------ actions: setting up

    def _send_req(self, signal: Signal) -> None:
        req, mad = signal.message, signal.mad
        assert isinstance(req, Req)
        assert mad is not None
        self.req, self.local_qpn = req, req.local_qpn
        self._cm_wait = self._round_trip_ns() + iba_ns(req.remote_cm_timeout)
        self._cm_retries = req.max_cm_retries
        self._ask(mad, self._cm_wait, self._cm_retries, signal.now)

    def _take_req(self, signal: Signal) -> None:
        req, mad = signal.message, signal.mad
        assert isinstance(req, Req)
        assert mad is not None
        self.req, self.asked, self._tid = req, mad, mad.tid
        self.remote_comm_id, self.remote_ca_guid = req.local_comm_id, req.local_ca_guid
        self.peer_id = req.local_comm_id
        self.remote_qpn = req.local_qpn
        self.packet_life_time = max(req.primary.ack_timeout - 1, 0)
        self._cm_wait = iba_ns(req.local_cm_timeout)  # the way is in it
        self._cm_retries = retries_within(self._cm_wait, req.max_cm_retries)
        self._tell(EventType.REQ_RECEIVED, signal)

    def _send_mra(self, signal: Signal) -> None:
        assert signal.mad is not None
        self._answer = signal.mad
        if not signal.held:
            self.owner.send(self.peer, signal.mad)

    def _extend(self, signal: Signal) -> None:
        mra = signal.message
        assert isinstance(mra, Mra)
        self.peer_id = mra.local_comm_id
        self._wait = iba_ns(mra.service_timeout) + self._round_trip_ns()
        self._arm(signal.now + self._wait)
        self._tell(EventType.MRA_RECEIVED, signal)

    def _send_rep(self, signal: Signal) -> None:
        rep, mad = signal.message, signal.mad
        assert isinstance(rep, Rep)
        assert mad is not None
        self.rep, self.local_qpn, self._answer = rep, rep.qp_num, mad
        self._ask(mad, self._cm_wait, self._cm_retries, signal.now)

    def _take_rep(self, signal: Signal) -> None:
        rep = signal.message
        assert isinstance(rep, Rep)
        self.rep = rep
        self.remote_comm_id, self.remote_ca_guid = rep.local_comm_id, rep.local_ca_guid
        self.peer_id = rep.local_comm_id
        self.remote_qpn = rep.qp_num
        self._tell(EventType.REP_RECEIVED, signal)

    def _send_rtu(self, signal: Signal) -> None:
        assert signal.mad is not None
        self._answer = signal.mad
        self.owner.send(self.peer, signal.mad)

    def _take_rtu(self, signal: Signal) -> None:
        self._answer = None  # the REP has done its work
        self._tell(EventType.RTU_RECEIVED, signal)

    def _establish(self, signal: Signal) -> None:
        self._answer = None
        self._tell(EventType.USER_ESTABLISHED, signal)

    # ------------------------------------------------------------------ actions: refusing

    def _send_rej(self, signal: Signal) -> None:
        assert signal.mad is not None
        self._last_word(signal.mad, signal.now)

    def _reject(self, signal: Signal) -> None:
        self._last_word(self._make_rej(RejReason.CONSUMER_DEFINED).to_mad(self._tid), signal.now)

    def _send_timeout(self, signal: Signal) -> None:
        # The receiver may not know our id yet, but GUID and id name the REQ (IBA 12.6.7.2, reason 4).
        guid = self.owner.ca_guid.to_bytes(8, "big")
        self._last_word(self._make_rej(RejReason.TIMEOUT, guid).to_mad(self._tid), signal.now)

    def _last_word(self, mad: MAD, now: int) -> None:
        self._rej = mad
        self.owner.send(self.peer, mad)
        if self.asked is not None:
            self.owner.remember(self.peer, self.asked, mad, now)

    def _reject_again(self, _signal: Signal) -> None:
        mad = self._rej
        if mad is None:
            mad = self.stale().to_mad(self._tid)
        self.owner.send(self.peer, mad)

    def _give_up_req(self, signal: Signal) -> None:
        self._send_timeout(signal)
        self._tell(EventType.REQ_ERROR, signal)

    def _give_up_rep(self, signal: Signal) -> None:
        self._send_timeout(signal)
        self._tell(EventType.REP_ERROR, signal)

    def _expire_req(self, signal: Signal) -> None:
        self._last_word(self._make_rej(RejReason.NO_RESOURCES).to_mad(self._tid), signal.now)
        self._tell(EventType.REQ_ERROR, signal)

    # ------------------------------------------------------------------ actions: releasing

    def _send_dreq(self, signal: Signal) -> None:
        mad = signal.mad or self._make_dreq().to_mad(self._own_tid)
        self._ask(mad, self._cm_wait, self._cm_retries, signal.now)

    def _take_dreq(self, signal: Signal) -> None:
        assert signal.mad is not None
        self._dreq_tid = signal.mad.tid
        self._tell(EventType.DREQ_RECEIVED, signal)

    def _send_drep(self, signal: Signal) -> None:
        self._answer = signal.mad or self._make_drep().to_mad(self._dreq_tid)
        self.owner.send(self.peer, self._answer)

    def _release(self, signal: Signal) -> None:
        """Answer another DREQ with the same DREP, or with the first one if the DREQs crossed."""
        assert signal.mad is not None
        answer = self._answer
        if answer is None or answer.attr_id != Drep.ATTR:
            answer = self._make_drep().to_mad(signal.mad.tid)
        self.owner.send(self.peer, answer)

    def _send_apr(self, signal: Signal) -> None:
        assert isinstance(signal.message, Lap)
        assert signal.mad is not None
        apr = Apr(
            local_comm_id=self.local_comm_id,
            remote_comm_id=self.remote_comm_id,
            status=AprStatus.UNSUPPORTED,
        )
        self.owner.send(self.peer, apr.to_mad(signal.mad.tid))

    # ------------------------------------------------------------------ times

    def _round_trip_ns(self) -> int:
        return 2 * iba_ns(self.packet_life_time)

    def _timewait_ns(self) -> int:
        """Twice the life time, and the peer's ACK delay (IBA 12.9.8.4)."""
        passive = self.asked is not None
        if passive and self.req is not None:
            return iba_ns(min(self.req.primary.ack_timeout, LONGEST_ACK))  # stands for the same sum
        return self._round_trip_ns() + iba_ns(min(self.rep.target_ack_delay, LONGEST_ACK) if self.rep else 0)

    actions: ClassVar[dict[Action, Callable[..., None]]] = {
        Action.SEND_REQ: _send_req,
        Action.TAKE_REQ: _take_req,
        Action.SEND_MRA: _send_mra,
        Action.EXTEND: _extend,
        Action.SEND_REP: _send_rep,
        Action.TAKE_REP: _take_rep,
        Action.SEND_RTU: _send_rtu,
        Action.TAKE_RTU: _take_rtu,
        Action.ESTABLISH: _establish,
        Action.SEND_REJ: _send_rej,
        Action.SEND_TIMEOUT: _send_timeout,
        Action.REJECT: _reject,
        Action.REJECT_AGAIN: _reject_again,
        Action.TAKE_REJ: telling(EventType.REJ_RECEIVED),
        Action.ANSWER_AGAIN: Exchange._answer_again,
        Action.RESEND: Exchange._resend,
        Action.GIVE_UP_REQ: _give_up_req,
        Action.GIVE_UP_REP: _give_up_rep,
        Action.GIVE_UP_DREQ: telling(EventType.DREQ_ERROR),
        Action.EXPIRE_REQ: _expire_req,
        Action.LOSE_REQ: telling(EventType.REQ_ERROR),
        Action.LOSE_REP: telling(EventType.REP_ERROR),
        Action.SEND_DREQ: _send_dreq,
        Action.TAKE_DREQ: _take_dreq,
        Action.SEND_DREP: _send_drep,
        Action.RELEASE: _release,
        Action.TAKE_DREP: telling(EventType.DREP_RECEIVED),
        Action.END_TIMEWAIT: telling(EventType.TIMEWAIT_EXIT),
        Action.SEND_APR: _send_apr,
    }
