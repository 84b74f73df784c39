# SPDX-License-Identifier: Apache-2.0
"""The calls of an id for its queue pair: it is made, moved and destroyed with the id."""

from __future__ import annotations

from errno import EINVAL, EOPNOTSUPP
from typing import TYPE_CHECKING, cast

from rnic.enums import QPState, QPType
from rnic.errors import VerbsError
from rnic.rdmacm.id_base import IdBase
from rnic.rdmacm.qp_states import init_attr, to_init, ud_attr
from rnic.rdmacm.registry import registry
from rnic.rdmacm.service import Connection
from rnic.records import replace
from rnic.verbs.ece import ECE
from rnic.verbs.pd import PD
from rnic.verbs.qp import QP, QPAttr, QPCap, QPInitAttr
from rnic.verbs.qp_ex import QPEx, QPInitAttrEx

if TYPE_CHECKING:
    from rnic.rdmacm.agent import Agent

_LACKS: dict[QPType, dict[QPState, tuple[str, ...]]] = {  # attributes that half a connection does not have
    QPType.XRC_SEND: {QPState.RTR: ("max_dest_rd_atomic", "min_rnr_timer")},
    QPType.XRC_RECV: {QPState.RTS: ("retry_cnt", "rnr_retry", "max_rd_atomic")},
}


class QueuePair(IdBase):
    """Calls of a CmId for a queue pair of its own."""

    def create_qp(
        self,
        pd: PD | None = None,
        init_attr: QPInitAttr | None = None,
        *,
        cap: QPCap | None = None,
        sq_sig_all: bool = False,
        qp_context: object = None,
    ) -> QP:
        """Create the id's queue pair (rdma_create_qp(3)); the id changes its states from then on.

        Without a protection domain it uses the device's, which ids share. Without `init_attr`, completion
        queues and channels are created, too: send_cq, recv_cq, send_cq_channel, recv_cq_channel. If the id
        has a shared receive queue, and `init_attr` names none, the queue pair uses the id's.
        """
        with registry.lock:
            self._check_may_connect("create_qp")
            agent = self.need_agent("create_qp")
            if self.qp_type in _LACKS:
                text = (
                    "a program makes queue pairs of XRC itself: PD.create_qp(), XRCD.create_qp(); connect() "
                    "and accept() take the qp_num"
                )
                raise VerbsError(EINVAL, text, "create_qp")
            if self.qp is not None:
                raise VerbsError(EINVAL, "the id has a queue pair", "create_qp")
            pd = pd or self.pd or agent.pd
            if pd.context is not agent.context:
                raise VerbsError(EINVAL, "the protection domain is of another context", "create_qp")
            qkey = self.qkey("create_qp") if self.is_datagram else 0
            if self.srq is not None and self.srq.xrcd is not None:
                text = "the id's shared receive queue is an XRC one, which connections do not take from"
                raise VerbsError(EINVAL, text, "create_qp")
            if init_attr is None:
                init_attr = self._make_cqs(agent, cap or QPCap(), sq_sig_all, qp_context)
            if init_attr.srq is None:
                init_attr = replace(init_attr, srq=self.srq)
            try:
                qp = _new_qp(pd, init_attr)
                to_init(qp, qkey)
            except BaseException:
                self._drop_cqs()
                raise
            self.qp, self.pd = qp, pd
            if not self.offers_ece:
                self.local_ece = _ece_of(qp)
            self.send_cq, self.recv_cq = init_attr.send_cq, init_attr.recv_cq
            return qp

    def create_qp_ex(self, init_attr: QPInitAttrEx) -> QPEx:
        """Create the id's queue pair with builders of work requests (rdma_create_qp_ex(3)).

        Without init_attr.pd it uses the device's protection domain.
        """
        return cast(QPEx, self.create_qp(cast("PD | None", init_attr.pd), init_attr))

    def _make_cqs(self, agent: Agent, cap: QPCap, sq_sig_all: bool, qp_context: object) -> QPInitAttr:
        context = agent.context
        self.send_cq_channel = context.create_comp_channel()
        send_cq = context.create_cq(max(cap.max_send_wr, 1), self.send_cq_channel, self)
        self.recv_cq_channel = context.create_comp_channel()
        recv_cq = context.create_cq(max(cap.max_recv_wr, 1), self.recv_cq_channel, self)
        self._own_cqs = [send_cq, recv_cq, self.send_cq_channel, self.recv_cq_channel]
        return QPInitAttr(send_cq, recv_cq, self.qp_type, sq_sig_all, cap, qp_context)

    def destroy_qp(self) -> None:
        """Destroy the id's queue pair, and the completion queues that create_qp() made
        (rdma_destroy_qp(3)).
        """
        with registry.lock:
            for group, leave in list(self.groups.items()):
                leave()
                self.groups.pop(group, None)
            if self.qp is not None:
                self.qp.close()
                self.qp = None
            self._drop_cqs()

    def _drop_cqs(self) -> None:
        if self._own_cqs:
            for one in self._own_cqs:
                one.close()
            self._own_cqs = []
            self.send_cq = self.recv_cq = self.send_cq_channel = self.recv_cq_channel = None

    def init_qp_attr(self, state: QPState) -> QPAttr:
        """The attributes that move a queue pair of the program to INIT, RTR or RTS (rdma_init_qp_attr(3)).

        Raises VerbsError: EINVAL if the peer has not answered yet, or the connection has ended.
        """
        with registry.lock:
            self._check_may_connect("init_qp_attr")
            self.need_agent("init_qp_attr")
            if self.is_datagram:
                return ud_attr(state, self.qkey("init_qp_attr"))
            return self._conn_attr(state, "init_qp_attr")

    def _conn_attr(self, state: QPState, verb: str) -> QPAttr:
        if state is QPState.INIT:
            return init_attr()
        if state not in (QPState.RTR, QPState.RTS):
            text = f"there are attributes for INIT, RTR and RTS, not for {state.name}"
            raise VerbsError(EINVAL, text, verb)
        conn = self.conversation
        attr = cast("Connection", conn).qp_attr(state) if conn is not None else None
        if attr is None:
            text = f"{state.name} needs what the peer answers: not connecting yet"
            raise VerbsError(EINVAL, text, verb)
        lacks = _LACKS.get(self.qp_type, {}).get(state)
        return replace(attr, **dict.fromkeys(lacks)) if lacks else attr


def _ece_of(qp: QP) -> ECE:
    """A vendor's options; none where there are none to offer, or the provider has no such verb."""
    try:
        offered = qp.query_ece()
        return offered if offered.options else ECE()
    except VerbsError as error:
        if error.errno != EOPNOTSUPP:
            raise
        return ECE()


def _new_qp(pd: PD, init_attr: QPInitAttr) -> QP:
    if isinstance(init_attr, QPInitAttrEx):
        return QPEx.create(replace(init_attr, pd=pd))
    return pd.create_qp(init_attr)
