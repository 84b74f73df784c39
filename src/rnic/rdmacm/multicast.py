# SPDX-License-Identifier: Apache-2.0
"""Multicast groups of datagram ids (rdma_join_multicast(3)), each an IP multicast address."""

from __future__ import annotations

import contextlib
from errno import EINVAL
from typing import TYPE_CHECKING

from rnic.errors import VerbsError
from rnic.rdmacm.channel import Event
from rnic.rdmacm.names import EventType, JoinFlags, UDParam
from rnic.rdmacm.sockaddr import SockAddr, parse
from rnic.verbs.ah import GID
from rnic.wire import PortSpace

if TYPE_CHECKING:
    from rnic.rdmacm.cm_id import CmId

MULTICAST_QPN = 0xFFFFFF


def group_of(addr: SockAddr, verb: str) -> GID:
    """The GID of a multicast group. Raises VerbsError: EINVAL for an address that is not multicast."""
    found = parse(addr, verb)
    if not found.ip.is_multicast:
        raise VerbsError(EINVAL, f"{found.ip} is not a multicast address", verb)
    return GID(found.ip)


def join(one: CmId, group: GID, flags: JoinFlags, context: object) -> None:
    """Attach the id's queue pair, and report the path to the group; a member that only sends needs no
    attachment.
    """
    agent = one.need_agent("join_multicast")
    attr = agent.service.join(one, group)
    qp, full = one.qp, flags is JoinFlags.FULLMEMBER
    qkey = one.qkey("join_multicast") if one.ps is not PortSpace.IPOIB else 0
    try:
        if full and qp is not None:
            qp.attach_mcast(group)
    except VerbsError as error:
        agent.service.leave(one, group)
        one.channel.put(Event(EventType.MULTICAST_ERROR, one, -(error.errno or EINVAL), arg=context))
        return

    def leave() -> None:
        agent.service.leave(one, group)
        if full and qp is not None and not qp.closed:
            with contextlib.suppress(VerbsError):
                qp.detach_mcast(group)

    one.groups[group] = leave
    param = UDParam(b"", attr, MULTICAST_QPN, qkey)
    one.channel.put(Event(EventType.MULTICAST_JOIN, one, param=param, arg=context))


def leave(one: CmId, group: GID) -> None:
    """Detach the id's queue pair from a group. Raises VerbsError: EINVAL if it has not joined."""
    undo = one.groups.pop(group, None)
    if undo is None:
        raise VerbsError(EINVAL, f"{group.ip} was not joined", "leave_multicast")
    undo()
