# SPDX-License-Identifier: Apache-2.0
"""What an address may be, and what is said of one that cannot be had."""

from __future__ import annotations

from errno import EADDRINUSE, EINVAL
from typing import Any

import pytest

import rnic
from rnic.errors import VerbsError
from rnic.rdmacm import EventChannel, PortSpace, create_id

WAIT = 60  # seconds that no run takes


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
