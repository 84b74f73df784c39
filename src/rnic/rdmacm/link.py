# SPDX-License-Identifier: Apache-2.0
"""The parameters that both ends of a connection agree on, and the queue pair attributes that follow from
them.
"""

from __future__ import annotations

import os
from errno import EBUSY, EINVAL
from functools import partial

from rnic.enums import MTU, AccessFlags, QPState, QPType
from rnic.errors import VerbsError
from rnic.log import Log
from rnic.rdmacm.again import again
from rnic.rdmacm.gsi import Peer
from rnic.records import MutableRecord, field
from rnic.verbs.ah import AHAttr
from rnic.verbs.qp import QP, QPAttr

_log = Log("rnic.rdmacm")

HOP_LIMIT = 64
MIN_RNR_TIMER = 12  # 0.64 ms; the kernel leaves it at 0, which is 655 ms
_ACCESS = AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_READ | AccessFlags.REMOTE_ATOMIC


def random_psn() -> int:
    """A first PSN, 24 bits."""
    return int.from_bytes(os.urandom(3))


class Link(MutableRecord):
    """The agreed parameters of a connection; the handshake completes them.

    The flow label in a REQ is not kept. The kernel makes one up for its UDP source port, IPv4 has none, and
    over IPv6 each sender chooses its own.
    """

    peer: Peer
    path_mtu: MTU
    traffic_class: int = 0
    hop_limit: int = HOP_LIMIT
    responder_resources: int = 0
    initiator_depth: int = 0
    retry_count: int = 7
    rnr_retry_count: int = 7
    timeout: int = 0  # of the QP: 4.096 us * 2^n
    dest_qp_num: int = 0
    rq_psn: int = field(default_factory=random_psn)  # each end says where the other begins (IBA 12.7.21)
    sq_psn: int = 0

    @property
    def ah_attr(self) -> AHAttr:
        """The path to the peer."""
        return AHAttr(
            dgid=self.peer.gid,
            sgid_index=self.peer.sgid_index,
            port_num=1,
            hop_limit=self.hop_limit or HOP_LIMIT,
            traffic_class=self.traffic_class,
        )


def init_attr() -> QPAttr:
    """RESET to INIT, for a connected queue pair."""
    return QPAttr(qp_state=QPState.INIT, pkey_index=0, port_num=1, qp_access_flags=_ACCESS)


def rtr_attr(link: Link) -> QPAttr:
    """INIT to RTR."""
    return QPAttr(
        qp_state=QPState.RTR,
        path_mtu=link.path_mtu,
        dest_qp_num=link.dest_qp_num,
        rq_psn=link.rq_psn,
        max_dest_rd_atomic=link.responder_resources,
        min_rnr_timer=MIN_RNR_TIMER,
        ah_attr=link.ah_attr,
    )


def rts_attr(link: Link) -> QPAttr:
    """RTR to RTS."""
    return QPAttr(
        qp_state=QPState.RTS,
        sq_psn=link.sq_psn,
        timeout=link.timeout,
        retry_cnt=link.retry_count,
        rnr_retry=link.rnr_retry_count,
        max_rd_atomic=link.initiator_depth,
    )


def ud_attr(state: QPState, qkey: int) -> QPAttr:
    """The attributes of a datagram queue pair, from RESET to RTS."""
    if state is QPState.INIT:
        return QPAttr(qp_state=state, pkey_index=0, port_num=1, qkey=qkey)
    if state is QPState.RTR:
        return QPAttr(qp_state=state)
    return QPAttr(qp_state=state, sq_psn=0)


def conn_attr(link: Link | None, state: QPState, verb: str) -> QPAttr:
    """The attributes for a state of a connected queue pair (rdma_init_qp_attr(3))."""
    if state is QPState.INIT:
        return init_attr()
    if link is None or not link.dest_qp_num:
        raise VerbsError(EINVAL, f"{state.name} needs what the peer answers: not connecting yet", verb)
    if state is QPState.RTR:
        return rtr_attr(link)
    if state is QPState.RTS:
        return rts_attr(link)
    raise VerbsError(EINVAL, f"there are attributes for INIT, RTR and RTS, not for {state.name}", verb)


def to_init(qp: QP, qkey: int) -> None:
    """Move a new queue pair of an id to INIT; a datagram one all the way to RTS."""
    if qp.qp_type is QPType.UD:
        for state in (QPState.INIT, QPState.RTR, QPState.RTS):
            qp.modify(ud_attr(state, qkey))
    else:
        qp.modify(init_attr())


def to_rts(qp: QP, link: Link) -> None:
    """Move the queue pair to RTR and then RTS: the peer is known."""
    qp.modify(rtr_attr(link))
    qp.modify(rts_attr(link))


def to_error(qp: QP | None) -> None:
    """Flush all work: now, or when no process is stopped any more in the middle of a copy by this queue
    pair.
    """
    if qp is not None and not is_flushed(qp):
        again.attempt(qp, partial(_flushed, qp))


def _flushed(qp: QP) -> bool:
    try:
        if not is_flushed(qp):
            qp.modify(QPAttr(qp_state=QPState.ERR))
    except VerbsError as error:  # its owner may close it at the same time
        _log.info("%r: %s", qp, error)
        return qp.closed or error.errno != EBUSY
    return True


def is_flushed(qp: QP) -> bool:
    """Whether the queue pair does nothing any more: it touches no memory for posted work."""
    return qp.closed or qp.state in (QPState.RESET, QPState.ERR)
