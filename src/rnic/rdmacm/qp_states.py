# SPDX-License-Identifier: Apache-2.0
"""The states of an id's queue pair that are the same over every wire: its beginning and its end."""

from __future__ import annotations

from errno import EBUSY
from functools import partial
from typing import Protocol

from rnic.enums import AccessFlags, QPState, QPType
from rnic.errors import VerbsError
from rnic.log import Log
from rnic.rdmacm.again import again
from rnic.verbs.qp import QP, QPAttr

_log = Log("rnic.rdmacm")

_ACCESS = AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_READ | AccessFlags.REMOTE_ATOMIC


class Movable(Protocol):
    """A queue pair, or what stands for one in another process."""

    @property
    def closed(self) -> bool:
        """It is no more."""

    @property
    def state(self) -> QPState:
        """Its state."""

    def modify(self, attr: QPAttr) -> None:
        """Move it to another state."""


def init_attr() -> QPAttr:
    """RESET to INIT, for a connected queue pair."""
    return QPAttr(qp_state=QPState.INIT, pkey_index=0, port_num=1, qp_access_flags=_ACCESS)


def ud_attr(state: QPState, qkey: int) -> QPAttr:
    """The attributes of a datagram queue pair, from RESET to RTS."""
    if state is QPState.INIT:
        return QPAttr(qp_state=state, pkey_index=0, port_num=1, qkey=qkey)
    if state is QPState.RTR:
        return QPAttr(qp_state=state)
    return QPAttr(qp_state=state, sq_psn=0)


def to_init(qp: QP, qkey: int) -> None:
    """Move a new queue pair of an id to INIT; a datagram one all the way to RTS."""
    if qp.qp_type is QPType.UD:
        for state in (QPState.INIT, QPState.RTR, QPState.RTS):
            qp.modify(ud_attr(state, qkey))
    else:
        qp.modify(init_attr())


def to_error(qp: Movable | None) -> None:
    """Flush all work: now, or when no process is stopped any more in the middle of a copy by this queue
    pair.
    """
    if qp is not None and not is_flushed(qp):
        again.attempt(qp, partial(_flushed, qp))


def _flushed(qp: Movable) -> bool:
    try:
        if not is_flushed(qp):
            qp.modify(QPAttr(qp_state=QPState.ERR))
    except VerbsError as error:  # its owner may close it at the same time
        _log.info("%r: %s", qp, error)
        return qp.closed or error.errno != EBUSY
    return True


def is_flushed(qp: Movable) -> bool:
    """Whether the queue pair does nothing any more: it touches no memory for posted work."""
    return qp.closed or qp.state in (QPState.RESET, QPState.ERR)
