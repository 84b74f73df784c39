# SPDX-License-Identifier: Apache-2.0
"""A socket becomes the stream of a queue pair, and what the end of such a stream means (rnic.stream/1)."""

from __future__ import annotations

import socket
from errno import ECONNRESET, EINVAL, ENOTCONN, EPIPE, EPROTO
from typing import TYPE_CHECKING

from rnic.enums import QPState, StreamEnd, StreamRTR
from rnic.errors import VerbsError
from rnic.mpa import Agreed
from rnic.rdmacm.iwcm.away import AwayQP
from rnic.verbs.qp import QP, QPAttr
from rnic.verbs.stream import StreamAttr, StreamEvent

if TYPE_CHECKING:
    from rnic.rdmacm.cm_id import CmId
    from rnic.rdmacm.iwcm.manager import IwService

_BEFORE = (QPState.INIT, QPState.RTR)


def queue_pair(service: IwService, one: CmId, qp_num: int, verb: str) -> QP | AwayQP:
    """The queue pair of a connection: the id's, or the one of its device with this number. One in another
    process is not looked at.

    Raises VerbsError: EINVAL if there is none, or it is not ready for a connection.
    """
    if one.orders is not None:
        return AwayQP(service, one.orders, qp_num)
    qp = one.qp
    if qp is None:
        found = one.need_agent(verb).context.find_qp(qp_num)
        if not isinstance(found, QP):
            text = f"the id's device has no open queue pair of this process with number {qp_num:#x}"
            raise VerbsError(EINVAL, text, verb)
        qp = found
    if qp.state not in _BEFORE:
        text = f"the queue pair is in {qp.state.name}: it is connected from INIT or RTR"
        raise VerbsError(EINVAL, text, verb)
    return qp


def to_rtr(qp: QP | AwayQP) -> None:
    """Move a queue pair to where it takes a stream; nothing comes or goes yet."""
    if qp.state is QPState.INIT:
        qp.modify(QPAttr(qp_state=QPState.RTR))


def attach(
    qp: QP | AwayQP, sock: socket.socket, agreed: Agreed, *, is_initiator: bool, tell_ready: bool
) -> None:
    """Hand the socket over: from now on it is the queue pair's. A second call does nothing.

    tell_ready: an event of the device says that the peer's first message has come.
    """
    to_rtr(qp)
    attr = StreamAttr(
        initiator=is_initiator,
        crc=agreed.crc,
        rtr=StreamRTR(agreed.rtr),
        markers_in=agreed.markers_in,
        markers_out=agreed.markers_out,
        rfc7306=agreed.rfc7306,
        tell_ready=tell_ready,
    )
    if sock.fileno() >= 0:
        qp.attach_stream(sock, attr)


def to_rts(qp: QP | AwayQP, agreed: Agreed) -> None:
    """Let a queue pair send and receive by its stream. A second call does nothing."""
    ird, ord_ = agreed.depths.ird, agreed.depths.ord
    if qp.state in _BEFORE:
        qp.modify(QPAttr(qp_state=QPState.RTS, max_dest_rd_atomic=ird, max_rd_atomic=ord_))


def is_broken(sock: socket.socket) -> bool:
    """Whether a socket was connected, and is not any more; one that was handed over is not looked at."""
    try:
        sock.getpeername()
    except OSError as error:
        return error.errno == ENOTCONN
    return False


def status_of(event: StreamEvent) -> int:
    """The status of DISCONNECTED: 0 if a connection has ended in order.

    EPIPE is a reset that was noticed by writing.
    """
    if event.end is StreamEnd.LOST:
        return -(ECONNRESET if event.error in (0, EPIPE) else event.error)
    return -EPROTO if event.end in (StreamEnd.TERMINATED, StreamEnd.REFUSED) else 0
