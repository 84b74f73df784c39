# SPDX-License-Identifier: Apache-2.0
"""The path to a peer, what both ends of a connection agree on, and the queue pair attributes that follow."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rnic.cm import ack_timeout, peer_ack_timeout
from rnic.enums import MTU, QPState
from rnic.rdmacm.ibcm.gsi import Peer
from rnic.rdmacm.names import ConnParam, Option
from rnic.records import MutableRecord, field
from rnic.verbs.ah import AHAttr
from rnic.verbs.qp import QP, QPAttr

if TYPE_CHECKING:
    from rnic.rdmacm.cm_id import CmId
    from rnic.wire import Rep, Req

HOP_LIMIT = 64
MIN_RNR_TIMER = 12  # 0.64 ms; the kernel leaves it at 0, which is 655 ms


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


def to_rts(qp: QP, link: Link) -> None:
    """Move the queue pair to RTR and then RTS: the peer is known."""
    qp.modify(rtr_attr(link))
    qp.modify(rts_attr(link))


def timeout_of(one: CmId, asked: int, delay: int) -> int:
    """The queue pair's timeout: the option's value, else the peer's, within limits."""
    own = ack_timeout(delay, one.packet_life_time)
    return own if Option.ACK_TIMEOUT in one.options else peer_ack_timeout(asked, own)


def offer(said: Req | Rep, private_data: bytes, retry_count: int) -> ConnParam:
    """The peer's parameters as this application sees them: the peer's initiator depth is what this end
    serves.
    """
    return ConnParam(
        private_data=private_data,
        responder_resources=said.initiator_depth,
        initiator_depth=said.responder_resources,
        flow_control=said.flow_control,
        retry_count=retry_count,
        rnr_retry_count=said.rnr_retry_count,
        srq=said.srq,
        qp_num=said.local_qpn,
    )
