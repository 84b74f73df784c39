# SPDX-License-Identifier: Apache-2.0
"""A peer that says no hello disconnects: what becomes of the messages that are on their way to it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

import rnic
from conn.peers import HOST, WAIT
from conn.test_ends import together
from rdmacm.ends import expect
from rnic import QPState
from rnic.endpoint import Config, LostError
from rnic.rdmacm import CmId, ConnParam, EventChannel, EventType, create_id


def resolved(channel: EventChannel, port: int) -> CmId:
    one = create_id(channel)
    one.resolve_addr(None, (HOST, port))
    expect(channel, EventType.ADDR_RESOLVED)
    one.resolve_route()
    expect(channel, EventType.ROUTE_RESOLVED)
    return one


def disconnects(port: int, told: threading.Event) -> None:
    """Its queue pair goes to ERR, and sends the last acknowledgement before."""
    with EventChannel() as channel, resolved(channel, port) as one:
        one.create_qp()
        one.connect()
        expect(channel, EventType.ESTABLISHED)
        assert told.wait(WAIT)
        one.disconnect()
        expect(channel, EventType.DISCONNECTED)


def disconnects_with_its_own_queue_pair(port: int, told: threading.Event) -> None:
    """As programs of librdmacm may: the queue pair stays as it is, and repeats on RNR go on without end."""
    with EventChannel() as channel, resolved(channel, port) as one:
        context = one.verbs
        assert context is not None
        with (
            context.alloc_pd() as pd,
            context.create_cq(16) as cq,
            pd.create_qp(rnic.QPInitAttr(cq, cq, rnic.QPType.RC)) as qp,
        ):
            qp.modify(one.init_qp_attr(QPState.INIT))
            one.connect(ConnParam(qp_num=qp.qp_num))
            expect(channel, EventType.CONNECT_RESPONSE)
            for state in (QPState.RTR, QPState.RTS):
                qp.modify(one.init_qp_attr(state))
            one.establish()
            assert told.wait(WAIT)
            one.disconnect()
            expect(channel, EventType.DISCONNECTED)


# Over RoCE the SEND is repeated until the disconnect; over iWARP it ends the connection.
UNHEARD = "RNR_RETRY_EXC_ERR|without a goodbye|on their way"
OWN = pytest.param(disconnects_with_its_own_queue_pair, marks=pytest.mark.roce)


@pytest.mark.parametrize("client", [disconnects, OWN])
def test_a_message_that_meets_no_receive_does_not_keep_the_connection(
    client: Callable[[int, threading.Event], None],
) -> None:
    told = threading.Event()
    with rnic.listen(HOST, 0, config=Config(raw=True)) as server:

        def serve() -> None:
            with server.accept(WAIT) as conn, pytest.raises(LostError, match=UNHEARD):
                conn.send(b"nobody has posted a receive for it")
                told.set()
                conn.recv(WAIT)

        together(lambda: client(server.port, told), serve)
