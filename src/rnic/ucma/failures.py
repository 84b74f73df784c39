# SPDX-License-Identifier: Apache-2.0
"""Calls that fail on purpose: `rnic run --fail rdma_connect=ENOMEM`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from typing import Any, Protocol

from rnic.errors import VerbsError
from rnic.rdmacm import PortSpace
from rnic.ucma.layouts import Cmd
from rnic.ucma.sockaddrs import AF_IB, family_of

# What a call of librdmacm writes first.
_CALLS: dict[int, str] = {
    Cmd.CREATE_ID: "rdma_create_id",
    Cmd.BIND_IP: "rdma_bind_addr",
    Cmd.BIND: "rdma_bind_addr",
    Cmd.RESOLVE_IP: "rdma_resolve_addr",
    Cmd.RESOLVE_ADDR: "rdma_resolve_addr",
    Cmd.RESOLVE_ROUTE: "rdma_resolve_route",
    Cmd.LISTEN: "rdma_listen",
    Cmd.CONNECT: "rdma_connect",
    Cmd.ACCEPT: "rdma_accept",
    Cmd.REJECT: "rdma_reject",
    Cmd.DISCONNECT: "rdma_disconnect",
    Cmd.INIT_QP_ATTR: "rdma_init_qp_attr",
    Cmd.SET_OPTION: "rdma_set_option",
    Cmd.JOIN_IP_MCAST: "rdma_join_multicast",
    Cmd.JOIN_MCAST: "rdma_join_multicast",
    Cmd.LEAVE_MCAST: "rdma_leave_multicast",
    Cmd.MIGRATE_ID: "rdma_migrate_id",
}


class Failing(Protocol):
    """A call that is to fail, and when."""

    @property
    def call(self) -> str:
        """Its name."""

    @property
    def errno(self) -> int:
        """What it fails with."""

    def hits(self, n: int, /) -> bool:
        """Whether call n fails, counted from 1."""


class Failures:
    """Counts the calls of all programs of a server; one thread uses it."""

    def __init__(self, rules: Iterable[Failing] = ()) -> None:
        self._rules = [rule for rule in rules if rule.call in _CALLS.values()]
        self._called: Counter[str] = Counter()

    def meet(self, command: int, fields: dict[str, Any]) -> None:
        """A program has called. Raises VerbsError if this call is to fail."""
        if not self._rules:
            return
        call = _CALLS.get(command)
        if call is None or _is_probe(command, fields):
            return
        self._called[call] += 1
        for rule in self._rules:
            if rule.call == call and rule.hits(self._called[call]):
                text = f"{call}: call {self._called[call]} is to fail: {os.strerror(rule.errno)}"
                raise VerbsError(rule.errno, text, "rdma_cm")


def _is_probe(command: int, fields: dict[str, Any]) -> bool:
    """Whether librdmacm calls, before the first call of the program: it tries to bind an id of RDMA_PS_IB to
    an address of InfiniBand.
    """
    if command == Cmd.CREATE_ID:
        return bool(fields["ps"] == PortSpace.IB)
    return command in (Cmd.BIND_IP, Cmd.BIND) and family_of(fields["addr"]) == AF_IB
