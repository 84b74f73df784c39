# SPDX-License-Identifier: Apache-2.0
"""A peer of iWARP that has neither atomics nor immediate data: what patterns need of these says so."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from errno import EOPNOTSUPP

import pytest

import rnic
from patterns.ends import HOST, WAIT, queue_pair
from rnic import AccessFlags, QPAttr, QPState
from rnic.patterns.ports import CompareSwap, FetchAdd, QueuePairPort, Ring, Step
from rnic.verbs.stream import StreamAttr

ACCESS = AccessFlags.REMOTE_READ | AccessFlags.REMOTE_WRITE


def attach(qp: rnic.QP, sock: socket.socket, initiator: bool) -> None:
    """To a connection of ours, for which nothing is agreed on."""
    qp.modify(QPAttr(qp_state=QPState.INIT, port_num=1, qp_access_flags=ACCESS))
    qp.attach_stream(sock, StreamAttr(initiator=initiator, rfc7306=False))
    qp.modify(QPAttr(qp_state=QPState.RTS))


def test_atomics_and_doorbells_towards_a_peer_without_rfc_7306() -> None:
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server((HOST, 0)))
        ours, theirs = queue_pair(stack, "iwarp_lo"), queue_pair(stack, "iwarp_lo")
        attach(ours, socket.create_connection(listener.getsockname()), True)
        attach(theirs, listener.accept()[0], False)
        port, peer = QueuePairPort(ours), QueuePairPort(theirs)
        stack.callback(port.close)
        stack.callback(peer.close)
        window = peer.window(peer.memory(8))
        steps: list[Step] = [Ring(), FetchAdd(window, 0, 1, WAIT), CompareSwap(window, 0, 0, 1, WAIT)]
        for step in steps:
            with pytest.raises(
                rnic.PostError, match=r"no atomics and no immediate data \(RFC 7306\)"
            ) as found:
                port.do(step)
            assert found.value.errno == EOPNOTSUPP
