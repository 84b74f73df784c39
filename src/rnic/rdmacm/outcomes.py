# SPDX-License-Identifier: Apache-2.0
"""What a connection service reports, and what it means for an id: states, events, its queue pair.

The events are those of rdma_get_cm_event(3). A service calls these functions under the registry's lock. If
memory is short within one, it raises MemoryError, and the service calls it again: nothing is told twice.
"""

from __future__ import annotations

from errno import EINVAL
from time import monotonic_ns
from typing import TYPE_CHECKING

from rnic.errors import VerbsError
from rnic.rdmacm.calls import hang_up
from rnic.rdmacm.channel import Event
from rnic.rdmacm.names import NOTHING_SAID, ConnParam, EventType, IdState, UDParam
from rnic.rdmacm.qp_states import to_error
from rnic.rdmacm.service import HALF_OPEN, Phase, Reason, Request
from rnic.records import replace

if TYPE_CHECKING:
    from rnic.rdmacm.cm_id import CmId
    from rnic.verbs.ece import ECE


# ------------------------------------------------------------------ to a listener


def requested(listener: CmId, child: CmId, request: Request) -> None:
    """A peer asks for a connection or a datagram service; `child` is the listener's new id (CmId.spawn())."""
    child.conversation = request.conversation
    child.remote, child.local = request.remote, request.local
    child.remote_ece = request.ece
    child.offered = request.param
    child.state = IdState.CONNECT
    if not child.is_datagram:
        child.let_in_by = listener.admission
        listener.admission.asked(child, monotonic_ns())
    listener.channel.put(Event(EventType.CONNECT_REQUEST, child, param=request.param, listen_id=listener))


# ------------------------------------------------------------------ to an id that calls


def answered(one: CmId, param: ConnParam, ece: ECE) -> None:
    """The peer has accepted, and waits for a confirmation.

    An id with a queue pair is ESTABLISHED; without one, the program goes on with establish().
    """
    one.remote_ece = ece
    conn = one.need_connection("connect")
    if one.qp is None and one.disconnecting:
        if conn.phase is not Phase.UP:
            conn.establish()
        hang_up(one)
        return
    if one.qp is None:
        one.put(EventType.CONNECT_RESPONSE, param=param)
        return
    try:
        conn.complete()
    except VerbsError as error:
        conn.reject(b"", Reason.PROGRAM)
        failed(one, -(error.errno or EINVAL))
        return
    one.put(EventType.ESTABLISHED, param=param)


def failed(one: CmId, status: int) -> None:
    """The peer has accepted, and this end cannot: a negative errno."""
    _broken(one, EventType.CONNECT_ERROR, status)


def found(one: CmId, param: UDParam) -> None:
    """A datagram service has answered: its path, queue pair and Q_Key."""
    one.put(EventType.ESTABLISHED, param=param)


def not_found(one: CmId, status: int, private_data: bytes) -> None:
    """A datagram service has refused; ConnectionService.refusal() has the status in words."""
    one.put(EventType.UNREACHABLE, status, param=UDParam(private_data))


# ------------------------------------------------------------------ to either end


def established(one: CmId, param: ConnParam = NOTHING_SAID) -> None:
    """The connection is complete; `param` is what the peer has said, if this is the first that it says."""
    _settle(one)
    one.put(EventType.ESTABLISHED, param=param)
    if one.disconnecting:
        hang_up(one)


def refused(one: CmId, status: int, private_data: bytes) -> None:
    """The peer has refused, or released the connection by force."""
    _settle(one)
    _broken(one, EventType.REJECTED, status, replace(NOTHING_SAID, private_data=private_data))


def unreachable(one: CmId, status: int) -> None:
    """The peer does not answer, or is dead: a negative errno. A request that nobody has seen is removed."""
    _settle(one)
    if not one.seen and one.channel.withdraw(one):
        one.destroy()
    elif not one.is_datagram:
        _broken(one, EventType.UNREACHABLE, status)
    else:
        one.put(EventType.UNREACHABLE, status)


def disconnected(one: CmId, status: int = 0, private_data: bytes = b"", *, is_dead: bool = False) -> None:
    """The connection has ended: report DISCONNECTED, once, whichever end began.

    A disconnect that crossed ours is confirmed here. Work for a dead process is flushed at once, not when its
    retries are used up.
    """
    _settle(one)
    conn = one.need_connection("disconnect")
    if one.disconnecting and conn.phase is Phase.LEFT:
        conn.disconnect(b"")
    if one.state is not IdState.CONNECT:
        return
    # librdmacm's programs say nothing here, and are told of nothing.
    data = private_data if any(private_data) else b""
    one.put(EventType.DISCONNECTED, status, param=replace(NOTHING_SAID, private_data=data))
    one.state = IdState.DISCONNECT  # when it is told: what lacks memory is done again
    if is_dead:
        to_error(one.qp)


def timewait_over(one: CmId) -> None:
    """The queue pair may be used again. It is told of a connection that was established; another event has
    reported a refused or abandoned one.
    """
    _settle(one)
    if one.state is IdState.DISCONNECT:
        one.put(EventType.TIMEWAIT_EXIT)


def _settle(one: CmId) -> None:
    """The id is no longer half-open, if its conversation is not."""
    conversation = one.conversation
    if one.let_in_by is not None and (conversation is None or conversation.phase not in HALF_OPEN):
        one.let_in_by.settled(one)


def _broken(one: CmId, kind: EventType, status: int, param: ConnParam | None = None) -> None:
    one.put(kind, status, param=param)  # before work is flushed: it says why
    to_error(one.qp)
