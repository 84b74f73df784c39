# SPDX-License-Identifier: Apache-2.0
"""The device follows its netdev: link, MTU, addresses, and its end."""

from __future__ import annotations

import errno
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import rnic
from rnic import (
    GID,
    MTU,
    SGE,
    AHAttr,
    EventType,
    PortState,
    QPState,
    RecvWR,
    SendFlags,
    SendWR,
    Transport,
    WCStatus,
)
from rnic.testing import Address, End, Options, complete, connect, prepare
from transport.netdev import Netdevs, ip, no_event, wait_event
from waiting import until

RTM_NEWADDR, RTM_DELADDR, IFA_ADDRESS, IFA_LOCAL = 20, 21, 1, 2
NLM_F_REQUEST, NLM_F_ACK, NLM_F_CREATE = 1, 4, 0x400
ONE, TWO, THREE = "10.99.0.1", "10.99.0.2", "10.99.0.3"


@pytest.fixture
def devs() -> Iterator[Netdevs]:
    with Netdevs() as made:
        made.address(made.a, f"{ONE}/24")
        yield made


@pytest.fixture(params=["roce", "iwarp"])
def device(devs: Netdevs, request: pytest.FixtureRequest) -> str:
    """The name of one of the devices on `devs.a`."""
    return f"{request.param}_{devs.a}"


def gids(ctx: rnic.Context) -> dict[str, int]:
    return {str(entry.gid.ip): entry.gid_index for entry in ctx.query_gid_table()}


# ------------------------------------------------------------------ link and MTU


def test_the_port_follows_the_link(devs: Netdevs, device: str) -> None:
    with rnic.open_device(device) as ctx:
        assert ctx.query_device().device_cap_flags & rnic.DeviceCap.PORT_ACTIVE_EVENT
        for down, up in (((devs.a, "down"), (devs.a, "up")), ((devs.b, "down"), (devs.b, "up"))):
            assert ctx.query_port().state is PortState.ACTIVE
            devs.link(*down)
            assert wait_event(ctx, EventType.PORT_ERR) == rnic.AsyncEvent(EventType.PORT_ERR, 1)
            assert ctx.query_port().state is PortState.DOWN
            devs.link(*up)
            assert wait_event(ctx, EventType.PORT_ACTIVE).element == 1
        assert ctx.query_port().state is PortState.ACTIVE


def test_events_come_while_a_program_polls(devs: Netdevs, device: str) -> None:
    with rnic.open_device(device) as ctx, ctx.create_cq(1) as cq:
        devs.link(devs.b, "down")

        def polled() -> bool:
            cq.poll()
            return ctx.query_port().state is PortState.DOWN

        until(polled, "the port goes down")
        assert wait_event(ctx, EventType.PORT_ERR).element == 1


def test_the_active_mtu_follows_the_netdevs(devs: Netdevs, device: str) -> None:
    with rnic.open_device(device) as ctx:
        for mtu, active in ((9000, MTU.MTU_4096), (1500, MTU.MTU_1024), (600, MTU.MTU_512)):
            devs.link(devs.a, "mtu", str(mtu))
            until(lambda active=active: ctx.query_port().active_mtu is active, f"MTU {mtu}")
        assert no_event(ctx)


@pytest.mark.roce
def test_a_path_mtu_beyond_the_active_one_is_taken_and_found_on_the_wire(devs: Netdevs) -> None:
    """As with rdma_rxe, whose loopback has no MTU. A neighbour that nobody is sends no ICMP, and no ACK."""
    big = Options(path_mtu=MTU.MTU_4096, timeout=8, retry_cnt=1)
    with End(f"roce_{devs.a}") as a, End(ctx=a.ctx) as b:
        assert a.ctx.query_port().active_mtu is MTU.MTU_1024
        connect(a.qp, b.qp, big)
        exchange(a, b, bytes(range(256)) * 40)
    ip("neigh", "add", TWO, "lladdr", "02:00:00:00:00:09", "dev", devs.a)
    for length in (4096, 20_000):  # one packet, and several that leave together
        with End(f"roce_{devs.a}") as a:
            complete(a.qp, prepare(a.qp, big), Address(GID(f"::ffff:{TWO}"), 77, 0, MTU.MTU_4096), big)
            sge = SGE(a.memory(length))
            a.qp.post_send(SendWR(1, send_flags=SendFlags.SIGNALED, sg_list=[sge]))
            assert a.wait()[0].status is WCStatus.RETRY_EXC_ERR
            assert a.ctx.counters().tx_too_long > 0


@pytest.mark.roce
def test_a_netdev_whose_mtu_is_too_small_has_a_port_that_is_down(devs: Netdevs) -> None:
    """And harms nobody else: a listener at all addresses is there at the others."""
    devs.address(devs.a, ONE)
    devs.link(devs.a, "mtu", "300")
    with End(f"roce_{devs.a}") as end:
        port = end.ctx.query_port()
        assert (port.state, port.active_mtu) == (PortState.DOWN, MTU.MTU_256)
        attr = end.qp.query()[0]
        assert attr.qp_state is QPState.RESET
        with (
            End(ctx=end.ctx) as other,
            pytest.raises(rnic.VerbsError, match=f"MTU of {devs.a} is 300, too small for RoCE: at least"),
        ):
            connect(end.qp, other.qp, Options(path_mtu=MTU.MTU_256))
        with rnic.listen("0.0.0.0", 0) as listener:

            def answer() -> None:
                with listener.accept(60) as conn:
                    conn.send(b"there")

            server = threading.Thread(target=answer)
            server.start()
            with rnic.connect("127.0.0.1", listener.port, timeout=60) as conn:
                assert conn.recv(60) == b"there"
            server.join()
        devs.link(devs.a, "mtu", "1500")
        until(lambda: end.ctx.query_port().state is PortState.ACTIVE, "the port is up")


def test_iwarp_goes_over_a_netdev_of_any_mtu(devs: Netdevs) -> None:
    for name in devs.a, devs.b:
        devs.link(name, "mtu", "100")
    with End(f"iwarp_{devs.a}") as a, End(f"iwarp_{devs.a}") as b:
        port = a.ctx.query_port()
        assert (port.state, port.active_mtu) == (PortState.ACTIVE, MTU.MTU_256)
        connect(a.qp, b.qp, Options(address=ONE))
        exchange(a, b, bytes(range(256)) * 40)
        devs.link(devs.a, "mtu", "9000")
        until(lambda: a.ctx.query_port().active_mtu is MTU.MTU_4096, "the MTU is known")
        exchange(b, a, bytes(range(256)) * 4000)


def test_iwarp_keeps_its_gid_as_long_as_it_is_open(devs: Netdevs) -> None:
    devs.link(devs.a, "address", "02:00:00:00:00:07")
    with rnic.open_device(f"iwarp_{devs.a}") as ctx:
        (before,) = ctx.query_gid_table()
        assert before.gid == GID("200:0:7::")
        devs.link(devs.a, "address", "02:00:00:00:00:08")
        devs.address(devs.a, f"{TWO}/24")
        devs.link(devs.a, "mtu", "600")
        until(lambda: ctx.query_port().active_mtu is MTU.MTU_512, "the changes are known")
        assert ctx.query_gid_table() == [before]
        assert no_event(ctx)


def test_another_netdevs_changes_are_no_concern(devs: Netdevs) -> None:
    with rnic.open_device(f"roce_{devs.a}") as ctx:
        devs.address(devs.b, f"{THREE}/24")
        devs.link(devs.b, "mtu", "1400")
        devs.address(devs.a, f"{TWO}/24")  # the kernel tells in order
        assert wait_event(ctx, EventType.GID_CHANGE).element == 1
        assert set(gids(ctx)) == {ONE, TWO}
        assert ctx.query_port().state is PortState.ACTIVE


def test_a_renamed_netdev_is_the_same(devs: Netdevs) -> None:
    with rnic.open_device(f"roce_{devs.a}") as ctx:
        devs.link(devs.a, "name", "rnicrenamed")
        devs.a = "rnicrenamed"
        devs.address(devs.a, f"{TWO}/24")
        wait_event(ctx, EventType.GID_CHANGE)
        assert set(gids(ctx)) == {ONE, TWO}


# ------------------------------------------------------------------ addresses


def test_an_address_keeps_its_index_and_an_empty_one_is_used_again(devs: Netdevs) -> None:
    with rnic.open_device(f"roce_{devs.a}") as ctx:
        assert gids(ctx) == {ONE: 0}
        devs.address(devs.a, f"{TWO}/24")
        assert wait_event(ctx, EventType.GID_CHANGE) == rnic.AsyncEvent(EventType.GID_CHANGE, 1)
        devs.address(devs.a, "fd00:99::1/64")
        wait_event(ctx, EventType.GID_CHANGE)
        assert gids(ctx) == {ONE: 0, TWO: 1, "fd00:99::1": 2}
        devs.remove(devs.a, f"{TWO}/24")
        wait_event(ctx, EventType.GID_CHANGE)
        assert gids(ctx) == {ONE: 0, "fd00:99::1": 2}
        assert ctx.query_gid(1, 1) == GID()
        with ctx.alloc_pd() as pd, pytest.raises(rnic.VerbsError, match="empty") as caught:
            pd.create_ah(AHAttr(GID(ONE), 1))
        assert caught.value.errno == errno.EINVAL
        devs.address(devs.a, f"{THREE}/24")
        wait_event(ctx, EventType.GID_CHANGE)
        assert gids(ctx) == {ONE: 0, THREE: 1, "fd00:99::1": 2}
        assert ctx.query_port().gid_tbl_len == 32


def change_address(message: int, address: str, netdev: str) -> None:
    """What `ip addr` does (rtnetlink(7)), without a process that ends first."""
    ip4 = socket.inet_aton(address)
    attributes = b"".join(struct.pack("HH4s", 8, kind, ip4) for kind in (IFA_ADDRESS, IFA_LOCAL))
    body = struct.pack("BBBBi", socket.AF_INET, 32, 0, 0, socket.if_nametoindex(netdev)) + attributes
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW) as kernel:
        flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE
        kernel.send(struct.pack("IHHII", 16 + len(body), message, flags, 1, 0) + body)
        assert struct.unpack_from("i", kernel.recv(4096), 16) == (0,)


def test_the_table_has_an_address_as_soon_as_the_kernel_has_it(devs: Netdevs) -> None:
    """RDMA-CM asks for the GID of an address as soon as a route has named it."""
    with rnic.open_device(f"roce_{devs.a}") as ctx:
        for _ in range(50):
            change_address(RTM_NEWADDR, TWO, devs.a)
            assert TWO in gids(ctx)
            change_address(RTM_DELADDR, TWO, devs.a)
            assert TWO not in gids(ctx)


def test_a_query_that_hears_of_an_address_first_has_its_socket_served(devs: Netdevs) -> None:
    """It takes the notice away from the engine thread, which sleeps on the sockets that it knew before."""
    with rnic.open_device(f"roce_{devs.a}") as ctx, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        for _ in range(50):
            change_address(RTM_NEWADDR, TWO, devs.a)
            assert TWO in gids(ctx)
            before = ctx.counters().drop_short
            other.sendto(b"x", (TWO, 4791))
            until(lambda before=before: ctx.counters().drop_short > before, "it is read")  # type: ignore[misc]
            change_address(RTM_DELADDR, TWO, devs.a)
            assert TWO not in gids(ctx)


def test_contexts_that_are_opened_later_have_the_same_indexes(devs: Netdevs) -> None:
    """Addresses that come are the last ones to each process, in whatever order they would be listed."""
    devs.address(devs.a, "fd00:99::1/64")
    table = {ONE: 0, "fd00:99::1": 1, TWO: 2, "fd00:99::2": 3}
    with rnic.open_device(f"roce_{devs.a}") as first:
        for address in (f"{TWO}/24", "fd00:99::2/64"):
            time.sleep(0.02)  # the kernel tells the age of an address in hundredths of a second
            devs.address(devs.a, address)
            wait_event(first, EventType.GID_CHANGE)
        assert gids(first) == table
    with rnic.open_device(f"roce_{devs.a}") as again:
        assert gids(again) == table


def test_an_address_whose_duplicate_check_runs_has_its_index_already(devs: Netdevs) -> None:
    """A process that looks meanwhile, one that has looked before and one that looks later count it alike."""
    device, new, table = f"roce_{devs.a}", "fd00:99::1", {ONE: 0, "fd00:99::1": 1, TWO: 2}
    for name, value in ("neigh/{}/retrans_time_ms", 200), ("conf/{}/router_solicitation_delay", 0):
        Path("/proc/sys/net/ipv6", name.format(devs.a)).write_text(str(value))  # a check takes a second else
    with rnic.open_device(device) as before:
        ip("addr", "add", f"{new}/64", "dev", devs.a)
        time.sleep(0.02)  # the kernel tells the age of an address in hundredths of a second
        devs.address(devs.a, f"{TWO}/32")
        until(lambda: TWO in gids(before), "the address that is usable at once")
        assert gids(before) in ({ONE: 0, TWO: 2}, table)
    with rnic.open_device(device) as meanwhile:
        assert gids(meanwhile) in ({ONE: 0, TWO: 2}, table)
        with rnic.open_device(device) as beside:
            for ctx in (meanwhile, beside):
                until(lambda ctx=ctx: new in gids(ctx), "its check is over")  # type: ignore[misc]
                assert gids(ctx) == table


def test_contexts_of_a_process_agree_on_what_has_gone(devs: Netdevs) -> None:
    devs.address(devs.a, f"{TWO}/32")
    with rnic.open_device(f"roce_{devs.a}") as first:
        devs.remove(devs.a, f"{ONE}/24")
        until(lambda: ONE not in gids(first), "the address has gone")
        with rnic.open_device(f"roce_{devs.a}") as second:
            assert gids(second) == gids(first) == {TWO: 1}
            devs.address(devs.a, f"{THREE}/32")
            for ctx in (first, second):
                until(lambda ctx=ctx: gids(ctx) == {THREE: 0, TWO: 1}, "the new one has the empty entry")  # type: ignore[misc]
            with rnic.open_device(f"roce_{devs.a}") as third:
                assert gids(third) == gids(first)


def test_an_index_that_somebody_names_waits_for_its_address(devs: Netdevs) -> None:
    devs.address(devs.a, f"{TWO}/24")
    with rnic.open_device(f"roce_{devs.a}") as ctx, ctx.alloc_pd() as pd:
        ah = pd.create_ah(AHAttr(GID(ONE), 1))
        for address, table in (
            (None, {ONE: 0}),
            (THREE, {ONE: 0, THREE: 2}),
            (TWO, {ONE: 0, TWO: 1, THREE: 2}),
            (None, {ONE: 0, THREE: 2}),
        ):
            if address:
                devs.address(devs.a, f"{address}/24")
            else:
                devs.remove(devs.a, f"{TWO}/24")
            wait_event(ctx, EventType.GID_CHANGE)
            assert gids(ctx) == table
        ah.close()
        devs.address(devs.a, "10.99.0.4/24")
        wait_event(ctx, EventType.GID_CHANGE)
        assert gids(ctx) == {ONE: 0, "10.99.0.4": 1, THREE: 2}


def test_an_address_whose_duplicate_check_runs_comes_when_it_is_over(devs: Netdevs) -> None:
    with rnic.open_device(f"roce_{devs.a}") as ctx:
        devs.link(devs.a, "addrgenmode", "eui64")
        devs.link(devs.a, "down")
        devs.link(devs.a, "up")
        until(lambda: any(one.startswith("fe80::") for one in gids(ctx)), "a link-local address")


def exchange(a: End, b: End, payload: bytes) -> None:
    """One message, every byte."""
    out, into = a.memory(len(payload)), b.memory(len(payload))
    out.buf[:] = payload
    b.qp.post_recv(RecvWR(1, [SGE(into)]))
    a.qp.post_send(SendWR(2, send_flags=SendFlags.SIGNALED, sg_list=[SGE(out)]))
    a.wait_ok()
    b.wait_ok()
    assert bytes(into.buf) == payload


def test_a_new_address_carries_traffic(devs: Netdevs) -> None:
    with End(f"roce_{devs.a}") as a, End(f"roce_{devs.a}") as b:
        devs.address(devs.a, f"{TWO}/24", "fd00:99::2/64")
        for end in (a, b):
            until(lambda end=end: len(gids(end.ctx)) == 3, "the addresses come")
        for address in (TWO, "fd00:99::2"):
            with (
                a.pd.create_qp(rnic.QPInitAttr(a.cq, a.cq)) as qp_a,
                b.pd.create_qp(rnic.QPInitAttr(b.cq, b.cq)) as qp_b,
            ):
                kept, a.qp, b.qp = (a.qp, b.qp), qp_a, qp_b
                connect(qp_a, qp_b, Options(address=address))
                exchange(a, b, bytes(range(256)) * 40)
                a.qp, b.qp = kept


def test_a_device_opens_while_the_duplicate_check_of_its_only_address_runs(devs: Netdevs) -> None:
    """Programs that open all devices of the list end otherwise, as Ceph's do."""
    ip("addr", "add", "fd00:99::1/64", "dev", devs.b)
    with End(f"roce_{devs.b}") as a, End(f"roce_{devs.b}") as b:
        for end in (a, b):
            until(lambda end=end: gids(end.ctx) == {"fd00:99::1": 0}, "its check is over")  # type: ignore[misc]
        connect(a.qp, b.qp, Options(address="fd00:99::1"))
        exchange(a, b, bytes(range(256)) * 40)


@pytest.mark.wire
def test_without_its_address_a_connection_fails_in_time(devs: Netdevs) -> None:
    devs.address(devs.a, f"{TWO}/24")
    with End(f"roce_{devs.a}") as a, End(f"roce_{devs.a}") as b:
        options = {"retry_cnt": 2, "timeout": 12}
        connect(a.qp, b.qp, Options(address=TWO, **options), Options(address=ONE, **options))
        exchange(a, b, b"before")
        devs.remove(devs.a, f"{TWO}/24")
        wait_event(a.ctx, EventType.GID_CHANGE)
        memory = a.memory(8)
        a.qp.post_send(SendWR(3, send_flags=SendFlags.SIGNALED, sg_list=[SGE(memory)]))
        (wc,) = a.wait()
        assert wc.status is WCStatus.RETRY_EXC_ERR
        assert a.ctx.counters().tx_errors >= 3


def test_a_path_with_a_smaller_mtu_is_told_by_a_counter(devs: Netdevs) -> None:
    for name in (devs.a, devs.b):
        devs.link(name, "mtu", "9000")
    ip("route", "add", "10.98.0.0/24", "dev", devs.a, "mtu", "1500")
    with End(f"roce_{devs.a}") as a:
        options = Options(address=ONE, retry_cnt=2, timeout=12)
        own = prepare(a.qp, options)
        assert own.mtu is MTU.MTU_4096
        complete(a.qp, own, Address(GID("10.98.0.2"), 17, 0, own.mtu), options)
        memory = a.memory(4096)
        a.qp.post_send(SendWR(3, send_flags=SendFlags.SIGNALED, sg_list=[SGE(memory)]))
        (wc,) = a.wait()
        assert wc.status is WCStatus.RETRY_EXC_ERR
        assert "tx_too_long" in wc.explain()
        assert a.ctx.counters().tx_too_long >= 3


@pytest.mark.wire
def test_a_connection_goes_on_when_its_address_is_back_in_time(devs: Netdevs) -> None:
    devs.address(devs.a, f"{TWO}/24")
    with End(f"roce_{devs.a}") as a, End(f"roce_{devs.a}") as b:
        connect(a.qp, b.qp, Options(address=TWO, timeout=16), Options(address=ONE, timeout=16))
        exchange(a, b, b"before")
        devs.remove(devs.a, f"{TWO}/24")
        wait_event(a.ctx, EventType.GID_CHANGE)
        wait_event(b.ctx, EventType.GID_CHANGE)
        out, into = a.memory(5), b.memory(5)
        out.buf[:] = b"after"
        b.qp.post_recv(RecvWR(1, [SGE(into)]))
        a.qp.post_send(SendWR(2, send_flags=SendFlags.SIGNALED, sg_list=[SGE(out)]))
        until(lambda: a.ctx.counters().tx_errors > 0, "a packet is tried")
        devs.address(devs.a, f"{TWO}/24")
        a.wait_ok()
        b.wait_ok()
        assert bytes(into.buf) == b"after"


# ------------------------------------------------------------------ the end


def test_a_netdev_that_goes_takes_its_device_along(devs: Netdevs, device: str) -> None:
    with End(device) as a, End(device) as b:
        connect(a.qp, b.qp)
        memory = a.memory(64)
        a.qp.post_recv([RecvWR(i, [SGE(memory)]) for i in range(3)])
        devs.link(devs.a, "down")
        devs.delete(devs.a)
        assert wait_event(a.ctx, EventType.DEVICE_FATAL).element is None
        done = a.wait(3)
        assert [(wc.wr_id, wc.status) for wc in done] == [(i, WCStatus.WR_FLUSH_ERR) for i in range(3)]
        assert a.qp.state is QPState.ERR
        assert a.ctx.query_gid_table is not None
        for call in (
            a.ctx.query_device,
            a.ctx.query_port,
            lambda: a.ctx.query_gid(1, 0),
            a.ctx.alloc_pd,
            lambda: a.ctx.create_cq(1),
            a.ctx.create_comp_channel,
            lambda: a.pd.alloc_mr(64, 0),
            lambda: a.pd.create_ah(AHAttr(GID(ONE))),
            lambda: a.pd.create_qp(rnic.QPInitAttr(a.cq, a.cq)),
            lambda: a.pd.create_srq(rnic.SRQInitAttr()),
            lambda: a.qp.modify(rnic.QPAttr(qp_state=QPState.RESET)),
            lambda: a.qp.post_send(SendWR(1)),
            lambda: a.ctx.set_pkeys([0xFFFF]),
        ):
            with pytest.raises(rnic.VerbsError, match=f"{devs.a} has gone") as caught:
                call()
            assert caught.value.errno == errno.EIO
        a.ctx.counters()
        assert no_event(a.ctx)
    with pytest.raises(rnic.VerbsError) as caught:
        rnic.open_device(device)
    assert caught.value.errno == errno.ENODEV


def test_no_two_devices_have_one_name(devs: Netdevs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RNIC_NAMES", f"roce_lo={devs.a}")
    with pytest.raises(rnic.VerbsError, match="the device on lo has the name roce_lo already"):
        rnic.get_device_list()
    monkeypatch.setenv("RNIC_NAMES", f"roce_lo={devs.a},roce_{devs.a}=lo")
    roce = [device for device in rnic.get_device_list() if device.transport is Transport.IB]
    assert {device.netdev: device.name for device in roce} == {
        "lo": f"roce_{devs.a}",
        devs.a: "roce_lo",
    }


def test_devices_with_one_mac_have_guids_of_their_own(devs: Netdevs) -> None:
    def guids() -> list[int]:
        return [device.guid for device in rnic.get_device_list() if device.netdev != "lo"]

    devs.address(devs.b, "10.99.1.1/24")
    for name in devs.a, devs.b:
        devs.link(name, "address", "02:00:00:00:00:05")
    found = guids()
    assert 0x000000FFFE000005 in found  # the RoCE one of that which was made earlier
    assert len(set(found)) == len(found) == 4
    assert guids() == found
