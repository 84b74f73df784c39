# SPDX-License-Identifier: Apache-2.0
"""Shared receive queues of ids: the id's queue pair, and those of other ids, take receives from them."""

from __future__ import annotations

from errno import EINVAL
from typing import cast

from rnic._nic import nic
from rnic.enums import SRQType
from rnic.errors import VerbsError
from rnic.rdmacm.id_base import IdBase
from rnic.rdmacm.registry import registry
from rnic.records import replace
from rnic.verbs.context import Context
from rnic.verbs.pd import PD
from rnic.verbs.srq import SRQ, SRQInitAttr, SRQInitAttrEx

_Made = nic.CQ | nic.CompChannel | nic.XRCD


def _completed(context: Context, init: SRQInitAttrEx, own: list[_Made]) -> SRQInitAttrEx:
    """With domain and completion queue, which an XRC one needs; what is made is noted in own, users first."""
    if init.xrcd is None:
        init = replace(init, xrcd=context.open_xrcd())
        assert init.xrcd is not None
        own.insert(0, init.xrcd)
    if init.cq is None:
        channel = context.create_comp_channel()
        own.insert(0, channel)
        init = replace(init, cq=context.create_cq(init.attr.max_wr or 1, channel))
        assert init.cq is not None
        own.insert(0, init.cq)
    return init


def _close(own: list[_Made]) -> None:
    for one in own:
        one.close()


class SharedReceives(IdBase):
    """Calls of a CmId for a shared receive queue of its own."""

    def create_srq(self, pd: PD | None = None, init_attr: SRQInitAttr | None = None) -> SRQ:
        """Create the id's shared receive queue (rdma_create_srq(3)); create_qp() of this id uses it, and
        other ids may.

        Without a protection domain it uses the device's. From now on post_recv() posts to it. Raises
        VerbsError: EINVAL if the id has no device yet, or already has a shared receive queue or a queue pair.
        """
        init_attr = init_attr or SRQInitAttr()
        return self.create_srq_ex(
            SRQInitAttrEx(pd, attr=init_attr.attr, srq_context=init_attr.srq_context), "create_srq"
        )

    def create_srq_ex(self, init_attr: SRQInitAttrEx, verb: str = "create_srq_ex") -> SRQ:
        """Create the id's shared receive queue, of any type (rdma_create_srq_ex(3)).

        An XRC one without a completion queue gets one with a channel: recv_cq and recv_cq_channel. Without an
        XRC domain it gets a new one, `srq.xrcd`.
        """
        with registry.lock:
            agent = self.need_agent(verb)
            if self.srq is not None or self.qp is not None:
                what = "queue pair" if self.srq is None else "shared receive queue"
                raise VerbsError(EINVAL, f"the id has a {what}", verb)
            pd = cast("PD", init_attr.pd or self.pd or agent.pd)
            if pd.context is not agent.context:
                raise VerbsError(EINVAL, "the protection domain is of another context", verb)
            init_attr = replace(init_attr, pd=pd)
            own: list[_Made] = []
            try:
                if init_attr.srq_type is SRQType.XRC:
                    init_attr = _completed(agent.context, init_attr, own)
                self.srq = agent.context.create_srq_ex(init_attr)
            except BaseException:
                _close(own)
                raise
            self._of_srq = own
            self.pd = pd
            if own and init_attr.cq is not None:
                self.recv_cq, self.recv_cq_channel = init_attr.cq, init_attr.cq.channel
            return self.srq

    def destroy_srq(self) -> None:
        """Destroy the id's shared receive queue, and what was made with it (rdma_destroy_srq(3)).

        Raises VerbsError: EBUSY while queue pairs use it.
        """
        with registry.lock:
            if self.srq is None:
                return
            self.srq.close()
            own, self._of_srq, self.srq = self._of_srq, [], None
            if self.recv_cq in own:
                self.recv_cq = self.recv_cq_channel = None
            _close(own)
