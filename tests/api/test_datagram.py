# SPDX-License-Identifier: Apache-2.0
"""Datagrams through the provider seam: address handles, multicast groups, listeners, and ways."""

import errno
from collections.abc import Callable

import pytest

import rnic
from api.conftest import Objects
from api.recorder import Recorder
from rnic import AHAttr, QPType, SendFlags, SendWR, WCFlags, WROpcode

PATH = AHAttr(
    rnic.GID("10.0.0.2"), 1, hop_limit=3, traffic_class=4, flow_label=5, sl=6, dlid=7, src_path_bits=8
)
MAPPED = "00000000000000000000ffff"


def ipv4_grh(src: str, dst: str, tos: int = 8, ttl: int = 9) -> bytes:
    """What stands ahead of a datagram's payload, by the letter of RFC 791."""
    ip = bytearray(20)
    ip[0], ip[1], ip[8], ip[9] = 0x45, tos, ttl, 17
    ip[12:16], ip[16:20] = rnic.GID(src).raw[12:], rnic.GID(dst).raw[12:]
    total = sum(int.from_bytes(ip[i : i + 2], "big") for i in range(0, 20, 2))
    total = (total & 0xFFFF) + (total >> 16)
    ip[10:12] = (~total & 0xFFFF).to_bytes(2, "big")
    return bytes(20) + bytes(ip)


def test_an_address_handle_is_made_asked_and_given_back(objects: Objects) -> None:
    with objects.pd.create_ah(PATH) as ah:
        assert ah.pd is objects.pd
        assert ah.query() == PATH
        with pytest.raises(rnic.VerbsError, match=r"in use by .*AH"):
            objects.pd.close()
    assert objects.recorder.take() == [
        f"create_ah ah={MAPPED}0a000002,5,1,3,4,7,6,8,0,1,1",
        "query_ah",
        "destroy_ah",
    ]
    with pytest.raises(rnic.VerbsError, match="AH is closed"):
        ah.query()


def test_a_datagram_carries_its_way(objects: Objects) -> None:
    init = rnic.QPInitAttr(objects.cq, objects.cq, QPType.UD)
    with objects.pd.create_qp(init) as qp, objects.pd.create_ah(PATH) as ah:
        objects.recorder.take()
        wr = SendWR(1, WROpcode.SEND, SendFlags.SIGNALED, ah=ah, remote_qpn=0xABCDEF, remote_qkey=2**32 - 1)
        assert wr.ah is ah
        qp.post_send(wr)
        wr.opcode, wr.imm_data, wr.remote_qpn, wr.remote_qkey = WROpcode.SEND_WITH_IMM, 1, 2, 3
        qp.post_send(wr)
        wr.ah = None
        qp.post_send(wr)
        ways = [line.split()[6] for line in objects.recorder.take()]
        assert ways == [f"ud=1,{0xABCDEF},{2**32 - 1}", "ud=1,2,3", "ud=0,2,3"]


def test_a_closed_handle_cannot_be_posted(objects: Objects) -> None:
    ah = objects.pd.create_ah(PATH)
    wr = SendWR(ah=ah)
    ah.close()
    with pytest.raises(rnic.VerbsError, match="post_send: AH is closed"):
        objects.qp.post_send(wr)
    wr.ah = None
    objects.qp.post_send(wr)


def test_groups_are_joined_and_left(objects: Objects) -> None:
    objects.qp.attach_mcast("239.1.2.3")
    objects.qp.attach_mcast(rnic.GID("ff02::7"), 9)
    objects.qp.detach_mcast("239.1.2.3", 0)
    group = "ff020000000000000000000000000007"
    assert objects.recorder.take() == [
        f"attach_mcast qp={objects.qp.qp_num} {MAPPED}ef010203 0",
        f"attach_mcast qp={objects.qp.qp_num} {group} 9",
        f"detach_mcast qp={objects.qp.qp_num} {MAPPED}ef010203 0",
    ]


def test_a_dropped_queue_pair_leaves_its_groups_first(objects: Objects) -> None:
    qp = objects.pd.create_qp(rnic.QPInitAttr(objects.cq, objects.cq, QPType.UD))
    qp.attach_mcast("239.1.2.3")
    objects.recorder.take()
    with pytest.warns(ResourceWarning, match="unclosed QP"):
        del qp
    assert [line.split()[0] for line in objects.recorder.take()] == ["detach_mcast", "destroy_qp"]


def test_listeners(recorder: Recorder) -> None:
    with recorder.context as ctx:
        assert ctx.cm_slot() == 0x155
        with ctx.cm_listen(0x1061234, "10.0.0.1") as one, ctx.cm_listen(1, afonly=True, reuse=True):
            assert one.service_id == 0x1061234
            with pytest.raises(rnic.VerbsError, match="in use by Listener 0x1061234, Listener 0x1"):
                ctx.close()
        ctx.cm_listen(2, "0.0.0.0").close()
        assert (ctx.cm_watch(5), ctx.cm_watch_service(3, "10.0.0.1")) == (77, 78)
        assert recorder.take() == [
            "cm_slot",
            f"cm_listen 1061234 {MAPPED}0a000001 flags=0",
            f"cm_listen 1 {'00' * 16} flags=3",
            "cm_unlisten",
            "cm_unlisten",
            f"cm_listen 2 {MAPPED}00000000 flags=0",
            "cm_unlisten",
            "cm_watch 5",
            f"cm_watch_service 3 {MAPPED}0a000001",
        ]


@pytest.mark.parametrize(
    "verb",
    [
        "create_ah",
        "attach_mcast",
        "detach_mcast",
        "cm_listen",
        "cm_slot",
        "cm_watch",
        "cm_watch_service",
    ],
)
def test_a_verb_raises_what_the_provider_says(objects: Objects, verb: str) -> None:
    o = objects
    calls: dict[str, Callable[[], object]] = {
        "create_ah": lambda: o.pd.create_ah(PATH),
        "attach_mcast": lambda: o.qp.attach_mcast("239.0.0.1"),
        "detach_mcast": lambda: o.qp.detach_mcast("239.0.0.1"),
        "cm_listen": lambda: o.ctx.cm_listen(1),
        "cm_slot": o.ctx.cm_slot,
        "cm_watch": lambda: o.ctx.cm_watch(5),
        "cm_watch_service": lambda: o.ctx.cm_watch_service(1, "10.0.0.1"),
    }
    o.recorder.fail(verb, errno.EADDRINUSE, "taken")
    with pytest.raises(rnic.VerbsError, match=f"^{verb}: taken .EADDRINUSE.$"):
        calls[verb]()


def test_the_way_back_is_read_from_ipv4(objects: Objects) -> None:
    objects.recorder.complete(qp_num=5, wc_flags=WCFlags.GRH, sl=1, slid=2, dlid_path_bits=3)
    (wc,) = objects.cq.poll()
    grh = ipv4_grh("10.0.0.9", "10.0.0.1")
    assert objects.ctx.init_ah_from_wc(1, wc, grh) == AHAttr(
        rnic.GID("10.0.0.9"), 1, 1, 9, 8, sl=1, dlid=2, src_path_bits=3
    )
    assert rnic.Route.from_grh(memoryview(grh + b"payload")).dgid == rnic.GID("10.0.0.1")
    with objects.pd.create_ah_from_wc(wc, grh) as ah:
        assert ah.query().dgid == rnic.GID("10.0.0.9")
    with pytest.raises(rnic.VerbsError, match=r"sent to 239.1.1.1, .*: give sgid_index"):
        objects.ctx.init_ah_from_wc(1, wc, ipv4_grh("10.0.0.9", "239.1.1.1"))
    attr = objects.ctx.init_ah_from_wc(1, wc, ipv4_grh("10.0.0.9", "239.1.1.1"), sgid_index=1)
    assert attr.sgid_index == 1


def test_the_way_back_is_read_from_ipv6() -> None:
    first = 6 << 28 | 0x12 << 20 | 0xABCDE
    raw = first.to_bytes(4, "big") + bytes([0, 20, 17, 7]) + rnic.GID("fd00::9").raw + rnic.GID("fd00::1").raw
    route = rnic.Route.from_grh(raw)
    assert route == rnic.Route(rnic.GID("fd00::9"), rnic.GID("fd00::1"), 7, 0x12, 0xABCDE)


def test_an_ipv6_address_may_look_like_the_beginning_of_an_ipv4_header(objects: Objects) -> None:
    objects.recorder.complete(wc_flags=WCFlags.GRH)
    (wc,) = objects.cq.poll()
    sender = rnic.GID("fd00::4500:9")
    raw = (6 << 28).to_bytes(4, "big") + bytes([0, 20, 17, 7]) + sender.raw + rnic.GID("fd00::1").raw
    assert objects.ctx.init_ah_from_wc(1, wc, raw, sgid_index=1).dgid == sender


def test_what_is_no_header_is_refused(objects: Objects) -> None:
    objects.recorder.complete(wc_flags=0)
    objects.recorder.complete(wc_flags=WCFlags.GRH)
    bare, wc = objects.cq.poll(2)
    with pytest.raises(rnic.VerbsError, match="came without a GRH"):
        objects.ctx.init_ah_from_wc(1, bare, bytes(40))
    bad_sum = bytearray(ipv4_grh("10.0.0.9", "10.0.0.1"))
    bad_sum[30] ^= 1
    for grh in (bytes(40), bytes(39), bytes(bad_sum)):
        with pytest.raises(rnic.VerbsError, match="no GRH") as caught:
            objects.ctx.init_ah_from_wc(1, wc, grh)
        assert caught.value.errno == errno.EINVAL
