# SPDX-License-Identifier: Apache-2.0
"""The shared receive queue of an id (rdma_create_srq(3))."""

from __future__ import annotations

from errno import EINVAL
from typing import TYPE_CHECKING

from rnic.errors import VerbsError
from rnic.rdmacm.registry import registry
from rnic.verbs.pd import PD
from rnic.verbs.qp import QP
from rnic.verbs.srq import SRQ, SRQInitAttr

if TYPE_CHECKING:
    from rnic.rdmacm.agent import Agent

_DEFAULT = SRQInitAttr()


def domain_of(one: SharedReceives, pd: PD | None, verb: str) -> PD:
    """The protection domain that is named, else the id's, else the one that ids of its device share."""
    agent = one.need_agent(verb)
    pd = pd or one.pd or agent.pd
    if pd.context is not agent.context:
        raise VerbsError(EINVAL, "the protection domain is of another context", verb)
    return pd


class SharedReceives:
    """What a CmId can do with a shared receive queue."""

    qp: QP | None
    pd: PD | None
    srq: SRQ | None

    def need_agent(self, verb: str) -> Agent:
        """The agent of its device."""
        raise NotImplementedError

    def create_srq(self, pd: PD | None = None, init_attr: SRQInitAttr = _DEFAULT) -> SRQ:
        """Make the id's shared receive queue (rdma_create_srq(3)): post_recv() posts there from now on.

        A queue pair that create_qp() makes later takes its receives from it, and so may those of other ids
        (QPInitAttr.srq). Raises VerbsError: EINVAL when the id has one, or a queue pair, already.
        """
        with registry.lock:
            pd = domain_of(self, pd, "create_srq")
            if self.srq is not None or self.qp is not None:
                what = "queue pair" if self.srq is None else "shared receive queue"
                raise VerbsError(EINVAL, f"the id has a {what}", "create_srq")
            self.srq, self.pd = pd.create_srq(init_attr), pd
            return self.srq

    def destroy_srq(self) -> None:
        """Destroy it (rdma_destroy_srq(3)); EBUSY while queue pairs take from it."""
        with registry.lock:
            if self.srq is not None:
                self.srq.close()
                self.srq = None
