# SPDX-License-Identifier: Apache-2.0
"""Datagram ids: service resolution, and multicast groups."""

from __future__ import annotations

import os
import subprocess
from errno import ECONNREFUSED, ETIMEDOUT

import pytest

from rdmacm.ends import FAST, HASTY, LOOPBACKS, WAIT, expect, listening, resolve
from rnic import Faults, QPState, Route, VerbsError
from rnic.rdmacm import (
    UDP_QKEY,
    CmId,
    EventChannel,
    EventType,
    JoinFlags,
    Option,
    PortSpace,
    UDParam,
    create_id,
)
from rnic.wire import SidrStatus
from waiting import until

GROUP = "239.77.1.2"


def send_to(one: CmId, param: UDParam, text: bytes) -> None:
    assert one.pd
    assert param.ah_attr
    data = bytearray(text)
    with one.pd.create_ah(param.ah_attr) as ah, one.reg_msgs(data) as mr:
        one.post_ud_send(mr, ah=ah, remote_qpn=param.qp_num, remote_qkey=param.qkey)
        assert one.get_send_comp(WAIT).ok


@pytest.mark.parametrize("address", LOOPBACKS)
def test_a_service_is_resolved_and_takes_datagrams(address: str) -> None:
    with EventChannel() as ours, EventChannel() as theirs:
        with listening(theirs, address, PortSpace.UDP) as listener:
            with create_id(ours, PortSpace.UDP, timing=FAST) as one:
                one.set_option(Option.TOS, 0x88)
                resolve(one, (address, listener.get_src_port()))
                one.create_qp()
                one.connect(UDParam(b"x" * 180))
                request = expect(theirs, EventType.CONNECT_REQUEST)
                assert isinstance(request.param, UDParam)
                assert request.param.private_data == b"x" * 180
                with request.id as server:
                    assert server.get_peer_addr() == one.get_local_addr()
                    server.create_qp()
                    assert server.qp
                    room = bytearray(128)
                    with server.reg_msgs(room) as mr:
                        server.post_recv(mr)
                        server.accept(UDParam(b"y" * 136))
                        found = expect(ours, EventType.ESTABLISHED).param
                        assert isinstance(found, UDParam)
                        assert (found.qp_num, found.qkey) == (server.qp.qp_num, UDP_QKEY)
                        assert found.private_data == b"y" * 136
                        send_to(one, found, b"a datagram")
                        assert server.get_recv_comp(WAIT).byte_len == 50
                        assert room[40:50] == b"a datagram"
                        assert Route.from_grh(room).traffic_class == 0x88


def test_questions_beyond_the_backlog_are_refused() -> None:
    with EventChannel() as theirs, listening(theirs, ps=PortSpace.UDP, backlog=1) as listener:
        to = "127.0.0.1", listener.get_src_port()
        with EventChannel() as ours, EventChannel() as other:
            with create_id(ours, PortSpace.UDP, timing=FAST) as first:
                resolve(first, to)
                first.connect()
                until(lambda: listener.waiting == 1, "the first waits")
                with create_id(other, PortSpace.UDP, timing=FAST) as second:
                    resolve(second, to)
                    second.connect()
                    assert expect(other, EventType.UNREACHABLE).status == SidrStatus.REJECT
                    assert listener.waiting == 1
                with expect(theirs, EventType.CONNECT_REQUEST).id as server:
                    server.reject()
                    expect(ours, EventType.UNREACHABLE)


def test_a_service_that_says_no_is_not_there_or_does_not_answer() -> None:
    with EventChannel() as theirs, listening(theirs, ps=PortSpace.UDP) as listener:
        with EventChannel() as ours, create_id(ours, PortSpace.UDP, timing=FAST) as one:
            resolve(one, ("127.0.0.1", listener.get_src_port()))
            one.connect()
            with expect(theirs, EventType.CONNECT_REQUEST).id as server:
                server.reject(b"no")
                assert expect(ours, EventType.UNREACHABLE).status == 2
        with create_id(ps=PortSpace.UDP, timing=FAST) as one:
            one.resolve_addr(None, ("127.0.0.1", 9))
            one.resolve_route()
            with pytest.raises(VerbsError) as caught:
                one.connect()
            assert caught.value.errno == ECONNREFUSED
        with create_id(ps=PortSpace.UDP, timing=HASTY) as one:
            one.resolve_addr(None, ("127.0.0.1", listener.get_src_port()))
            one.resolve_route()
            assert one.verbs
            one.verbs.set_faults(Faults(loss=1.0))
            with pytest.raises(VerbsError) as caught:
                one.connect()
            assert caught.value.errno == ETIMEDOUT


@pytest.fixture
def multicast_route() -> None:
    if os.geteuid() == 0:
        subprocess.run(["ip", "route", "replace", "multicast", "239.0.0.0/8", "dev", "lo"], check=True)


@pytest.mark.usefixtures("multicast_route")
@pytest.mark.skipif(os.geteuid() != 0, reason="the loopback interface needs a route for groups")
def test_a_group_is_joined_sent_to_and_left() -> None:
    with EventChannel() as channel:
        with create_id(channel, PortSpace.UDP) as member, create_id(channel, PortSpace.UDP) as sender:
            params = []
            flags = (JoinFlags.FULLMEMBER, JoinFlags.SENDONLY_FULLMEMBER)
            for one, flag in zip((member, sender), flags, strict=True):
                one.bind_addr(("127.0.0.1", 0))
                one.create_qp()
                one.join_multicast_ex((GROUP, 0), flag, "mine")
                event = expect(channel, EventType.MULTICAST_JOIN)
                assert event.arg == "mine"
                params.append(event.param)
            assert isinstance(params[1], UDParam)
            assert (params[1].qp_num, params[1].qkey) == (0xFFFFFF, UDP_QKEY)
            room = bytearray(128)
            with member.reg_msgs(room) as mr:
                member.post_recv(mr)
                send_to(sender, params[1], b"to all")
                assert member.get_recv_comp(WAIT).byte_len == 46
                assert room[40:46] == b"to all"
            member.leave_multicast((GROUP, 0))
            with pytest.raises(VerbsError, match="was not joined"):
                member.leave_multicast((GROUP, 0))


def test_multicast_error() -> None:
    with EventChannel() as channel, create_id(channel, PortSpace.UDP) as one:
        one.bind_addr(("127.0.0.1", 0))
        one.create_qp().close()
        one.join_multicast((GROUP, 0))
        assert expect(channel, EventType.MULTICAST_ERROR).status < 0
        with pytest.raises(VerbsError, match="not a multicast address"):
            one.join_multicast(("10.1.2.3", 0))


def test_disconnect_of_a_datagram_id_moves_its_queue_pair_alone() -> None:
    with EventChannel() as ours, EventChannel() as theirs:
        with listening(theirs, "127.0.0.1", PortSpace.UDP) as listener:
            with create_id(ours, PortSpace.UDP, timing=FAST) as one:
                resolve(one, ("127.0.0.1", listener.get_src_port()))
                one.create_qp()
                with pytest.raises(VerbsError):
                    one.disconnect()  # it has asked nobody yet
                one.connect()
                with expect(theirs, EventType.CONNECT_REQUEST).id as server:
                    server.create_qp()
                    server.accept()
                    expect(ours, EventType.ESTABLISHED)
                    for end in (one, server):
                        end.disconnect()
                        assert end.qp is not None
                        assert end.qp.state is QPState.ERR
                assert not ours.has_events
                assert not theirs.has_events
