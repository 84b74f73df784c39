# SPDX-License-Identifier: Apache-2.0
"""Traffic class, service level and flow label: what of an address vector goes into the IP header."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator

import pytest

import rnic
from rnic import GID, SGE, AHAttr, QPAttr, QPInitAttr, QPState, QPType, RecvWR, Route, SendFlags, SendWR
from rnic.testing import Address, End, Options, complete, prepare

pytestmark = pytest.mark.roce

QKEY, LOOPBACK = 9, "127.0.0.1"
IP_RECVTOS, IPV6_RECVTCLASS, IPV6_FLOWINFO = 13, 66, 11


@pytest.fixture
def stranger() -> Iterator[socket.socket]:
    """A plain socket where a peer would be, that sees the type of service of what comes."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.IPPROTO_IP, IP_RECVTOS, 1)
        sock.settimeout(60)
        sock.bind(("127.0.0.77", 4791))
        yield sock


def tos_of_next(sock: socket.socket) -> int:
    _, controls, _, _ = sock.recvmsg(8192, 256)
    ((level, kind, data),) = controls
    assert (level, kind) == (socket.IPPROTO_IP, socket.IP_TOS)
    return data[0]


@pytest.mark.parametrize(
    ("tclass", "sl", "tos"), [(0x68, 0, 0x68), (0, 3, 0x60), (0, 7, 0xE0), (0x6B, 3, 0x68), (0, 0, 0)]
)
def test_a_connections_packets_have_its_class(
    stranger: socket.socket, tclass: int, sl: int, tos: int
) -> None:
    """The lower two bits are not the program's: they tell of congestion (IBTA CA17-5)."""
    with End() as a:
        own = prepare(a.qp)
        a.qp.modify(
            QPAttr(
                qp_state=QPState.RTR,
                path_mtu=rnic.MTU.MTU_1024,
                dest_qp_num=5,
                rq_psn=0,
                max_dest_rd_atomic=1,
                min_rnr_timer=1,
                ah_attr=AHAttr(GID("127.0.0.77"), traffic_class=tclass, sl=sl),
            )
        )
        a.qp.modify(
            QPAttr(
                qp_state=QPState.RTS, sq_psn=own.psn, timeout=14, retry_cnt=7, rnr_retry=7, max_rd_atomic=1
            )
        )
        a.qp.post_send(SendWR(1, sg_list=[SGE(a.memory(3000))]))
        assert [tos_of_next(stranger) for _ in range(3)] == [tos] * 3


def datagram_qp(end: End) -> rnic.QP:
    qp = end.pd.create_qp(QPInitAttr(end.cq, end.cq, QPType.UD))
    qp.modify(QPAttr(qp_state=QPState.INIT, pkey_index=0, port_num=1, qkey=QKEY))
    qp.modify(QPAttr(qp_state=QPState.RTR))
    qp.modify(QPAttr(qp_state=QPState.RTS, sq_psn=0))
    return qp


def index_of(ctx: rnic.Context, address: str) -> int:
    found = [entry.gid_index for entry in ctx.query_gid_table() if entry.gid == GID(address)]
    if not found:
        pytest.skip(f"the loopback interface does not have {address}")
    return found[0]


@pytest.mark.parametrize(
    ("address", "given", "seen"),
    [
        (LOOPBACK, {"traffic_class": 0x48}, (0x48, 0, 2)),
        (LOOPBACK, {"sl": 5}, (0xA0, 0, 5)),
        (LOOPBACK, {"flow_label": 0xABCDE}, (0, 0, 0)),
        ("::1", {"sl": 1, "flow_label": 0xABCDE}, (0x20, 0xABCDE, 1)),
        ("::1", {"traffic_class": 0xFC, "flow_label": 1, "hop_limit": 9}, (0xFC, 1, 7)),
        ("::1", {"flow_label": 0xFFFFF}, (0, 0xFFFFF, 0)),
    ],
)
def test_a_datagram_arrives_with_what_its_handle_says(
    address: str, given: dict[str, int], seen: tuple[int, int, int]
) -> None:
    with End() as a, End() as b, datagram_qp(a) as qp_a, datagram_qp(b) as qp_b:
        into, out = b.memory(128), a.memory(5)
        out.buf[:] = b"hello"
        qp_b.post_recv(RecvWR(1, [SGE(into)]))
        attr = AHAttr(GID(address), index_of(a.ctx, address), **given)
        with a.pd.create_ah(attr) as ah:
            qp_a.post_send(
                SendWR(
                    1,
                    send_flags=SendFlags.SIGNALED,
                    sg_list=[SGE(out)],
                    ah=ah,
                    remote_qpn=qp_b.qp_num,
                    remote_qkey=QKEY,
                )
            )
            a.wait_ok()
            (wc,) = b.wait_ok()
        route = Route.from_grh(into.buf)
        assert (route.traffic_class, route.flow_label, wc.sl) == seen
        assert bytes(into.buf[40:45]) == b"hello"
        back = b.ctx.init_ah_from_wc(1, wc, into.buf)
        assert (back.traffic_class, back.flow_label, back.sl) == seen
        b.pd.create_ah(back).close()


def test_what_cannot_go_into_the_header_is_refused() -> None:
    with End() as a:
        for attr, number, words in (
            (AHAttr(GID(LOOPBACK), sl=8), errno.EINVAL, "priorities 0 to 7"),
            (AHAttr(GID(LOOPBACK), sl=1, traffic_class=0x40), errno.EINVAL, "is of priority 2"),
            (AHAttr(GID(LOOPBACK), flow_label=1 << 20), errno.EINVAL, "20 bits"),
            (AHAttr(GID("::1"), index_of(a.ctx, "::1"), flow_label=1 << 20), errno.EINVAL, "20 bits"),
            (AHAttr(GID(LOOPBACK), static_rate=1), errno.EOPNOTSUPP, "static_rate"),
        ):
            with pytest.raises(rnic.VerbsError, match=words) as caught:
                a.pd.create_ah(attr)
            assert caught.value.errno == number


def test_a_connection_over_ipv6_has_a_flow_label() -> None:
    with End() as a, End() as b:
        options = Options(address="::1")
        index_of(a.ctx, "::1")
        own_a, own_b = prepare(a.qp, options), prepare(b.qp, options)
        complete(b.qp, own_b, own_a, options)
        assert isinstance(own_a, Address)
        a.qp.modify(
            QPAttr(
                qp_state=QPState.RTR,
                path_mtu=own_a.mtu,
                dest_qp_num=own_b.qp_num,
                rq_psn=own_b.psn,
                max_dest_rd_atomic=1,
                min_rnr_timer=1,
                ah_attr=AHAttr(own_b.gid, index_of(a.ctx, "::1"), flow_label=0x12345, traffic_class=0x20),
            )
        )
        a.qp.modify(
            QPAttr(
                qp_state=QPState.RTS, sq_psn=own_a.psn, timeout=14, retry_cnt=7, rnr_retry=7, max_rd_atomic=1
            )
        )
        into, out = b.memory(100_000), a.memory(100_000)
        out.buf[:] = bytes(range(250)) * 400
        b.qp.post_recv(RecvWR(1, [SGE(into)]))
        a.qp.post_send(SendWR(1, send_flags=SendFlags.SIGNALED, sg_list=[SGE(out)]))
        a.wait_ok()
        b.wait_ok()
        assert bytes(into.buf) == bytes(out.buf)
        assert a.ctx.counters().tx_errors == 0
