# SPDX-License-Identifier: Apache-2.0
"""Which device an id uses, RoCE or iWARP; and its TCP port there: who else has it, and when it is free."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from errno import EADDRINUSE, EADDRNOTAVAIL, ENODEV
from typing import Any

import pytest

import rnic
from rdmacm.ends import FAST, WAIT, expect, no_descriptors, other, resolve
from rdmacm.iwarp_peer import DEVICE, HERE, calling, joined, listening, resolved, service_of
from rdmacm.test_events import address, needs_root, remove
from rnic import VerbsError
from rnic.rdmacm import CmId, EventChannel, EventType, Option, PortSpace, create_ep, create_id, getaddrinfo
from rnic.rdmacm.registry import registry
from waiting import until

E_ = EventType


@contextmanager
def bound(port: int = 0, host: str = HERE, device: Any = DEVICE, **options: int) -> Iterator[CmId]:
    with create_id(timing=FAST, device=device) as one:
        for name, value in options.items():
            one.set_option(Option[name], value)
        one.bind_addr((host, port))
        yield one


@contextmanager
def program(host: str = HERE) -> Iterator[int]:
    """A program that knows nothing of RDMA, and its port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as sock:
        yield sock.getsockname()[1]


def left_behind() -> int:
    """A port that nobody has, where a connection of a program is in TIME_WAIT."""
    with socket.create_server((HERE, 0)) as sock, socket.create_connection(sock.getsockname()) as client:
        sock.accept()[0].close()
        assert not client.recv(1)
        port: int = sock.getsockname()[1]
    return port


def refused(call: Any, *words: Any, **options: Any) -> int:
    with pytest.raises(VerbsError) as caught, call(*words, **options):
        pass
    return caught.value.errno or 0


def devices_of(one: CmId) -> set[str]:
    return {agent.name for agent in one._agents}


def tcp_listens(port: int, host: str = HERE) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as sock:
        return sock.connect_ex((host, port)) == 0


# ------------------------------------------------------------------ the device


@pytest.mark.parametrize("transport", ["roce", "iwarp", None])
def test_the_first_device_that_serves_an_address_is_used(
    transport: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if transport:
        monkeypatch.setenv("RNIC_TRANSPORT", transport)
    else:
        monkeypatch.delenv("RNIC_TRANSPORT", raising=False)
    with bound(device=None) as one:
        assert devices_of(one) == {f"{transport or 'roce'}_lo"}
    with create_id(timing=FAST) as one:
        one.resolve_addr(None, (HERE, 9))
        assert devices_of(one) == {f"{transport or 'roce'}_lo"}
    with create_id(ps=PortSpace.UDP) as one:
        one.bind_addr((HERE, 0))
        assert devices_of(one) == {"roce_lo"}


def test_a_device_is_chosen_by_name_or_object_or_context() -> None:
    device = next(each for each in rnic.get_device_list() if each.name == DEVICE)
    with device.open() as context:
        for which in (DEVICE, device, context, device.guid_str):
            with bound(device=which) as one:
                assert devices_of(one) == {DEVICE}
            with bound(device=which, host="0.0.0.0") as one:
                assert devices_of(one) == {DEVICE}
            with create_id(timing=FAST, device=which) as one:
                one.resolve_addr(None, (HERE, 9))
                assert devices_of(one) == {DEVICE}


def test_a_device_that_is_not_there_is_named() -> None:
    with pytest.raises(VerbsError, match="no device iwarp_moon") as caught:
        create_id(device="iwarp_moon")
    assert caught.value.errno == ENODEV


@needs_root
def test_a_device_of_another_network_interface_has_not_the_address() -> None:
    made = ["ip", "link", "add", "rcm0", "type", "veth", "peer", "name", "rcm1"]
    if subprocess.run(made, check=False).returncode:
        pytest.skip("no veth here")
    try:
        subprocess.run(["ip", "link", "set", "rcm0", "up"], check=True)
        subprocess.run(["ip", "addr", "add", "10.78.0.1/24", "dev", "rcm0"], check=True)
        assert refused(bound, device="iwarp_rcm0") == EADDRNOTAVAIL
        with bound(device="iwarp_rcm0", host="10.78.0.1") as one:
            assert devices_of(one) == {"iwarp_rcm0"}
    finally:
        subprocess.run(["ip", "link", "del", "rcm0"], check=True)


@pytest.mark.parametrize("which", [DEVICE, "roce_lo"])
def test_messages_choose_a_device(which: str) -> None:
    with rnic.listen(HERE, 0, device=which) as listener, ThreadPoolExecutor(1) as pool:
        coming = pool.submit(listener.accept, WAIT)
        client = rnic.connect(HERE, listener.port, device=which)
        server = coming.result()
        assert [agent.context.name for agent in registry.agents()] == [which]
        client.send(b"hello")
        assert server.recv(WAIT) == b"hello"
        client.abort()
        server.abort()


def test_create_ep_chooses_a_device() -> None:
    with EventChannel() as channel, listening(channel) as listener:
        info = getaddrinfo(HERE, str(listener.get_src_port()))[0]
        with create_ep(info, device=DEVICE) as one:
            assert devices_of(one) == {DEVICE}


# ------------------------------------------------------------------ any address


@pytest.mark.parametrize(("host", "callers"), [("0.0.0.0", [HERE]), ("::", [HERE, "::1"])])
def test_who_listens_at_any_address_listens_on_both_transports(host: str, callers: list[str]) -> None:
    with EventChannel() as theirs, create_id(theirs, timing=FAST) as listener, EventChannel() as ours:
        listener.bind_addr((host, 0))
        listener.listen()
        assert devices_of(listener) == {"any"}
        for caller in callers:
            for device in ("roce_lo", "iwarp_lo"):
                with create_id(ours, timing=FAST, device=device) as one:
                    resolve(one, (caller, listener.get_src_port()))
                    one.create_qp()
                    one.connect()
                    with expect(theirs, E_.CONNECT_REQUEST).id as server:
                        assert devices_of(server) == {device}
                        assert listener.verbs is None
                        server.create_qp()
                        server.accept()
                        expect(ours, E_.ESTABLISHED)
                        expect(theirs, E_.ESTABLISHED)
                    expect(ours, E_.DISCONNECTED)


@pytest.mark.roce
def test_who_listens_at_any_address_hears_that_its_tcp_port_is_taken(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with program("0.0.0.0") as port, bound(port, "0.0.0.0", device=None):
        (said,) = [
            record for record in caplog.records if "peers over IWARP will not reach" in record.getMessage()
        ]
        assert said.levelname == "WARNING"
        assert str(port) in said.getMessage()


@pytest.mark.parametrize("first", ["roce", "iwarp"])
def test_a_tcp_port_of_another_program_takes_nothing_from_roce(
    first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs that never heard of iWARP bind the ports that they have always bound."""
    monkeypatch.setenv("RNIC_TRANSPORT", first)
    with program() as port:
        if first == "roce":
            with bound(port, "0.0.0.0", device=None):
                assert refused(bound, port, device="roce_lo") == EADDRINUSE
            with bound(port, device="roce_lo"):
                pass
        else:
            assert refused(bound, port, "0.0.0.0", device=None) == EADDRINUSE
        assert refused(bound, port, "0.0.0.0") == EADDRINUSE


def test_a_free_port_is_free_on_every_device(monkeypatch: pytest.MonkeyPatch) -> None:
    with program() as port:
        real = [port, port + 1, port + 2]
        monkeypatch.setattr("rnic.rdmacm.routes.ephemeral", lambda: real)
        with bound(0, "0.0.0.0", device=None) as one:
            assert one.get_src_port() in real[1:]
            for device in ("roce_lo", "iwarp_lo"):
                assert refused(bound, one.get_src_port(), device=device) == EADDRINUSE


def test_ids_without_connections_of_iwarp_take_no_tcp_port() -> None:
    with program() as port, create_id(ps=PortSpace.UDP) as one:
        one.bind_addr(("0.0.0.0", port))


@needs_root
@pytest.mark.parametrize(("host", "new"), [("0.0.0.0", "10.77.0.1"), ("::", "10.77.0.1"), ("::", "fd77::1")])
def test_a_listener_at_any_address_follows_new_ones(host: str, new: str) -> None:
    with EventChannel() as channel, create_id(channel, timing=FAST, device=DEVICE) as listener:
        listener.bind_addr((host, 0))
        listener.listen()
        port = listener.get_src_port()
        subprocess.run(["ip", "addr", "add", new, "dev", "lo"], check=True)
        try:
            until(lambda: tcp_listens(port, new), "it listens there")
        finally:
            remove(new)
        assert tcp_listens(port)


@needs_root
def test_an_address_that_goes() -> None:
    with address("10.77.0.1/32"), EventChannel() as channel, bound(0, "10.77.0.1") as one:
        one.migrate_id(channel)
        one.listen()
        remove("10.77.0.1/32")
        expect(channel, E_.ADDR_CHANGE)


# ------------------------------------------------------------------ the port


@pytest.mark.parametrize("host", [HERE, "0.0.0.0", "::1", "::"])
def test_a_port_that_another_program_has_is_in_use(host: str) -> None:
    with program("::1" if host == "::1" else HERE) as port:
        assert refused(bound, port, host) == EADDRINUSE


def test_a_port_of_an_id_is_in_use_for_everybody() -> None:
    with bound() as one:
        port = one.get_src_port()
        assert refused(bound, port) == EADDRINUSE
        with other(binds, port) as peer:
            assert peer.hear() == EADDRINUSE
        with socket.socket() as sock, pytest.raises(OSError, match="in use"):
            sock.bind((HERE, port))
        with socket.socket() as sock:
            assert sock.connect_ex((HERE, port)) != 0  # it does not listen
        one.listen()
        assert tcp_listens(port)
    with bound(port):  # it is free at once
        pass


@needs_root
def test_a_port_of_one_address_is_free_at_another() -> None:
    with address("10.77.0.1/32"), bound() as one, bound(one.get_src_port(), "10.77.0.1") as two:
        one.listen()
        two.listen()


def binds(way: Any, port: int) -> None:
    way.send(refused(bound, port))


def test_ids_of_the_two_transports_have_ports_of_their_own() -> None:
    with bound() as one, bound(one.get_src_port(), device="roce_lo"):
        pass


def test_a_port_can_be_bound_again_beside_old_connections() -> None:
    """The end that closes first is in TIME_WAIT, at the listener's port."""
    with joined() as pair:
        port = pair.server.get_src_port()
        pair.server.disconnect()
        expect(pair.server.channel, E_.DISCONNECTED)
        expect(pair.client.channel, E_.DISCONNECTED)
    with bound(port) as one:
        one.listen()


@pytest.mark.parametrize("host", [HERE, "::"])
def test_a_port_beside_old_connections_is_one_ids_alone(host: str) -> None:
    port = left_behind()
    with pytest.raises(OSError, match="in use"), socket.socket() as sock:
        sock.bind((HERE, port))
    with bound(port, host) as one:
        assert refused(bound, port) == EADDRINUSE
        assert refused(bound, port, REUSEADDR=1) == EADDRINUSE
        one.listen()
        assert tcp_listens(port)


def test_reuseaddr_is_the_sockets() -> None:
    with bound(REUSEADDR=1) as one:
        with bound(one.get_src_port(), REUSEADDR=1) as two:
            two.listen()
            with pytest.raises(VerbsError) as caught:
                one.listen()
            assert caught.value.errno == EADDRINUSE
            assert refused(bound, one.get_src_port()) == EADDRINUSE
        one.listen()
        assert tcp_listens(one.get_src_port())


@pytest.mark.parametrize("afonly", [0, 1])
def test_afonly_leaves_the_ports_of_ipv4_to_others(afonly: int) -> None:
    with program() as port:
        with socket.socket(socket.AF_INET6) as probe:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.bind(("::", port))
        if afonly:
            with bound(port, "::", AFONLY=1) as one:
                one.listen()
                assert tcp_listens(port, "::1")
        else:
            assert refused(bound, port, "::") == EADDRINUSE


def test_an_id_that_calls_may_choose_its_port() -> None:
    with bound() as one:
        port = one.get_src_port()
    with EventChannel() as theirs, listening(theirs) as listener, EventChannel() as ours:
        for _ in range(2):  # again at once, beside the connection before
            with create_id(ours, timing=FAST, device=DEVICE) as client:
                client.bind_addr((HERE, port))
                resolve(client, (HERE, listener.get_src_port()))
                client.create_qp()
                client.connect()
                with expect(theirs, E_.CONNECT_REQUEST).id as server:
                    assert server.get_dst_port() == port
                    server.create_qp()
                    server.accept()
                    expect(ours, E_.ESTABLISHED)
                    expect(theirs, E_.ESTABLISHED)
                    server.disconnect()
                    expect(theirs, E_.DISCONNECTED)
                    expect(ours, E_.DISCONNECTED)


def test_a_port_that_was_taken_to_call_from_is_given_back() -> None:
    with create_id(timing=FAST, device=DEVICE) as one:
        one.resolve_addr(None, (HERE, 9))
        port = one.get_src_port()
        assert refused(bound, port) == EADDRINUSE
    with bound(port):
        pass


# ------------------------------------------------------------------ descriptors and processes


def test_without_descriptors_a_listener_refuses_and_goes_on_later() -> None:
    with EventChannel() as channel, listening(channel) as listener:
        where = (HERE, listener.get_src_port())
        with socket.socket() as sock:
            sock.settimeout(WAIT)
            with no_descriptors(), pytest.raises(ConnectionResetError):
                sock.connect(where)
                sock.recv(1)
        until(lambda: service_of(listener).dropped == {"no descriptor or memory": 1}, "it is counted")
        with socket.create_connection(where, WAIT):
            until(lambda: len(service_of(listener)._watched) == 2, "the next one is taken")


def test_without_descriptors_nothing_is_bound_and_nobody_is_called() -> None:
    with resolved() as (_, _, client), create_id(device=DEVICE) as one:
        with no_descriptors(), pytest.raises(OSError, match="Too many open files"):
            one.bind_addr((HERE, 0))
        one.bind_addr((HERE, 0))
        client.connect()


def test_a_forked_child_leaves_the_connections_of_its_parent_alone() -> None:
    with joined() as pair:
        port = pair.server.get_src_port()
        child = os.fork()
        if not child:
            try:
                for end in (pair.client, pair.server):
                    end.destroy()
            finally:
                os._exit(0)
        assert os.waitpid(child, 0) == (child, 0)
        with pair.client.reg_msgs(bytearray(5)) as out, pair.server.reg_msgs(bytearray(5)) as into:
            pair.server.post_recv(into)
            pair.client.post_send(out)
            assert pair.server.get_recv_comp(WAIT).ok
        assert tcp_listens(port)
        with calling(port):
            pass
