# SPDX-License-Identifier: Apache-2.0
"""Ids at any address, on a host whose network interfaces come, go and lack addresses."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from errno import EADDRINUSE
from ipaddress import ip_address
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest

import namespaces
import rnic
from rdmacm.ends import FAST, WAIT, Other, all_quiet, cm_threads, descriptors, expect, other, resolve
from rdmacm.iwarp_peer import REQUEST
from rnic import Transport, VerbsError
from rnic.rdmacm import CmId, EventChannel, EventType, IdState, Option, PortSpace, create_id, routes
from rnic.rdmacm.everywhere import DoorService
from rnic.rdmacm.ibcm import door as door_of
from rnic.rdmacm.ibcm import ear as ear_of
from rnic.rdmacm.ibcm import handing, outbox
from rnic.rdmacm.iwcm.guests import guests
from rnic.rdmacm.registry import registry
from rnic.wire import GSI_QKEY, CmMessage, Dreq, Rej, Req, SidrReq, service_id
from transport.netdev import Netdevs, ip
from transport.plain import datagram, sealed
from waiting import until

pytestmark = pytest.mark.own_way
DEVICES = ["roce", "iwarp"]
NOBODY, ANYBODY = 65534, 1234  # users


@pytest.fixture
def net() -> Iterator[Netdevs]:
    all_quiet()
    forkserver.ensure_running()  # outside: later tests have it, too
    with Netdevs() as net:
        yield net
        all_quiet()


def is_usable(address: str) -> bool:
    """Whether the kernel takes the address as this host: an interface that has just come up takes a while."""
    with suppress(OSError):
        return routes.way_to(ip_address(address)).direct
    return False


def give(net: Netdevs, name: str, address: str) -> None:
    net.address(name, f"{address}/64" if ":" in address else f"{address}/24")
    until(lambda: is_usable(address), "the address is usable")


def door() -> door_of.IbDoor:
    """The one of this process, while an id listens at any address."""
    assert registry._everywhere
    assert isinstance(registry._everywhere.service, DoorService)
    found = registry._everywhere.service._doors[Transport.IB]
    assert isinstance(found, door_of.IbDoor)
    return found


def answers(listener: CmId, address: str, device: str) -> None:
    """A connection from this process to a listener, at an address of a device."""
    with EventChannel() as ours, create_id(ours, timing=FAST, device=device) as client:
        resolve(client, (address, listener.get_src_port()))
        client.create_qp()
        client.connect()
        with expect(listener.channel, EventType.CONNECT_REQUEST).id as server:
            assert server.get_local_addr()[:2] == (address, listener.get_src_port())
            server.create_qp()
            server.accept()
            expect(ours, EventType.ESTABLISHED)
            expect(listener.channel, EventType.ESTABLISHED)
            assert server.verbs is not None
            assert server.verbs.name == device


@pytest.mark.parametrize("kind", DEVICES)
@pytest.mark.parametrize(
    ("where", "afonly", "another"),
    [("0.0.0.0", 0, "fe80::2/64"), ("::", 1, "10.77.1.1/24"), ("::", 0, "10.77.1.1/24")],
)
def test_an_interface_without_an_address_of_the_family_keeps_nobody_from_listening(
    net: Netdevs, kind: str, where: str, afonly: int, another: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on each host with Docker, where one end of a veth has an address of its own making alone."""
    here = "fd77::1" if ":" in where else "10.77.0.1"
    give(net, net.a, here)
    net.address(net.b, another)
    monkeypatch.setenv("RNIC_TRANSPORT", kind)
    with EventChannel() as channel, create_id(channel, timing=FAST) as listener:
        listener.set_option(Option.AFONLY, afonly)
        listener.bind_addr((where, 0))
        listener.listen()
        answers(listener, here, f"{kind}_{net.a}")


# ------------------------------------------------------------------ interfaces that come, go, and are many


@pytest.mark.parametrize("kind", DEVICES)
@pytest.mark.parametrize("where", ["0.0.0.0", "::"])
def test_an_interface_that_comes_or_comes_back_is_served(net: Netdevs, kind: str, where: str) -> None:
    with EventChannel() as channel, create_id(channel, timing=FAST) as listener:
        listener.bind_addr((where, 0))
        listener.listen()
        assert listener.verbs is None
        for here in ("10.77.0.1", "fd77::1") if where == "::" else ("10.77.0.1", "10.77.0.2"):
            give(net, net.a, here)
            answers(listener, here, f"{kind}_{net.a}")
        give(net, "lo", "10.77.9.1")
        answers(listener, "10.77.9.1", f"{kind}_lo")
        net.delete(net.a)
        ip("link", "add", net.a, "type", "veth", "peer", "name", net.b)
        for name in (net.a, net.b):
            net.link(name, "up")
        give(net, net.a, "10.77.0.1")
        answers(listener, "10.77.0.1", f"{kind}_{net.a}")
        assert listener.state is IdState.LISTEN


def test_an_interface_that_goes_leaves_nothing(net: Netdevs) -> None:
    """It would be closed with its device, whose place another one of the same index may take."""
    with EventChannel() as channel, create_id(channel, timing=FAST) as listener:
        listener.bind_addr(("0.0.0.0", 0))
        listener.listen()
        before = descriptors()
        for _ in range(2):
            give(net, net.a, "10.77.0.1")
            answers(listener, "10.77.0.1", f"roce_{net.a}")
            index = str(socket.if_nametoindex(net.a))
            net.delete(net.a)
            until(lambda: not registry.agents(), "the device is closed")
            until(lambda: descriptors() == before, "all descriptors are closed")
            ip("link", "add", net.a, "index", index, "type", "veth", "peer", "name", net.b)
            for name in (net.a, net.b):
                net.link(name, "up")
        assert listener.state is IdState.LISTEN


def test_an_id_hears_of_the_end_of_its_own_device_alone(net: Netdevs) -> None:
    """It is bound at any address, and goes by lo; a request to the listener has opened another device."""
    give(net, net.a, "10.77.0.1")
    with (
        EventChannel() as channel,
        EventChannel() as ours,
        create_id(channel, timing=FAST) as listener,
        create_id(ours, timing=FAST, device="roce_lo") as lasting,
        create_id(ours, timing=FAST) as one,
    ):
        listener.bind_addr(("0.0.0.0", 0))
        listener.listen()
        one.bind_addr(("0.0.0.0", 0))
        answers(listener, "10.77.0.1", f"roce_{net.a}")
        lasting.bind_addr(("127.0.0.1", 0))
        resolve(one, ("127.0.0.1", listener.get_src_port()))
        net.delete(net.a)
        until(lambda: [agent.name for agent in registry.agents()] == ["roce_lo"], "the device is closed")
        assert one.state is IdState.ROUTE_RESOLVED
        with pytest.raises(TimeoutError):
            ours.get_cm_event(0)


@pytest.mark.parametrize("kind", DEVICES)
@pytest.mark.parametrize("first", ["bind", "resolve"])
def test_an_id_that_is_bound_at_any_address_connects_from_its_port(
    net: Netdevs, kind: str, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RNIC_TRANSPORT", kind)
    give(net, net.a, "10.77.0.1")
    with (
        EventChannel() as channel,
        EventChannel() as ours,
        create_id(channel, timing=FAST) as listener,
        create_id(ours, timing=FAST) as one,
    ):
        listener.bind_addr(("10.77.0.1", 0))
        listener.listen()
        where, port = ("10.77.0.1", listener.get_src_port()), 0
        if first == "bind":
            one.bind_addr(("0.0.0.0", 0))
            port = one.get_src_port()
            one.resolve_addr(None, where)
        else:
            one.resolve_addr(("0.0.0.0", 0), where)
        expect(ours, EventType.ADDR_RESOLVED)
        one.resolve_route()
        expect(ours, EventType.ROUTE_RESOLVED)
        one.create_qp()
        one.connect()
        with expect(channel, EventType.CONNECT_REQUEST).id as server:
            peer = server.get_peer_addr()
            assert peer
            assert peer[:2] == ("10.77.0.1", port or one.get_src_port())
            server.create_qp()
            server.accept()
            expect(ours, EventType.ESTABLISHED)


@pytest.mark.usefixtures("net")
def test_what_strangers_ask_for_is_looked_at_only_so_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A look at an address asks the kernel more than once, with everybody waiting for the lock."""
    looks = []

    def is_ours(address: Any) -> bool:
        looks.append(address)
        return False

    monkeypatch.setattr(door_of, "_is_ours", is_ours)
    with EventChannel() as channel, create_id(channel, timing=FAST) as listener:
        listener.bind_addr(("0.0.0.0", 0))
        listener.listen()
        with registry.lock:
            for _ in range(1000):
                assert door()._agent_at(ip_address("10.77.0.9"), 0) is None
            assert len(looks) == 1
            for number in range(1000):
                door()._look_at(ip_address(f"10.78.{number // 250}.{number % 250}"), 0)
            assert len(looks) < 1000


def test_a_stranger_opens_a_device_of_iwarp_for_as_long_as_he_stays(net: Netdevs) -> None:
    give(net, net.a, "10.77.0.1")
    with EventChannel() as channel, create_id(channel, timing=FAST) as listener:
        listener.bind_addr(("0.0.0.0", 0))
        listener.listen()
        before = descriptors()
        for _ in range(2):
            with socket.create_connection(("10.77.0.1", listener.get_src_port())):
                until(registry.agents, "the device is opened")
            until(lambda: not registry.agents(), "the device is closed")
            until(lambda: descriptors() == before, "all descriptors are closed")
        answers(listener, "10.77.0.1", f"iwarp_{net.a}")


def test_a_connection_that_came_outlives_the_last_id_of_its_device(net: Netdevs) -> None:
    give(net, net.a, "10.77.0.1")
    with EventChannel() as channel, create_id(channel, timing=FAST) as listener, ExitStack() as stack:
        listener.bind_addr(("0.0.0.0", 0))
        listener.listen()
        with create_id(channel, device=f"iwarp_{net.a}") as other_id:
            other_id.bind_addr(("10.77.0.1", 0))
            (agent,) = registry.agents()
            peer = stack.enter_context(socket.create_connection(("10.77.0.1", listener.get_src_port())))
            until(lambda: guests._silent, "it is taken")
        peer.settimeout(0.5)
        with pytest.raises(TimeoutError):  # it is there yet
            peer.recv(1)
        assert registry.agents() == [agent]
        peer.sendall(REQUEST.emit())
        with expect(channel, EventType.CONNECT_REQUEST).id as server:
            server.reject()
        peer.settimeout(WAIT)
        assert peer.recv(1)
        until(lambda: not registry.agents(), "the device is closed")


def test_a_hundred_interfaces_cost_no_more_than_one(net: Netdevs) -> None:
    """As on a node of Kubernetes."""
    before = descriptors()
    with EventChannel() as channel, create_id(channel, timing=FAST) as listener:
        listener.bind_addr(("::", 0))
        listener.listen()
        few, threads = descriptors(), len(cm_threads())
    all_quiet()
    for i in range(0, 100, 2):
        ip("link", "add", f"many{i}", "type", "veth", "peer", "name", f"many{i + 1}")
        for each in (i, i + 1):
            net.address(f"many{each}", f"10.80.{each}.1/24")
            net.link(f"many{each}", "up")
    until(lambda: is_usable("10.80.99.1"), "the last one is usable")
    with EventChannel() as channel, create_id(channel, timing=FAST) as listener:
        listener.bind_addr(("::", 0))
        listener.listen()
        assert (descriptors(), len(cm_threads())) == (few, threads)
        assert few - before < 20
        answers(listener, "10.80.77.1", "roce_many77")
        answers(listener, "10.80.78.1", "iwarp_many78")


# ------------------------------------------------------------------ other processes


class Host:
    """The namespace of a test, as a host with other processes; and another one, at the cable's far end."""

    def __init__(self, net: Netdevs, stack: ExitStack) -> None:
        self._stack = stack
        self._space = f"/proc/{os.getpid()}/task/{threading.get_native_id()}/ns/net"
        give(net, net.a, "10.77.0.1")
        give(net, net.a, "10.77.0.2")
        self._far = stack.enter_context(other(far, net.b))
        net.link(net.b, "netns", str(self._far.hear()))
        self._far.way.send("it is yours")
        assert self._far.hear() == "up"

    def process(self, target: Callable[..., None], uid: int, *arguments: object) -> Other:
        return self._stack.enter_context(other(within, self._space, uid, target, *arguments))

    def hears(self, port: int, host: str = "10.77.0.1") -> Any:
        """What the far end gets of a listener: its port, or why it gets nothing."""
        self._far.way.send((host, port))
        return self._far.hear()


@pytest.fixture
def host(net: Netdevs) -> Iterator[Host]:
    with ExitStack() as stack:
        yield Host(net, stack)


def within(way: Any, space: str, uid: int, target: Callable[..., None], *arguments: object) -> None:
    with Path(space).open("rb") as file:
        namespaces.enter(file.fileno())
    if uid:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
    target(way, *arguments)


def far(way: Any, netdev: str) -> None:
    namespaces.unshare()
    way.send(os.getpid())
    way.recv()
    ip("addr", "add", "10.77.0.9/24", "dev", netdev)
    ip("link", "set", netdev, "up")
    ip("route", "add", "default", "via", "10.77.0.1")
    way.send("up")
    while True:
        host, port = way.recv()
        try:
            with rnic.connect(host, port, timeout=WAIT) as conn:
                way.send(int(conn.recv(WAIT)))
        except OSError as error:
            way.send(str(error))


def serve(way: Any, host: str) -> None:
    """Tells whoever comes its port."""
    with rnic.listen(host, 0) as listener:
        way.send(listener.port)
        listener.serve(lambda conn: conn.send(b"%d" % listener.port))


def hold(way: Any, device: str) -> None:
    """Has a device, and listens at none of its addresses."""
    with rnic.open_device(device):
        way.send("open")
        way.recv()


def hand_on(way: Any, name: str, message: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.sendto(message, name)
    way.send("sent")


def test_processes_at_any_address_each_have_their_requests(host: Host) -> None:
    """The kernel gives a request to any of them, by lot."""
    ports = [
        host.process(serve, uid, where).hear() for uid, where in ((0, "0.0.0.0"), (0, "::"), (0, "0.0.0.0"))
    ]
    assert [host.hears(port) for port in ports] == ports
    assert [host.hears(port, "10.77.0.2") for port in ports] == ports


def test_a_stopped_process_at_any_address_keeps_no_requests_from_others(host: Host) -> None:
    """A request is repeated until it meets a process that lives."""
    stopped = host.process(serve, 0, "0.0.0.0")
    stopped.hear()
    port = host.process(serve, 0, "0.0.0.0").hear()
    os.kill(stopped.process.pid, signal.SIGSTOP)
    assert host.hears(port) == port


@pytest.mark.parametrize("first", ["holder", "listener"])
def test_a_device_of_another_user_takes_nothing_from_a_listener(net: Netdevs, host: Host, first: str) -> None:
    if first == "holder":
        assert host.process(hold, NOBODY, f"roce_{net.a}").hear() == "open"
    port = host.process(serve, ANYBODY, "0.0.0.0").hear()
    if first == "listener":
        assert host.process(hold, NOBODY, f"roce_{net.a}").hear() == "open"
    assert host.hears(port) == port
    late = host.process(serve, NOBODY, "10.77.0.2").hear()
    assert host.hears(late, "10.77.0.2") == late
    every = host.process(serve, NOBODY, "0.0.0.0").hear()
    assert [host.hears(port), host.hears(every)] == [port, every]


def test_nobody_listens_at_an_address_that_a_listener_at_any_opens(host: Host) -> None:
    """The door opens the device for any request, and the device says that there is nobody."""
    port = host.process(serve, 0, "0.0.0.0").hear()
    assert "nobody listens there" in host.hears(port + 1)


def test_a_request_that_a_stranger_hands_on_is_not_taken(host: Host) -> None:
    """Another user may not say what has come to a port that is not theirs: it could name any source."""
    with rnic.listen("0.0.0.0", 0) as listener:
        name = handing.name_of_any(service_id(PortSpace.TCP, listener.port), 4)
        here = handing.sockaddr(ip_address("10.77.0.1"), 4791)
        message = handing.forwarded(b"?" * 280, here, here)
        there = handing.sockaddr(ip_address("127.0.0.1"), 4791)
        assert host.process(hand_on, NOBODY, name, message).hear() == "sent"
        assert host.process(hand_on, 0, name, handing.forwarded(b"?" * 280, here, there)).hear() == "sent"
        until(registry.agents, "what has come later is handled")
        assert [agent.name for agent in registry.agents()] == ["roce_lo"]


@pytest.mark.parametrize("kind", [handing.FORWARD, handing.OWNER_QUERY])
@pytest.mark.parametrize("where", ["192.0.2.99", "10.77.0.255"])
def test_words_about_addresses_of_others_shut_no_door(net: Netdevs, kind: int, where: str) -> None:
    give(net, net.a, "10.77.0.1")
    there = handing.sockaddr(ip_address(where), 4791)
    message = handing.HEADER.pack(handing.MAGIC, handing.VERSION, kind, 0, 0, 0, 0, 0, 0, 0, there, there)
    done = threading.Event()
    with (
        EventChannel() as channel,
        create_id(channel, timing=FAST) as listener,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger,
    ):
        stranger.setblocking(False)
        stranger.bind("\0rnic/test/stranger")
        listener.bind_addr(("0.0.0.0", 0))
        listener.listen()
        name = handing.name_of_any(service_id(PortSpace.TCP, listener.get_src_port()), 4)

        def talk() -> None:
            while not done.wait(0.005):
                with suppress(BlockingIOError):
                    stranger.sendto(message, name)

        talking = threading.Thread(target=talk)
        talking.start()
        try:
            done.wait(0.1)
            assert not registry.agents()
            answers(listener, "10.77.0.1", f"roce_{net.a}")
        finally:
            done.set()
            talking.join()
        with pytest.raises(BlockingIOError):
            stranger.recv(4096)


def test_a_listener_whose_name_is_taken_on_an_interface_keeps_nobody_from_it(net: Netdevs) -> None:
    give(net, net.a, "10.77.0.1")
    with (
        EventChannel() as channel,
        create_id(channel, timing=FAST) as robbed,
        create_id(channel, timing=FAST) as listener,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as thief,
    ):
        for one in (robbed, listener):
            one.bind_addr(("0.0.0.0", 0))
            one.listen()
        service = service_id(PortSpace.TCP, robbed.get_src_port())
        thief.bind(handing.name_of_any(service, 4, socket.if_nametoindex(net.a)))
        answers(listener, "10.77.0.1", f"roce_{net.a}")


def test_a_device_at_which_nobody_can_listen_refuses_and_closes(
    net: Netdevs, caplog: pytest.LogCaptureFixture
) -> None:
    """Strangers may send requests for ever: they are warned of once, and the device does not stay open."""
    give(net, net.a, "10.77.0.1")
    with (
        EventChannel() as channel,
        create_id(channel, timing=FAST) as robbed,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as thief,
    ):
        robbed.bind_addr(("0.0.0.0", 0))
        robbed.listen()
        service = service_id(PortSpace.TCP, robbed.get_src_port())
        thief.bind(handing.name_of_any(service, 4, socket.if_nametoindex(net.a)))
        packet = sealed(datagram(Req(service_id=1).to_mad(7).emit(), 1, GSI_QKEY))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:

            def is_open() -> bool:
                stranger.sendto(packet, ("10.77.0.1", 4791))
                return bool(registry.agents())

            for _ in range(3):
                until(is_open, "a request opens the device")
                with EventChannel() as ours, create_id(ours, timing=FAST, device="roce_lo") as client:
                    resolve(client, ("127.0.0.1", robbed.get_src_port()))
                until(lambda: not registry.agents(), "the devices are closed")
        said = [record for record in caplog.records if "hears nothing" in record.getMessage()]
        assert [record.levelname for record in said if record.levelname == "WARNING"] == ["WARNING"]
        thief.close()
        answers(robbed, "10.77.0.1", f"roce_{net.a}")


def test_interfaces_that_come_are_heard_where_another_user_has_a_device(net: Netdevs, host: Host) -> None:
    """Nobody can have UDP port 4791 of all addresses then."""
    assert host.process(hold, NOBODY, f"roce_{net.a}").hear() == "open"
    port = host.process(serve, ANYBODY, "0.0.0.0").hear()
    assert host.hears(port) == port
    ip("link", "add", "later0", "type", "veth", "peer", "name", "later1")
    for name, address in (("later0", "10.78.0.1"), ("later1", "10.79.0.1")):
        net.link(name, "up")
        give(net, name, address)
        assert host.hears(port, address) == port


def test_the_table_of_sockets_is_not_read_for_each_message(monkeypatch: pytest.MonkeyPatch) -> None:
    reads, now, here = 0, 10**12, ip_address("10.77.0.1")

    def read() -> list[tuple[bytes, int]]:
        nonlocal reads
        reads += 1
        return [(handing.sockaddr(here, 0), 7)]

    monkeypatch.setattr(handing, "_owners", read)
    monkeypatch.setattr(handing, "monotonic_ns", lambda: now)
    owners = handing.Owners()
    for _ in range(1000):
        assert owners.have(7, here)
        assert not owners.have(8, here)
        assert not owners.have(7, ip_address("10.77.0.2"))
    assert reads == 1
    now += 10**9
    assert owners.have(7, here)
    assert reads == 2


def test_an_id_that_gives_up_ipv4_keeps_its_port_at_open_devices(net: Netdevs) -> None:
    give(net, net.a, "10.77.0.1")
    with (
        EventChannel() as channel,
        create_id(channel, timing=FAST) as first,
        create_id(channel, timing=FAST) as both,
    ):
        first.bind_addr(("0.0.0.0", 0))
        first.listen()
        both.bind_addr(("::", 0))
        answers(first, "10.77.0.1", f"roce_{net.a}")
        service, index = service_id(PortSpace.TCP, both.get_src_port()), socket.if_nametoindex(net.a)
        names = [handing.name_of_any(service, version, at) for version in (4, 6) for at in (0, index)]
        assert all(map(handing.is_taken, names))
        both.set_option(Option.AFONLY, 1)
        assert [*map(handing.is_taken, names)] == [False, False, True, True]
        both.set_option(Option.AFONLY, 0)
        assert all(map(handing.is_taken, names))


@pytest.mark.usefixtures("net")
def test_requests_wait_for_room_and_nobody_waits_for_it() -> None:
    """A unix socket holds some ten datagrams, and who is to read them may be busy, or never do it."""
    requests = [sealed(datagram(Req(service_id=0x77).to_mad(i).emit(), 1, GSI_QKEY)) for i in range(200)]
    far, here = handing.sockaddr(ip_address("10.77.0.2"), 4791), ip_address("10.77.0.1")

    def hear_all() -> None:
        with registry.lock:
            for one in requests:
                door().heard(one, far, here, 0)

    with EventChannel() as channel, create_id(channel, timing=FAST) as listener:
        listener.bind_addr(("0.0.0.0", 0))
        listener.listen()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as box:
            box.settimeout(WAIT)
            box.bind(handing.name_of_any(0x77, 4))
            hear_all()
            assert [box.recv(4096)[handing.HEADER.size :] for _ in requests] == requests
            hear_all()
        until(lambda: not door()._outbox._boxes, "what waits for a process is given up with it")


@pytest.mark.usefixtures("net")
def test_names_that_nobody_reads_keep_no_request_from_others() -> None:
    """A stranger may have as many names as it likes, and their mailboxes stay full."""
    with EventChannel() as channel, create_id(channel, timing=FAST) as listener, ExitStack() as stack:
        listener.bind_addr(("0.0.0.0", 0))
        listener.listen()
        for number in range(2 * outbox._NAMES):
            mute = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
            mute.bind(f"\0rnic/test/mute/{os.getpid()}/{number}")
            with registry.lock:
                for _ in range(300):
                    assert door()._outbox.send(b"?", mute.getsockname().decode())
        assert len(door()._outbox._boxes) == outbox._NAMES
        heard = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        heard.settimeout(WAIT)
        heard.bind(f"\0rnic/test/heard/{os.getpid()}")
        with registry.lock:
            assert door()._outbox.send(b"request", heard.getsockname().decode())
            assert not door()._outbox.send(b"request", f"\0rnic/test/nobody/{os.getpid()}")
        assert heard.recv(64) == b"request"
        stack.close()
        until(lambda: not door()._outbox._boxes, "what waits for a process is given up with it")


def test_only_messages_that_need_an_answer_come_to_the_door() -> None:
    """Whatever else strangers send costs no step of Python: the kernel drops it."""

    def packet(data: bytes, dqpn: int = 1) -> bytes:
        return sealed(datagram(data, dqpn, GSI_QKEY))

    def mad(message: CmMessage) -> bytes:
        return message.to_mad(7).emit()

    req, other_class = mad(Req(service_id=1)), replace(Req(service_id=1).to_mad(7), mgmt_class=4)
    wanted = [packet(one) for one in (req, mad(SidrReq(service_id=1)), mad(Dreq()))]
    unwanted = [
        b"",
        b"?",
        packet(mad(Rej())),
        packet(req, 2),
        packet(req, 0x010001),
        packet(other_class.emit()),
    ]
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ear,
        socket.socket(ear.family, ear.type) as mouth,
    ):
        ear.bind(("127.0.0.1", 0))
        ear_of.attach(ear, ear_of.SO_ATTACH_FILTER, ear_of.REQUESTS_ALONE)
        for one in unwanted + wanted:
            mouth.sendto(one, ear.getsockname())
        assert [ear.recv(4096) for _ in wanted] == wanted


@pytest.mark.parametrize("where", ["127.0.0.1", "0.0.0.0", "::"])
def test_a_port_at_any_address_is_in_use_at_each(where: str) -> None:
    for one, two in (("0.0.0.0", where), (where, "0.0.0.0")):
        with rnic.listen(one, 0) as first, pytest.raises(VerbsError) as caught:
            rnic.listen(two, first.port)
        assert caught.value.errno == EADDRINUSE
        with rnic.listen(two, first.port):
            pass


@pytest.mark.parametrize("device", [None, "roce_lo"])
@pytest.mark.parametrize("where", ["127.0.0.1", "0.0.0.0", "::"])
def test_ids_share_a_port_if_all_say_so_and_one_listens(where: str, device: str | None) -> None:
    """As with librdmacm, whose kernel knows the ids of a host; here a process' own."""
    with EventChannel() as channel, ExitStack() as stack:
        one, two, three = (
            stack.enter_context(create_id(channel, timing=FAST, device=device)) for _ in range(3)
        )
        for each in (one, two):
            each.set_option(Option.REUSEADDR, 1)
        one.bind_addr((where, 0))
        port = one.get_src_port()
        two.bind_addr((where, port))
        with pytest.raises(VerbsError) as caught:
            three.bind_addr((where, port))
        assert caught.value.errno == EADDRINUSE
        one.listen()
        with pytest.raises(VerbsError) as caught:
            two.listen()
        assert (caught.value.errno, caught.value.verb) == (EADDRINUSE, "listen")
        answers(one, "127.0.0.1", "roce_lo")
        one.destroy()
        two.listen()
        answers(two, "127.0.0.1", "roce_lo")
        two.destroy()
        three.bind_addr((where, port))
        with create_id(channel, device=device) as late, pytest.raises(VerbsError) as caught:
            late.set_option(Option.REUSEADDR, 1)
            late.bind_addr((where, port))
        assert caught.value.errno == EADDRINUSE


def test_who_is_refused_a_port_takes_it_from_nobody(net: Netdevs) -> None:
    give(net, net.a, "10.77.0.1")
    with EventChannel() as channel, create_id(channel, timing=FAST) as listener:
        listener.bind_addr(("0.0.0.0", 0))
        listener.listen()
        port = listener.get_src_port()
        name = handing.name_of_any(service_id(PortSpace.TCP, port), 4)
        for where in ("0.0.0.0", "::", "0.0.0.0"):
            with create_id(channel) as late, pytest.raises(VerbsError) as caught:
                late.bind_addr((where, port))
            assert caught.value.errno == EADDRINUSE
            assert handing.is_taken(name)
        answers(listener, "10.77.0.1", f"roce_{net.a}")


def test_the_port_at_any_address_of_a_listener_with_an_open_request_can_be_bound_again() -> None:
    """By this process; to others its name is taken until the request is settled."""
    with (
        EventChannel() as theirs,
        EventChannel() as ours,
        create_id(ours, timing=FAST, device="roce_lo") as client,
    ):
        with create_id(theirs, timing=FAST) as listener:
            listener.bind_addr(("0.0.0.0", 0))
            listener.listen()
            port = listener.get_src_port()
            resolve(client, ("127.0.0.1", port))
            client.create_qp()
            client.connect()
            server = expect(theirs, EventType.CONNECT_REQUEST).id
        loopback = handing.name_of_any(service_id(PortSpace.TCP, port), 4, socket.if_nametoindex("lo"))
        with server:
            assert handing.is_taken(loopback)
            with create_id(theirs) as again:
                again.bind_addr(("0.0.0.0", port))
            server.create_qp()
            server.accept()
            expect(ours, EventType.ESTABLISHED)


def test_names_of_listeners_are_those_of_the_device() -> None:
    """The device has C's."""
    with rnic.open_device("roce_lo") as context:
        for address, name in (
            ("127.0.0.1", handing.name_at(9, ip_address("127.0.0.1"))),
            ("::1", handing.name_at(9, ip_address("::1"))),
            ("0.0.0.0", handing.name_of_any(9, 4, context.device.index)),
        ):
            assert not handing.is_taken(name)
            with context.cm_listen(9, rnic.GID(address)):
                assert handing.is_taken(name)


def test_groups_are_joined_beside_a_listener_at_any_address(net: Netdevs) -> None:
    """A group's socket has UDP port 4791, too."""
    give(net, net.a, "10.77.0.1")
    with rnic.listen("0.0.0.0", 0), EventChannel() as channel, create_id(channel, PortSpace.UDP) as one:
        one.bind_addr(("10.77.0.1", 0))
        one.create_qp()
        one.join_multicast(("239.7.7.7", 0))
        expect(channel, EventType.MULTICAST_JOIN)
        with rnic.listen("0.0.0.0", 0):
            assert registry.get_devices() == [one.verbs]  # none was opened for the listeners
