# SPDX-License-Identifier: Apache-2.0
"""A datagram that came to queue pair 1: which exchange it belongs to, or how it is refused.

What fits nothing is dropped and counted. Anybody can send anything from any address: an exchange gets only
what names its ids and comes from its peer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rnic.cm.connection import Connection
from rnic.cm.events import Address
from rnic.cm.exchange import Exchange, Signal
from rnic.cm.sidr import Listener, Resolution, refusal
from rnic.cm.states import Input, State
from rnic.log import Log
from rnic.records import Record
from rnic.wire import (
    MAD,
    Answered,
    Apr,
    CmAttr,
    CmMessage,
    Drep,
    Dreq,
    Lap,
    MgmtClass,
    Mra,
    Rej,
    RejReason,
    Rep,
    Req,
    Rtu,
    SidrRep,
    SidrReq,
    SidrStatus,
    TransportType,
    WireError,
    parse_cm,
)

if TYPE_CHECKING:
    from rnic.cm.ib_cm import IbCm

_log = Log("rnic.cm")

_MRA_INPUTS: dict[int, Input] = {
    Answered.REQ: Input.MRA_REQ,
    Answered.REP: Input.MRA_REP,
    Answered.OTHER: Input.MRA_OTHER,
}
_CALLING = (State.REQ_SENT, State.MRA_REQ_RCVD)


class _Received(Record):
    """A datagram and its source."""

    mad: MAD
    source: Address
    now: int


def take(cm: IbCm, data: bytes, source: Address, now: int) -> None:
    """Handle a datagram; it never raises for its contents."""
    try:
        mad = MAD.parse(data)
        message = parse_cm(mad)
    except WireError as error:
        _malformed(cm, data, str(error), source)
        return
    cm.count(mad)
    _HANDLERS[mad.attr_id](cm, message, _Received(mad, source, now))


def _malformed(cm: IbCm, data: bytes, reason: str, source: Address) -> None:
    """Handle an unreadable datagram; a REQ of another version is refused with its reason (IBA 12.6.7.2,
    reason 31).
    """
    cm.drop("malformed")
    _log.debug("from %s: %s", source, reason)
    if len(data) != MAD.SIZE:
        return
    mad = MAD.parse(data)
    if (mad.mgmt_class, mad.attr_id) == (MgmtClass.CM, CmAttr.REQ) and mad.class_version != 2:
        reply_to = Req.parse(mad.data).local_comm_id
        at = _Received(mad, source, 0)
        _reject(cm, RejReason.INVALID_CLASS_VERSION, Answered.REQ, reply_to, 0, at)


# ------------------------------------------------------------------ messages that ask


def _req(cm: IbCm, req: Req, at: _Received) -> None:
    if known := cm.table.find_remote(req.local_ca_guid, req.local_comm_id):
        _pass(cm, known, Input.REQ, req, at)
        return
    if cm.answer_again(at.source, at.mad, at.now):
        return
    if old := cm.table.find_qpn(req.local_ca_guid, req.local_qpn):
        _stale(cm, old, Answered.REQ, req.local_comm_id, 0, at)
        return
    listener = cm.table.listeners.get(req.service_id)
    if listener is None or not (req.is_xrc or req.transport_type in (TransportType.RC, TransportType.UC)):
        _refuse(cm, req, listener, at)
        return
    _pass(cm, listener, Input.REQ, req, at)


def _refuse(cm: IbCm, req: Req, listener: Listener | None, at: _Received) -> None:
    if listener is not None:
        reason = RejReason.INVALID_TRANSPORT_TYPE
    elif req.local_ca_guid != cm.ca_guid and cm.table.is_calling(req.service_id, at.source):
        reason = RejReason.UNSUPPORTED  # both ends call: the peer-to-peer model would join them
    else:
        reason = RejReason.INVALID_SERVICE_ID
    cm.drop(f"a REQ that is refused: {reason.name.lower()}")
    _reject(cm, reason, Answered.REQ, req.local_comm_id, 0, at)


def _stale(
    cm: IbCm, old: Connection, message: Answered, remote_comm_id: int, local_comm_id: int, at: _Received
) -> None:
    """A queue pair that counts as connected here requests another connection (IBA 12.9.8.3.1)."""
    cm.drop(f"a {message.name} from a queue pair that is connected already")
    _reject(cm, RejReason.STALE_CONN, message, remote_comm_id, local_comm_id, at)
    if old.peer == at.source:  # anybody can name a queue pair
        old.input(Input.STALE, Signal(at.now))


def _reject(
    cm: IbCm, reason: RejReason, message: Answered, remote_comm_id: int, local_comm_id: int, at: _Received
) -> None:
    rej = Rej(local_comm_id=local_comm_id, remote_comm_id=remote_comm_id, message=message, reason=reason)
    cm.send(at.source, rej.to_mad(at.mad.tid))


def _sidr_req(cm: IbCm, req: SidrReq, at: _Received) -> None:
    known: Exchange | None = cm.table.find_question(req.request_id, at.source)
    if known is None and cm.answer_again(at.source, at.mad, at.now):
        return
    known = known or cm.table.listeners.get(req.service_id)
    if known is None:
        cm.drop("a SIDR_REQ for a service without a listener")
        cm.send(at.source, refusal(req, SidrStatus.UNSUPPORTED).to_mad(at.mad.tid))
        return
    _pass(cm, known, Input.SIDR_REQ, req, at)


# ------------------------------------------------------------------ messages that answer


def _rep(cm: IbCm, rep: Rep, at: _Received) -> None:
    conn = cm.table.find(rep.remote_comm_id)
    if not isinstance(conn, Connection):
        # The peer would repeat it until it gives up.
        cm.drop("a REP for an id that is not known")
        _reject(cm, RejReason.INVALID_COMM_ID, Answered.REP, rep.local_comm_id, rep.remote_comm_id, at)
    elif conn.remote_comm_id == rep.local_comm_id:
        _pass(cm, conn, Input.REP, rep, at)
    elif conn.remote_comm_id:
        cm.drop("a REP from another connection than the one before")
    elif cm.table.find_remote(rep.local_ca_guid, rep.local_comm_id):
        cm.drop("a REP with the id of another connection")
    elif (old := cm.table.find_qpn(rep.local_ca_guid, rep.qp_num)) and conn.state in _CALLING:
        _stale(cm, old, Answered.REP, rep.local_comm_id, rep.remote_comm_id, at)
    else:
        _pass(cm, conn, Input.REP, rep, at)


def _mra(cm: IbCm, mra: Mra, at: _Received) -> None:
    event = _MRA_INPUTS.get(mra.message)
    # To a REQ it is the first that we hear of the peer's id.
    known_id = 0 if mra.message == Answered.REQ else mra.local_comm_id
    conn = cm.table.find_connection(mra.remote_comm_id, known_id)
    if event is None or conn is None:
        cm.drop("an MRA for an id that is not known")
        return
    _pass(cm, conn, event, mra, at)


def _rej(cm: IbCm, rej: Rej, at: _Received) -> None:
    conn = _rejected(cm, rej)
    if conn is None:
        cm.drop("a REJ for an id that is not known")
        return
    stale = rej.reason == RejReason.STALE_CONN
    _pass(cm, conn, Input.REJ_STALE if stale else Input.REJ, rej, at)


def _rejected(cm: IbCm, rej: Rej) -> Connection | None:
    if rej.reason == RejReason.TIMEOUT:
        # Its sender may not know our id, but says who it is (IBA 12.6.7.2, reason 4).
        return cm.table.find_remote(int.from_bytes(rej.info[:8], "big"), rej.local_comm_id)
    if rej.message == Answered.REQ:
        return cm.table.find_connection(rej.remote_comm_id, 0)
    # Ours may be waiting for the REP still, when that was lost and the REJ arrived.
    find = cm.table.find_connection
    return find(rej.remote_comm_id, rej.local_comm_id) or find(rej.remote_comm_id, 0)


def _dreq(cm: IbCm, dreq: Dreq, at: _Received) -> None:
    conn = cm.table.find_connection(dreq.remote_comm_id, dreq.local_comm_id)
    if conn is None:
        # Long gone here: the peer shall not wait for it, as the kernel has it.
        cm.drop("a DREQ for an id that is not known")
        drep = Drep(local_comm_id=dreq.remote_comm_id, remote_comm_id=dreq.local_comm_id)
        cm.send(at.source, drep.to_mad(at.mad.tid))
    elif conn.local_qpn != dreq.remote_qpn:
        cm.drop("a DREQ for another queue pair")
    else:
        _pass(cm, conn, Input.DREQ, dreq, at)


def _reply(cm: IbCm, message: Rtu | Drep | Lap | Apr, at: _Received) -> None:
    """Handle a message that must name both ids."""
    conn = cm.table.find_connection(message.remote_comm_id, message.local_comm_id)
    event = Input[message.ATTR.name]
    if conn is None:
        cm.drop(f"{event.name}: an id that is not known")
        return
    _pass(cm, conn, event, message, at)


def _sidr_rep(cm: IbCm, rep: SidrRep, at: _Received) -> None:
    found = cm.table.find(rep.request_id)
    if not isinstance(found, Resolution):
        cm.drop("a SIDR_REP for an id that is not known")
        return
    _pass(cm, found, Input.SIDR_REP, rep, at)


def _pass(cm: IbCm, exchange: Exchange, event: Input, message: CmMessage, at: _Received) -> None:
    if exchange.peer not in (None, at.source):  # a listener's is None
        cm.drop("a message of another address than the peer's")
        return
    exchange.input(event, Signal(at.now, message, at.mad, source=at.source))


_HANDLERS: dict[int, Callable[..., None]] = {
    CmAttr.REQ: _req,
    CmAttr.MRA: _mra,
    CmAttr.REJ: _rej,
    CmAttr.REP: _rep,
    CmAttr.RTU: _reply,
    CmAttr.DREQ: _dreq,
    CmAttr.DREP: _reply,
    CmAttr.SIDR_REQ: _sidr_req,
    CmAttr.SIDR_REP: _sidr_rep,
    CmAttr.LAP: _reply,
    CmAttr.APR: _reply,
}
