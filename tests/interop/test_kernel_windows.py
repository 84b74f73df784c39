# SPDX-License-Identifier: Apache-2.0
"""Memory windows of type 2 and invalidation between rnic and the kernel, in both roles.

The requester uses what the responder shows.  The kernel does not look whether an access lies in the window,
only whether it lies in the window's region: what goes beyond a window is refused by rnic alone.
"""

from __future__ import annotations

import struct

import pytest
from ends import ALL_ACCESS, End, KernelEnd, Send
from link import Link, Wire
from program import MakePair, MiB, Pair, complete, u64

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("wire")]

SOURCE, AT, LONG = 64, 2 * MiB, 20_000  # where the requester's bytes are, and what the window shows
INBOX = 3 * MiB
REMOTE = ("REMOTE_WRITE", "REMOTE_READ", "REMOTE_ATOMIC")


@pytest.fixture
def shown(make_pair: MakePair) -> Pair:
    """Two ends; a window can be bound to the responder's region."""
    return make_pair(responder={"access": [*ALL_ACCESS, "MW_BIND"]})


def bind(responder: End, *access: str, at: int = AT, length: int = LONG) -> int:
    """The key of a new window that is bound."""
    key = responder.bind_mw(at, length, access or REMOTE)
    assert complete(responder)[0].opcode == "BIND_MW"
    return key


def through(key: int, opcode: str, addr: int, sg: list[tuple[int, int]], **more: int) -> Send:
    """A work request of the requester through the window."""
    return Send(opcode=opcode, sg=sg, remote_addr=addr, rkey=key, **more)


def address(responder: End, offset: int = AT) -> int:
    return responder.address.addr + offset


def refused(requester: End, wr: Send, status: str = "REM_ACCESS_ERR") -> None:
    requester.post_send(wr)
    assert [wc.status for wc in requester.poll(1)] == [status]
    assert requester.state() == "ERR"


def send_inv(requester: End, responder: End, key: int, length: int) -> None:
    """SEND with invalidate of that many bytes, all of which arrive."""
    data = bytes((i * 7 + length) & 0xFF for i in range(length))
    requester.store(SOURCE, data)
    responder.post_recv(5, [(INBOX, length + 1)])
    requester.post_send(Send(opcode="SEND_WITH_INV", sg=[(SOURCE, length)], invalidate_rkey=key, wr_id=6))
    assert complete(requester)[0].opcode == "SEND"
    (wc,) = complete(responder)
    assert (wc.wr_id, wc.opcode, wc.byte_len, wc.invalidated_rkey) == (5, "RECV", length, key)
    assert responder.load(INBOX, length) == data


def test_every_operation_goes_through_a_window(shown: Pair) -> None:
    requester, responder = shown
    key = bind(responder)
    data = bytes(i * 3 & 0xFF for i in range(LONG))
    requester.store(SOURCE, data)
    responder.store(AT - 64, b"\xee" * (LONG + 128))
    requester.post_send(through(key, "RDMA_WRITE", address(responder), [(SOURCE, LONG)]))
    complete(requester)
    assert responder.load(AT - 64, LONG + 128) == b"\xee" * 64 + data + b"\xee" * 64
    requester.post_send(through(key, "RDMA_READ", address(responder), [(INBOX, LONG)]))
    complete(requester)
    assert requester.load(INBOX, LONG) == data
    responder.store(AT, struct.pack("=Q", 40))
    add = through(key, "ATOMIC_FETCH_AND_ADD", address(responder), [(INBOX, 8)], compare_add=2)
    requester.post_send(add)
    complete(requester)
    assert (u64(requester, INBOX), u64(responder, AT)) == (40, 42)


def test_a_zero_based_window_begins_at_0(shown: Pair) -> None:
    requester, responder = shown
    key = bind(responder, *REMOTE, "ZERO_BASED")
    requester.store(SOURCE, b"from 0 on")
    requester.post_send(through(key, "RDMA_WRITE", 100, [(SOURCE, 9)]))
    complete(requester)
    assert responder.load(AT + 100, 9) == b"from 0 on"


@pytest.mark.parametrize(
    ("opcode", "granted", "length"),
    [
        ("RDMA_WRITE", "REMOTE_READ", 100),
        ("RDMA_READ", "REMOTE_WRITE", 100),
        ("ATOMIC_FETCH_AND_ADD", "REMOTE_WRITE", 8),
    ],
)
def test_what_a_window_does_not_grant_is_refused(shown: Pair, opcode: str, granted: str, length: int) -> None:
    requester, responder = shown
    key = bind(responder, granted)
    refused(requester, through(key, opcode, address(responder), [(SOURCE, length)]))


def test_a_key_of_another_tag_is_refused(shown: Pair) -> None:
    requester, responder = shown
    key = bind(responder)
    refused(requester, through(key ^ 1, "RDMA_WRITE", address(responder), [(SOURCE, 8)]))


def test_what_lies_beyond_the_window_is_refused(shown: Pair) -> None:
    requester, responder = shown
    if isinstance(responder, KernelEnd):
        pytest.skip("the kernel holds an access against the window's region only")
    key = bind(responder)
    refused(requester, through(key, "RDMA_WRITE", address(responder) + LONG - 7, [(SOURCE, 8)]))


def test_a_window_that_its_owner_invalidates_is_closed(shown: Pair) -> None:
    requester, responder = shown
    key = bind(responder)
    responder.post_send(Send(opcode="LOCAL_INV", sg=[], invalidate_rkey=key))
    assert complete(responder)[0].opcode == "LOCAL_INV"
    refused(requester, through(key, "RDMA_WRITE", address(responder), [(SOURCE, 8)]))


def test_a_send_invalidates_the_window(link: Link, shown: Pair) -> None:
    requester, responder = shown
    mtu = link.path_mtus[-1]
    for length in (1, 100, mtu, mtu + 1, 5 * mtu):
        key = bind(responder)
        requester.post_send(through(key, "RDMA_WRITE", address(responder), [(SOURCE, 8)]))
        complete(requester)
        send_inv(requester, responder, key, length)
    refused(requester, through(key, "RDMA_WRITE", address(responder), [(SOURCE, 8)]))


def test_of_many_windows_one_is_invalidated(shown: Pair) -> None:
    requester, responder = shown
    keys = [bind(responder, at=AT + i * 100, length=100) for i in range(20)]
    send_inv(requester, responder, keys[7], 10)
    for i, key in enumerate(keys):
        if i == 7:
            continue
        requester.store(SOURCE, bytes([i]) * 100)
        requester.post_send(through(key, "RDMA_WRITE", address(responder, AT + i * 100), [(SOURCE, 100)]))
        complete(requester)
        assert responder.load(AT + i * 100, 100) == bytes([i]) * 100
    refused(requester, through(keys[7], "RDMA_WRITE", address(responder, AT + 700), [(SOURCE, 8)]))


def test_a_key_that_may_not_be_invalidated_costs_the_connection(shown: Pair) -> None:
    """rnic answers with an access error; the kernel answers nothing, but its queue pair is in error, too."""
    requester, responder = shown
    responder.post_recv(5, [(INBOX, 100)])
    requester.post_send(
        Send(opcode="SEND_WITH_INV", sg=[(SOURCE, 8)], invalidate_rkey=responder.address.rkey)
    )
    (wc,) = responder.poll(1)
    assert (wc.wr_id, wc.status) == (5, "REM_INV_REQ_ERR")
    if not isinstance(responder, KernelEnd):
        assert [wc.status for wc in requester.poll(1)] == ["REM_ACCESS_ERR"]
    assert responder.state() == "ERR"


# ---------------------------------------------------------------- on the wire


def test_tshark_reads_what_rnic_sent(wire: Wire) -> None:
    wire.check()
