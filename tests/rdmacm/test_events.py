# SPDX-License-Identifier: Apache-2.0
"""Every type of event, provoked."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import ENETUNREACH, ENODEV, ETIMEDOUT
from typing import Any

import pytest

from rdmacm.ends import (
    FAST,
    HASTY,
    NOBODY,
    QUICK,
    UNWANTED,
    all_quiet,
    expect,
    ib_of,
    joined,
    listening,
    resolve,
    resolved,
)
from rnic import EventType as AsyncEventType
from rnic import Faults, QPAttr, QPState, VerbsError
from rnic.rdmacm import ConnParam, EventChannel, EventType, IdState, create_id, resolve_addrinfo
from rnic.rdmacm.registry import registry
from waiting import until

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="changes the network")


@contextmanager
def address(text: str) -> Iterator[None]:
    """An address on the loopback interface, before anything is opened there."""
    all_quiet()
    subprocess.run(["ip", "addr", "add", text, "dev", "lo"], check=True)
    try:
        yield
    finally:
        with suppress(subprocess.CalledProcessError):
            remove(text)


def remove(text: str) -> None:
    subprocess.run(["ip", "addr", "del", text, "dev", "lo"], check=True, stderr=subprocess.DEVNULL)


def test_rejected_by_nobody() -> None:
    with EventChannel() as channel, create_id(channel, timing=FAST) as one:
        resolve(one, ("127.0.0.1", 9))
        one.create_qp()
        one.connect()
        assert expect(channel, EventType.REJECTED).status == NOBODY
        qp = one.qp
        assert qp
        until(lambda: qp.state is QPState.ERR, "the queue pair goes to ERR behind the event, which says why")
        one.disconnect()
        assert not channel.has_events


@pytest.mark.roce
def test_rejected_by_the_application_with_its_words() -> None:
    with resolved() as (ours, theirs, one):
        one.create_qp()
        one.connect()
        with expect(theirs, EventType.CONNECT_REQUEST).id as server:
            with pytest.raises(VerbsError, match="can carry 148"):
                server.reject(b"x" * 149)
            server.reject(b"not today")
            event = expect(ours, EventType.REJECTED)
            assert event.status == 28
            assert event.param
            assert event.param.private_data.startswith(b"not today")


def test_rejected_when_the_backlog_is_full_or_the_listener_goes() -> None:
    with EventChannel() as ours, EventChannel() as theirs, listening(theirs, backlog=1) as listener:
        with create_id(ours, timing=FAST) as first, create_id(ours, timing=FAST) as second:
            for one in (first, second):
                resolve(one, ("127.0.0.1", listener.get_src_port()))
                one.create_qp()
            first.connect()
            until(lambda: listener.waiting == 1, "the request waits")
            second.connect()
            event = expect(ours, EventType.REJECTED)
            assert (event.id, event.status) == (second, UNWANTED)
            listener.destroy()
            event = expect(ours, EventType.REJECTED)
            assert (event.id, event.status) == (first, UNWANTED)


@pytest.mark.roce
def test_unreachable() -> None:
    with EventChannel() as ours, create_id(ours, timing=HASTY) as one:
        resolve(one, ("127.0.0.1", 9))
        one.create_qp()
        assert one.verbs
        one.verbs.set_faults(Faults(loss=1.0))
        one.connect()
        assert expect(ours, EventType.UNREACHABLE).status == -ETIMEDOUT


@pytest.mark.roce
def test_unreachable_for_the_one_that_accepts() -> None:
    with resolved(timing=QUICK) as (ours, theirs, one):
        one.create_qp()
        one.connect()
        with expect(theirs, EventType.CONNECT_REQUEST).id as server:
            server.create_qp()
            assert server.verbs
            server.verbs.set_faults(Faults(loss=1.0))
            server.accept()
            assert expect(theirs, EventType.UNREACHABLE).status == -ETIMEDOUT
            assert expect(ours, EventType.UNREACHABLE).status == -ETIMEDOUT


@pytest.mark.roce
def test_connect_error() -> None:
    with resolved() as (ours, theirs, one):
        one.create_qp().modify(QPAttr(qp_state=QPState.ERR))
        one.connect()
        with expect(theirs, EventType.CONNECT_REQUEST).id as server:
            server.create_qp()
            server.accept()
            assert expect(ours, EventType.CONNECT_ERROR).status < 0
            assert expect(theirs, EventType.REJECTED).status == 28


def test_disconnected_when_the_peer_destroys() -> None:
    with joined() as pair:
        pair.server.destroy()
        expect(pair.client.channel, EventType.DISCONNECTED)


@pytest.mark.roce
def test_disconnected_without_an_answer() -> None:
    with joined(timing=QUICK) as pair:
        assert pair.client.verbs
        pair.client.verbs.set_faults(Faults(loss=1.0))
        pair.client.disconnect()
        event = expect(pair.client.channel, EventType.DISCONNECTED)
        assert event.status == -ETIMEDOUT


@pytest.mark.parametrize("was_looked_at", [False, True])
def test_disconnected_by_an_error_of_the_queue_pair(was_looked_at: bool) -> None:
    with joined() as pair:
        assert pair.client.qp
        if was_looked_at:
            until(lambda: pair.client.is_settled, "the agent has found it in good order")
        pair.client.qp.modify(QPAttr(qp_state=QPState.ERR))
        for end in (pair.client, pair.server):
            expect(end.channel, EventType.DISCONNECTED)
    with joined() as pair:
        pair.client.notify(AsyncEventType.QP_FATAL)
        for end in (pair.client, pair.server):
            expect(end.channel, EventType.DISCONNECTED)


@pytest.mark.roce
def test_established_by_word_of_the_queue_pair() -> None:
    with resolved() as (ours, theirs, one):
        one.create_qp()
        one.qp, own = None, one.qp
        assert own
        one.connect(ConnParam(qp_num=own.qp_num))
        with expect(theirs, EventType.CONNECT_REQUEST).id as server:
            server.create_qp()
            server.accept()
            expect(ours, EventType.CONNECT_RESPONSE)
            server.notify(AsyncEventType.COMM_EST)
            expect(theirs, EventType.ESTABLISHED)
        one.qp = own


@needs_root
def test_addr_error_without_a_route() -> None:
    with EventChannel() as channel, create_id(channel) as one:
        one.resolve_addr(None, ("198.51.100.7", 1))
        event = expect(channel, EventType.ADDR_ERROR)
        assert event.status == -ENETUNREACH
        assert "198.51.100.7 port 1: no way there: check address and routes" in event.explain()
        assert one.state is IdState.IDLE
        with create_id() as other, pytest.raises(VerbsError) as caught:
            other.resolve_addr(None, ("198.51.100.7", 1))
        assert caught.value.errno == ENETUNREACH


@needs_root
def test_addr_error_when_nobody_answers_arp() -> None:
    made = subprocess.run(["ip", "link", "add", "rcm0", "type", "veth", "peer", "name", "rcm1"], check=False)
    if made.returncode:
        pytest.skip("no veth here")
    try:
        for name in ("rcm0", "rcm1"):
            subprocess.run(["ip", "link", "set", name, "up"], check=True)
        subprocess.run(["ip", "addr", "add", "10.78.0.1/24", "dev", "rcm0"], check=True)
        with EventChannel() as channel, create_id(channel) as one:
            one.resolve_addr(None, ("10.78.0.9", 1), timeout_ms=100)
            event = expect(channel, EventType.ADDR_ERROR)
            assert event.status == -ETIMEDOUT
            assert event.explain() == (
                "10.78.0.9 port 1: no host answers at this address: check it, and whether the host is up "
                "(ADDR_ERROR: Connection timed out)"
            )
            mac = "02:00:00:00:00:09"
            subprocess.run(["ip", "neigh", "replace", "10.78.0.9", "lladdr", mac, "dev", "rcm0"], check=True)
            one.resolve_addr(None, ("10.78.0.9", 1), timeout_ms=60_000)
            expect(channel, EventType.ADDR_RESOLVED)
            assert one.get_local_addr()[0] == "10.78.0.1"
    finally:
        subprocess.run(["ip", "link", "del", "rcm0"], check=True)


@needs_root
def test_route_error_and_addr_change() -> None:
    with address("10.77.0.1/32"), EventChannel() as channel, create_id(channel) as one:
        one.resolve_addr(None, ("10.77.0.1", 1))
        expect(channel, EventType.ADDR_RESOLVED)
        remove("10.77.0.1/32")
        expect(channel, EventType.ADDR_CHANGE)
        one.resolve_route()
        assert expect(channel, EventType.ROUTE_ERROR).status < 0


@needs_root
def test_a_tunnel_has_no_neighbours() -> None:
    """As WireGuard and ppp: nobody is asked for a hardware address."""
    made = subprocess.run(["ip", "tuntap", "add", "dev", "rcm0", "mode", "tun"], check=False)
    if made.returncode:
        pytest.skip("no tunnels here")
    try:
        subprocess.run(["ip", "link", "set", "rcm0", "up"], check=True)
        subprocess.run(["ip", "addr", "add", "10.78.0.1/24", "dev", "rcm0"], check=True)
        with EventChannel() as channel, create_id(channel) as one:
            one.resolve_addr(None, ("10.78.0.9", 1), timeout_ms=60_000)
            expect(channel, EventType.ADDR_RESOLVED)
    finally:
        subprocess.run(["ip", "link", "del", "rcm0"], check=True)


@needs_root
def test_device_removal_with_the_network_interface() -> None:
    made = subprocess.run(["ip", "link", "add", "rcm0", "type", "veth", "peer", "name", "rcm1"], check=False)
    if made.returncode:
        pytest.skip("no veth here")
    subprocess.run(["ip", "link", "set", "rcm0", "up"], check=True)
    subprocess.run(["ip", "addr", "add", "10.79.0.1/24", "dev", "rcm0"], check=True)
    with EventChannel() as channel, create_id(channel) as one:
        one.bind_addr(("10.79.0.1", 0))
        subprocess.run(["ip", "link", "del", "rcm0"], check=True)
        kinds = []
        while EventType.DEVICE_REMOVAL not in kinds:
            kinds.append(expect(channel, EventType.ADDR_CHANGE, EventType.DEVICE_REMOVAL).event)
        assert one.state is IdState.DEVICE_REMOVAL


@pytest.mark.roce
def test_device_removal_when_the_agent_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("on purpose")

    with EventChannel() as channel, create_id(channel, timing=FAST) as one:
        resolve(one, ("127.0.0.1", 9))
        one.create_qp()
        (agent,) = [agent for agent in registry.agents() if one in agent.ids]
        monkeypatch.setattr(ib_of(agent).gsi, "take", fail)
        one.connect()
        expect(channel, EventType.DEVICE_REMOVAL)
        assert "on purpose" in caplog.text
        with pytest.raises(VerbsError) as caught:
            one.create_qp()
        assert caught.value.errno == ENODEV
    with joined():
        pass


def test_addrinfo_events() -> None:
    with EventChannel() as channel, create_id(channel) as one:
        resolve_addrinfo(one, "127.0.0.1", 7471)
        (found,) = expect(channel, EventType.ADDRINFO_RESOLVED).arg
        assert found.dst_addr == ("127.0.0.1", 7471)
        resolve_addrinfo(one, "name.invalid", 7471)
        assert expect(channel, EventType.ADDRINFO_ERROR).status < 0


def test_user_events() -> None:
    with EventChannel() as channel, create_id(channel) as one:
        one.write_cm_event(EventType.USER, 5, "word")
        event = expect(channel, EventType.USER)
        assert (event.status, event.arg, event.id) == (5, "word", one)
        with pytest.raises(VerbsError):
            one.write_cm_event(EventType.ESTABLISHED)
