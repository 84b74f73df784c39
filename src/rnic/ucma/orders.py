# SPDX-License-Identifier: Apache-2.0
"""Orders to queue pairs of programs, which answers to commands carry: what the kernel's iw_cm does itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rnic.enums import QPState
from rnic.rdmacm.registry import registry
from rnic.records import values
from rnic.ucma.layouts import ORDER

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rnic.rdmacm.cm_id import CmId
    from rnic.rdmacm.service import Order

_KINDS = {QPState.RTS: 1, QPState.SQD: 2, QPState.ERR: 3}
"""enum order_kind."""


def taken(one: CmId | None) -> list[Order]:
    """What is to be done to an id's queue pair now: whoever takes it has it done."""
    with registry.lock:
        orders = (one.orders if one is not None else None) or []
        found = orders.copy()
        orders.clear()
        return found


def pack(order: Order) -> bytes:
    """The struct of an order."""
    attr, flags = order.attr, values(order.stream[2]) if order.stream is not None else {}
    flags.pop("early", None)  # the start-up reads no more than its frames,
    flags.pop("tell_ready", None)  # and nobody waits for what comes behind them
    assert attr.qp_state is not None
    return ORDER.write(
        guid=order.guid,
        qp_num=order.qp_num,
        kind=_KINDS[attr.qp_state],
        max_dest_rd_atomic=attr.max_dest_rd_atomic or 0,
        max_rd_atomic=attr.max_rd_atomic or 0,
        **flags,
    )


def descriptors(orders: Iterable[Order]) -> list[int]:
    """The sockets of the one that begins a connection: that, and the line."""
    return [sock.fileno() for order in orders if order.stream is not None for sock in order.stream[:2]]
