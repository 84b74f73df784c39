# SPDX-License-Identifier: Apache-2.0
"""What an id asks of its connection service: its parameters are made complete, and checked, first."""

from __future__ import annotations

from errno import EINVAL
from time import monotonic_ns
from typing import TYPE_CHECKING, cast

from rnic.errors import VerbsError
from rnic.rdmacm.names import MAX_INIT_DEPTH, MAX_RESP_RES, ConnParam, UDParam
from rnic.rdmacm.qp_states import to_error
from rnic.rdmacm.service import Phase, Reason
from rnic.records import replace
from rnic.verbs.ece import ECE

if TYPE_CHECKING:
    from rnic.rdmacm.id_base import IdBase


def check_private(data: bytes, limit: int, verb: str) -> None:
    """Raise EINVAL for private data that is too long for the message."""
    if len(data) > limit:
        raise VerbsError(EINVAL, f"private_data has {len(data)} bytes; {verb}() can carry {limit}", verb)


def _within(name: str, value: int, limit: int, verb: str, all_of_it: int) -> int:
    if value == all_of_it:
        return limit
    if not 0 <= value <= limit:
        raise VerbsError(EINVAL, f"{name} is {value}; the device can do {limit}", verb)
    return value


def _depths(one: IdBase, param: ConnParam, verb: str) -> tuple[int, int]:
    """responder_resources and initiator_depth, limited by the device."""
    attr = one.need_agent(verb).attr
    served, asked = min(attr.max_qp_rd_atom, 254), min(attr.max_qp_init_rd_atom, 254)
    return (
        _within("responder_resources", param.responder_resources, served, verb, MAX_RESP_RES),
        _within("initiator_depth", param.initiator_depth, asked, verb, MAX_INIT_DEPTH),
    )


def _qp_num(one: IdBase, param: ConnParam | UDParam, verb: str) -> int:
    if one.qp is not None:
        return one.qp.qp_num
    if not param.qp_num:
        text = f"there is no queue pair: create_qp(), or qp_num in the {type(param).__name__}"
        raise VerbsError(EINVAL, text, verb)
    return param.qp_num


def _complete(one: IdBase, param: ConnParam, depths: tuple[int, int], verb: str) -> ConnParam:
    """The parameters with the depths, and with the number of the queue pair and whether it shares a receive
    queue, which the peer is told (IBA 12.7.22).
    """
    srq = param.srq if one.qp is None else one.qp.srq is not None
    return replace(
        param,
        responder_resources=depths[0],
        initiator_depth=depths[1],
        qp_num=_qp_num(one, param, verb),
        srq=srq,
    )


# ------------------------------------------------------------------ connections


def connect(one: IdBase, param: ConnParam) -> None:
    """Ask the peer for a connection (rdma_connect(3))."""
    conversation = one.conversation
    assert conversation is not None
    check_private(param.private_data, conversation.limits.connect, "connect")
    agent = one.need_agent("connect")
    conversation.connect(_complete(one, param, _depths(one, param, "connect"), "connect"))
    agent.watch(one.as_id)
    agent.flush()


def accept(one: IdBase, param: ConnParam | None) -> None:
    """Accept the peer's request (rdma_accept(3)), as far as it goes with what the peer asked for."""
    conn = one.need_connection("accept")
    if conn.phase is not Phase.ASKED:
        raise VerbsError(EINVAL, f"no request waits: the connection is in {conn.state_name}", "accept")
    offered = cast("ConnParam", one.offered)
    agent = one.need_agent("accept")
    param = param or ConnParam(flow_control=offered.flow_control)
    check_private(param.private_data, conn.limits.accept, "accept")
    resources, depth = _depths(one, param, "accept")
    if one.qp is not None and not one.offers_ece and one.remote_ece.vendor_id:
        taken = one.qp.set_ece(one.remote_ece)
        one.local_ece = taken if taken.options else ECE()
    depths = min(resources, offered.responder_resources), min(depth, offered.initiator_depth)
    agreed = _complete(one, param, depths, "accept")
    try:
        conn.accept(agreed)
        one.disconnecting = False  # whatever was said before
        if one.let_in_by is not None:
            one.let_in_by.accepted(one.as_id, monotonic_ns())
    except VerbsError:
        to_error(one.qp)
        conn.reject(b"", Reason.PROGRAM)
        raise
    finally:
        agent.watch(one.as_id)
        agent.flush()


def reject(one: IdBase, private_data: bytes, reason: Reason) -> None:
    """Refuse the peer's request, or its answer (rdma_reject(3))."""
    conversation = one.need_conversation("reject")
    check_private(private_data, conversation.limits.reject, "reject")
    conversation.reject(private_data, reason)
    one.need_agent("reject").flush()


def hang_up(one: IdBase, private_data: bytes = b"") -> bool:
    """Disconnect, or confirm the peer's disconnect (rdma_disconnect(3)). Returns whether an event will report
    the end.

    In the middle of a handshake nothing can be sent yet: the peer is told when the handshake ends. A datagram
    service has no connection to end: only its queue pair moves.
    """
    if one.is_datagram:
        check_private(private_data, one.need_conversation("disconnect").limits.disconnect, "disconnect")
        to_error(one.qp)
        return False
    conn = one.need_connection("disconnect")
    check_private(private_data, conn.limits.disconnect, "disconnect")
    agent = one.need_agent("disconnect")
    one.disconnecting = True
    conn.disconnect(private_data)
    agent.flush()
    return conn.phase is Phase.LEAVING


# ------------------------------------------------------------------ datagram services


def look_up(one: IdBase, param: ConnParam | UDParam) -> None:
    """Ask which queue pair serves the peer's port (rdma_connect(3))."""
    conversation = one.conversation
    assert conversation is not None
    check_private(param.private_data, conversation.limits.connect, "connect")
    agent = one.need_agent("connect")
    conversation.connect(param)
    agent.flush()


def serve(one: IdBase, param: ConnParam | UDParam | None) -> None:
    """Answer with the queue pair's number and Q_Key (rdma_accept(3))."""
    param = param or UDParam()
    conversation = one.need_conversation("accept")
    check_private(param.private_data, conversation.limits.accept, "accept")
    qkey = (param.qkey if isinstance(param, UDParam) else 0) or one.qkey("accept")
    qp_num = _qp_num(one, param, "accept")
    conversation.accept(UDParam(param.private_data, qp_num=qp_num, qkey=qkey))
    one.need_agent("accept").flush()
