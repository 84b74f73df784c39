# SPDX-License-Identifier: Apache-2.0
"""Names, endpoints, and the short words for work in several pieces."""

from __future__ import annotations

import re
import socket
from errno import EADDRNOTAVAIL

import pytest

import rnic
from rdmacm.ends import WAIT, joined
from rnic import SGE, VerbsError
from rnic.rdmacm import AddrInfo, IdState, PortSpace, create_ep, getaddrinfo
from rnic.verbs.qp import QPCap
from waiting import until


def test_a_name_is_looked_up_for_either_side() -> None:
    (there,) = getaddrinfo("127.0.0.1", 7471)
    assert (there.dst_addr, there.src_addr, there.family) == (("127.0.0.1", 7471), None, socket.AF_INET)
    (here,) = getaddrinfo("::1", "7471", AddrInfo(passive=True, numeric_host=True, ps=PortSpace.UDP))
    assert here.src_addr
    assert (here.src_addr[:2], here.dst_addr, here.ps) == (("::1", 7471), None, PortSpace.UDP)
    with pytest.raises(VerbsError, match=r"localhost port 1: the host.s name cannot be looked up") as caught:
        getaddrinfo("localhost", 1, AddrInfo(numeric_host=True))
    assert caught.value.errno == EADDRNOTAVAIL


@pytest.mark.parametrize("zone", ["nope", "2147483647", "9" * 30, "9" * 5000, "lo\0"])
def test_an_interface_that_is_not_there_is_named(zone: str) -> None:
    with pytest.raises(VerbsError, match=re.escape(f"there is no network interface {zone!r} here")) as caught:
        rnic.connect(f"fe80::1%{zone}", 7000)
    assert caught.value.errno == EADDRNOTAVAIL


def test_an_endpoint_goes_with_all_that_it_made() -> None:
    (passive,) = getaddrinfo("127.0.0.1", 0, AddrInfo(passive=True))
    listener = create_ep(passive)
    listener.listen()
    port = listener.get_src_port()
    (active,) = getaddrinfo("127.0.0.1", port)
    client = create_ep(active, cap=QPCap(max_send_wr=8))
    assert client.qp
    qp, cq = client.qp, client.send_cq
    assert cq
    for endpoint in (client, listener):
        endpoint.destroy()
        assert endpoint.state is IdState.DESTROYING
    assert qp.closed
    assert cq.closed
    (again,) = getaddrinfo("127.0.0.1", port, AddrInfo(passive=True))
    with create_ep(again) as taken:  # the port is free
        assert taken.get_src_port() == port
    with pytest.raises(VerbsError, match="no address to connect to"):
        create_ep(AddrInfo())


def test_pieces_are_gathered_here_and_scattered_there() -> None:
    with joined() as pair:
        text, room, back = bytearray(b"one two three"), bytearray(16), bytearray(16)
        mr, into = pair.client.reg_msgs(text), pair.server.reg_msgs(room)
        pair.server.post_recv(SGE(into, 8, 4), SGE(into, 0, 8), wr_id=3)
        pair.client.post_send(SGE(mr, 4, 4), SGE(mr, 0, 4), SGE(mr, 8, 4))
        assert pair.client.get_send_comp(WAIT).ok
        assert pair.server.get_recv_comp(WAIT).byte_len == 12
        assert room == b"one thretwo " + bytes(4)

        shared = pair.server.reg_write(room)
        readable = pair.server.reg_read(room)
        pair.client.post_write(mr, remote_addr=shared.addr, rkey=shared.rkey)
        assert pair.client.get_send_comp(WAIT).ok
        until(lambda: room[:13] == text, "it is there, which a completion of iWARP does not say")
        own = pair.client.reg_msgs(back)
        pair.client.post_read(SGE(own, 8, 8), SGE(own, 0, 8), remote_addr=readable.addr, rkey=readable.rkey)
        assert pair.client.get_send_comp(WAIT).ok
        assert back == room[8:] + room[:8]
        for region in (mr, into, shared, readable, own):
            region.close()
            assert region.closed
        with pytest.raises(VerbsError, match="is closed"):
            pair.client.post_send(mr)


def test_a_wait_for_a_completion_ends_in_time() -> None:
    with joined() as pair:
        with pytest.raises(TimeoutError):
            pair.client.get_send_comp(0.01)
        with pytest.raises(TimeoutError):
            pair.client.get_recv_comp(0)
