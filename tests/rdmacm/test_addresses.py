# SPDX-License-Identifier: Apache-2.0
"""What an address may be, and what is said of one that cannot be had."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from errno import EADDRINUSE, EADDRNOTAVAIL, EINVAL
from typing import Any

import pytest

import rnic
from rdmacm.ends import FAST, expect, resolve
from rdmacm.test_events import address, needs_root
from rnic.cli import exchange
from rnic.cli.lab3 import line
from rnic.errors import VerbsError
from rnic.rdmacm import EventChannel, EventType, PortSpace, create_id, getaddrinfo
from rnic.rdmacm.sockaddr import parse

WAIT = 180  # seconds that no run takes


@pytest.mark.parametrize(
    ("address", "complaint"),
    [
        (("127.0.0.1", "7471"), "a port is an int, not str"),
        ((None, 7471), "a host is a str, not NoneType"),
        ((b"127.0.0.1", 7471), "a host is a str, not bytes"),
        (7471, r"an address is a tuple \(host, port\), not 7471"),
        ("127.0.0.1", r"an address is a tuple \(host, port\), not '127.0.0.1'"),
    ],
)
def test_what_is_no_address_is_named(address: Any, complaint: str) -> None:
    with create_id() as one, pytest.raises(TypeError, match=f"bind_addr: {complaint}"):
        one.bind_addr(address)


@pytest.mark.parametrize("call", [rnic.connect, rnic.listen])
def test_a_port_of_the_command_line_is_a_text(call: Any) -> None:
    with pytest.raises(TypeError, match="a port is an int, not str"):
        call("127.0.0.1", "7471")


def test_a_host_without_a_name_is_refused() -> None:
    with pytest.raises(VerbsError, match="the host is empty") as caught:
        rnic.connect("", 7471)
    assert caught.value.errno == EINVAL


@pytest.mark.parametrize("host", ["nobody.invalid", "a..b"])
def test_a_name_that_cannot_be_looked_up_is_told_alike_everywhere(host: str) -> None:
    calls: dict[str, Callable[[], object]] = {
        "connect": lambda: rnic.connect(host, 7471),
        "listen": lambda: rnic.listen(host, 7471),
        "aio.connect": lambda: asyncio.run(rnic.aio.connect(host, 7471)),
        "aio.listen": lambda: rnic.aio.listen(host, 7471),
        "getaddrinfo": lambda: getaddrinfo(host, 7471),
        "lab3": lambda: line.connect(host, 7471, WAIT),
        "pingpong, perf": lambda: exchange.connect(host, 7471, WAIT),
    }
    said = re.compile(
        f"{host} port 7471: the host's name cannot be looked up: .*: check it, or give an address"
    )
    for name, call in calls.items():
        with pytest.raises(Exception, match=said) as caught:
            call()
        assert str(caught.value).count(host) == 1, name
        if isinstance(caught.value, OSError):
            assert caught.value.errno == EADDRNOTAVAIL


def test_a_port_that_is_taken_is_named() -> None:
    with rnic.listen("127.0.0.1", 0) as first:
        said = f"127.0.0.1 port {first.port} is in use on this host: choose another port"
        with pytest.raises(VerbsError, match=said) as caught:
            rnic.listen("127.0.0.1", first.port)
        assert caught.value.errno == EADDRINUSE


@pytest.mark.parametrize(("space", "said"), [("TCP", "REJECTED"), ("UDP", "UNREACHABLE")])
def test_a_service_that_nobody_offers_is_explained(space: str, said: str) -> None:
    with rnic.listen("127.0.0.1", 0) as gone:
        port = gone.port
    with EventChannel() as channel, create_id(channel, ps=PortSpace[space]) as one:
        one.resolve_addr(None, ("127.0.0.1", port))
        channel.get_cm_event(WAIT).ack()
        one.resolve_route()
        channel.get_cm_event(WAIT).ack()
        one.create_qp()
        one.connect()
        with channel.get_cm_event(WAIT) as event:
            assert event.explain().startswith(f"127.0.0.1 port {port}: nobody listens there ({said}, reason ")


@pytest.mark.parametrize(("source", "target"), [("0.0.0.0", "::1"), ("::1", "127.0.0.1")])
@pytest.mark.parametrize("bound", [False, True])
def test_source_and_target_are_of_one_family(source: str, target: str, bound: bool) -> None:
    with EventChannel() as channel, create_id(channel) as one:
        if bound:
            one.bind_addr((source, 0))
        before = one.state
        with pytest.raises(VerbsError, match="not of one family") as caught:
            one.resolve_addr(None if bound else (source, 0), (target, 9))
        assert caught.value.errno == EINVAL
        assert one.state is before
        assert not channel.has_events


@pytest.mark.parametrize(
    ("host", "to", "called"),
    [
        ("127.0.1.1", "127.0.1.1", "127.0.0.1"),  # what Debian's installer gives the host's own name
        ("127.0.0.1", "127.9.9.9", "127.0.0.1"),
        ("127.0.0.1", "0.0.0.0", "127.0.0.1"),
        ("0.0.0.0", "0.0.0.0", "127.0.0.1"),
        ("::1", "::", "::1"),
    ],
)
@pytest.mark.parametrize("source", [False, True])
@pytest.mark.parametrize("device", ["roce_lo", "iwarp_lo"])
@pytest.mark.own_way
def test_all_of_127_and_no_address_at_all_are_this_host(
    host: str, to: str, called: str, source: bool, device: str
) -> None:
    with (
        EventChannel() as theirs,
        create_id(theirs, timing=FAST, device=device) as listener,
        EventChannel() as ours,
        create_id(ours, timing=FAST, device=device) as one,
    ):
        listener.bind_addr((host, 0))
        listener.listen()
        if source:
            one.bind_addr((called, 0))
        resolve(one, (to, listener.get_src_port()))
        assert one.remote == parse((called, listener.get_src_port()), "test")
        one.create_qp()
        one.connect()
        with expect(theirs, EventType.CONNECT_REQUEST).id as server:
            assert server.get_local_addr()[0] == called
            server.create_qp()
            server.accept()
            expect(ours, EventType.ESTABLISHED)
            expect(theirs, EventType.ESTABLISHED)


@needs_root
def test_no_address_at_all_is_the_one_that_the_id_is_bound_to() -> None:
    with address("10.77.0.1/32"), EventChannel() as channel, create_id(channel) as one:
        one.bind_addr(("10.77.0.1", 0))
        one.resolve_addr(None, ("0.0.0.0", 9))
        assert one.get_peer_addr() == ("10.77.0.1", 9)


@needs_root
def test_an_address_of_127_that_an_interface_has_is_that_address() -> None:
    with address("127.0.0.2/8"), create_id() as one:
        one.bind_addr(("127.0.0.2", 0))
        assert one.get_local_addr()[0] == "127.0.0.2"
