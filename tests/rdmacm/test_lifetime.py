# SPDX-License-Identifier: Apache-2.0
"""Beginnings and ends: channels, ports, acknowledgements, descriptors, threads, forks, killed peers."""

from __future__ import annotations

import asyncio
import select
import subprocess
import sys
import threading
from contextlib import ExitStack
from errno import EADDRINUSE, EADDRNOTAVAIL, EBUSY, EINVAL
from multiprocessing.connection import Connection

import pytest

from rdmacm.ends import (
    FAST,
    IWARP,
    NOBODY,
    QUICK,
    UNWANTED,
    all_quiet,
    call,
    cm_threads,
    descriptors,
    exchange,
    expect,
    expect_timewait,
    joined,
    listening,
    other,
    part,
    resolve,
    serve,
)
from rdmacm.mortal import end, mortal
from rnic import VerbsError
from rnic.rdmacm import EventChannel, EventType, IdState, Option, PortSpace, create_id
from rnic.rdmacm.ibcm.ports import BLOCK
from rnic.rdmacm.registry import registry
from rnic.wire import RejReason
from waiting import until


def test_a_channel_is_readable_while_events_wait() -> None:
    with EventChannel() as channel, create_id(channel) as one:
        poll = select.poll()
        poll.register(channel.fileno(), select.POLLIN)
        assert not poll.poll(0)
        one.write_cm_event(EventType.USER)
        one.write_cm_event(EventType.USER)
        for _ in range(2):
            assert poll.poll(0)
            channel.get_cm_event(0).ack()
        assert not poll.poll(0)
        with pytest.raises(TimeoutError):
            channel.get_cm_event(0.01)


def test_asyncio_sees_a_whole_connection() -> None:
    async def next_event(channel: EventChannel) -> EventType:
        ready = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(channel.fileno(), ready.set)
        try:
            await asyncio.wait_for(ready.wait(), 30)
        finally:
            loop.remove_reader(channel.fileno())
        with channel.get_cm_event(0) as event:
            return event.event

    async def run() -> list[EventType]:
        with EventChannel() as ours, EventChannel() as theirs, listening(theirs) as listener:
            with create_id(ours, timing=FAST) as one:
                one.resolve_addr(None, ("127.0.0.1", listener.get_src_port()))
                seen = [await next_event(ours)]
                one.resolve_route()
                seen.append(await next_event(ours))
                one.create_qp()
                one.connect()
                seen.append(await next_event(theirs))
                next(iter(theirs.ids - {listener})).destroy()
                return seen

    wanted = [EventType.ADDR_RESOLVED, EventType.ROUTE_RESOLVED, EventType.CONNECT_REQUEST]
    assert asyncio.run(run()) == wanted


def test_an_id_with_unacknowledged_events_is_not_destroyed() -> None:
    with EventChannel() as channel:
        one = create_id(channel)
        one.write_cm_event(EventType.USER)
        event = channel.get_cm_event(0)
        with pytest.raises(VerbsError, match="call ack") as caught:
            one.destroy()
        assert caught.value.errno == EBUSY
        with pytest.raises(VerbsError, match="destroy them first"):
            channel.close()
        event.ack()
        event.ack()
        one.destroy()
        one.destroy()


def test_an_event_that_is_dropped_warns() -> None:
    with EventChannel() as channel, create_id(channel) as one:
        one.write_cm_event(EventType.USER)
        with pytest.warns(ResourceWarning, match="never acknowledged"):
            channel.get_cm_event(0)


def test_events_go_along_to_another_channel() -> None:
    with EventChannel() as first, EventChannel() as second, create_id(first) as one:
        one.write_cm_event(EventType.USER, 3)
        one.migrate_id(second)
        with pytest.raises(TimeoutError):
            first.get_cm_event(0)
        assert expect(second, EventType.USER).status == 3


def test_ports() -> None:
    with create_id() as one, create_id() as two, create_id() as three:
        one.bind_addr(("127.0.0.1", 0))
        port = one.get_src_port()
        assert port
        with pytest.raises(VerbsError) as caught:
            two.bind_addr(("127.0.0.1", port))
        assert caught.value.errno == EADDRINUSE
        assert two.state is IdState.IDLE
        with pytest.raises(VerbsError) as caught:
            three.bind_addr(("203.0.113.5", 1))
        assert caught.value.errno == EADDRNOTAVAIL
        with create_id(ps=PortSpace.UDP) as datagrams:
            datagrams.bind_addr(("127.0.0.1", port))
        one.destroy()
        if IWARP:  # TCP asks both
            two.set_option(Option.REUSEADDR, 1)
        two.bind_addr(("127.0.0.1", port))
        three.set_option(Option.REUSEADDR, 1)
        three.bind_addr(("0.0.0.0", port))


@pytest.mark.roce
def test_who_calls_has_a_port_that_nobody_else_on_this_host_has(monkeypatch: pytest.MonkeyPatch) -> None:
    with mortal() as peer, end() as me:
        service = me.listen()
        peer.do("ask", service)
        theirs = peer.do("port")
        blocks = [port // BLOCK for port in (service, theirs)]
        free = next(port for port in range(40_000, 40_200) if port // BLOCK not in blocks)
        me.take()
        for address in ("127.0.0.1", "0.0.0.0"):
            with create_id() as one, pytest.raises(VerbsError) as caught:
                one.bind_addr((address, theirs))
            assert caught.value.errno == EADDRINUSE
        monkeypatch.setattr("rnic.rdmacm.ibcm.ports.ephemeral", lambda: [service, theirs, free])
        with EventChannel() as channel, create_id(channel, timing=FAST) as one:
            resolve(one, ("127.0.0.1", theirs))
            assert one.get_src_port() == free
            one.create_qp()
            one.connect()
            assert expect(channel, EventType.REJECTED).status == RejReason.INVALID_SERVICE_ID
            with create_id() as other, pytest.raises(VerbsError, match="is in use on this host"):
                other.bind_addr(("127.0.0.1", free))
            with create_id() as other:
                other.bind_addr(("127.0.0.1", free ^ 1))  # our own block: it is known which are in use
        peer.kill()
        with create_id() as one:
            one.bind_addr(("127.0.0.1", theirs))


@pytest.mark.roce
def test_those_who_call_share_descriptors() -> None:
    with EventChannel() as channel, ExitStack() as stack, listening(channel) as listener:
        to = ("127.0.0.1", listener.get_src_port())
        resolve(stack.enter_context(create_id(channel)), to)
        before, ids = descriptors(), []
        for _ in range(3 * BLOCK):
            ids.append(stack.enter_context(create_id(channel)))
            resolve(ids[-1], to)
        ports = {one.get_src_port() for one in ids}
        assert len(ports) == len(ids)
        assert descriptors() - before < 8


def test_a_wildcard_listener_takes_both_families_and_afonly_one() -> None:
    with EventChannel() as ours, EventChannel() as theirs, create_id(theirs) as listener:
        listener.listen()
        with create_id(ours, timing=FAST) as four:
            resolve(four, ("127.0.0.1", listener.get_src_port()))
            four.create_qp()
            four.connect()
            expect(theirs, EventType.CONNECT_REQUEST).id.destroy()
            expect(ours, EventType.REJECTED)
    with EventChannel() as ours, EventChannel() as theirs, create_id(theirs) as listener:
        listener.set_option(Option.AFONLY, 1)
        listener.bind_addr(("::", 0))
        listener.listen()
        with create_id(ours, timing=FAST) as four, create_id(ours, timing=FAST) as six:
            for one, to in ((four, "127.0.0.1"), (six, "::1")):
                resolve(one, (to, listener.get_src_port()))
                one.create_qp()
            four.connect()
            assert expect(ours, EventType.REJECTED).status == NOBODY
            six.connect()
            expect(theirs, EventType.CONNECT_REQUEST).id.destroy()
            assert expect(ours, EventType.REJECTED).status == UNWANTED


def test_afonly_counts_on_an_id_that_is_bound() -> None:
    with create_id() as six, create_id() as four:
        six.bind_addr(("::", 0))
        four_too = ("0.0.0.0", six.get_src_port())
        with pytest.raises(VerbsError) as caught:
            four.bind_addr(four_too)
        assert caught.value.errno == EADDRINUSE
        six.set_option(Option.AFONLY, 1)
        four.bind_addr(four_too)
        with pytest.raises(VerbsError) as caught:
            six.set_option(Option.AFONLY, 0)
        assert caught.value.errno == EADDRINUSE
        four.listen()
        six.listen()
        for one in (four, six):
            for option in (Option.AFONLY, Option.REUSEADDR):
                with pytest.raises(VerbsError) as caught:
                    one.set_option(option, 1)
                assert caught.value.errno == EINVAL


def test_nothing_is_left_behind() -> None:
    all_quiet()
    before = 0
    for round_ in range(6):
        with joined() as pair:
            exchange(pair.client, pair.server)
            part(pair)
        all_quiet()
        if round_ == 0:
            before = descriptors()
    assert descriptors() == before
    assert not cm_threads()


def test_two_hundred_connections_at_once() -> None:
    with ExitStack() as stack:
        ours, theirs = stack.enter_context(EventChannel()), stack.enter_context(EventChannel())
        listener = stack.enter_context(listening(theirs))
        clients = [stack.enter_context(create_id(ours, timing=FAST)) for _ in range(200)]
        servers = []
        for one in clients:
            resolve(one, ("127.0.0.1", listener.get_src_port()))
            one.create_qp()
            one.connect()
            server = expect(theirs, EventType.CONNECT_REQUEST).id
            servers.append(stack.enter_context(server))
            server.create_qp()
            server.accept()
            expect(ours, EventType.ESTABLISHED)
            expect(theirs, EventType.ESTABLISHED)
        of = {one.get_src_port(): one for one in clients}
        assert len(of) == 200
        assert len({one.qp.qp_num for one in clients if one.qp}) == 200
        for server in servers[::20]:
            exchange(of[server.get_dst_port()], server)


@pytest.mark.parametrize("stage", ["request", "connected"])
def test_a_listener_is_killed(stage: str) -> None:
    with other(serve, "127.0.0.1", 0.0, 1, stage) as peer, EventChannel() as channel:
        port = peer.hear()
        with create_id(channel, timing=QUICK) as one:
            resolve(one, ("127.0.0.1", port))
            one.create_qp()
            one.connect()
            assert peer.hear() == stage
            if stage == "request":
                peer.kill()
                expect(channel, EventType.UNREACHABLE, EventType.REJECTED)
                return
            expect(channel, EventType.ESTABLISHED)
            with registry.lock:  # else the agent may see the death first
                peer.kill()
                one.disconnect()
            assert expect(channel, EventType.DISCONNECTED).status == 0  # the host answers for it
            expect_timewait(channel)


@pytest.mark.parametrize("stage", ["request", "connected"])
def test_a_client_is_killed(stage: str) -> None:
    with EventChannel() as channel, listening(channel) as listener:
        with other(call, "127.0.0.1", listener.get_src_port(), stage) as peer:
            server = expect(channel, EventType.CONNECT_REQUEST).id
            with server:
                server.create_qp()
                if stage == "request":
                    assert peer.hear() == stage
                    with registry.lock:  # else the agent may see the death first
                        peer.kill()
                        server.accept()
                    expect(channel, EventType.UNREACHABLE)
                    return
                server.accept()
                expect(channel, EventType.ESTABLISHED)
                assert peer.hear() == stage
                with registry.lock:  # else the agent may see the death first
                    peer.kill()
                    server.disconnect()
                assert expect(channel, EventType.DISCONNECTED).status == 0  # the host answers for it
        with joined() as pair:
            exchange(pair.client, pair.server)


def leave_open(way: Connection, port: int) -> None:
    """Connects, and returns with everything open."""
    one = create_id(timing=FAST)
    one.resolve_addr(None, ("127.0.0.1", port))
    one.resolve_route()
    one.create_qp()
    one.connect()
    way.send("connected")
    way.recv()


SCRIPT = """
import sys, warnings
from rnic.rdmacm import create_id
one = create_id()
one.resolve_addr(None, ("127.0.0.1", int(sys.argv[1])))
one.resolve_route()
one.create_qp()
one.connect()
print("connected", flush=True)
"""


def test_the_end_of_the_interpreter_tells_the_peer() -> None:
    with EventChannel() as channel, listening(channel) as listener:
        port = str(listener.get_src_port())
        child = subprocess.Popen([sys.executable, "-c", SCRIPT, port], stderr=subprocess.PIPE, text=True)
        with child, expect(channel, EventType.CONNECT_REQUEST).id as server:
            server.create_qp()
            server.accept()
            expect(channel, EventType.ESTABLISHED)
            expect(channel, EventType.DISCONNECTED)
            _, err = child.communicate(timeout=300)
            assert (child.returncode, err) == (0, "")


FORK = """
import os, sys
from rnic import VerbsError
from rnic.rdmacm.registry import registry
from rnic.wire import MAD, CmAttr, service_id
from rnic.rdmacm import EventChannel, create_id
with EventChannel() as channel, create_id(channel) as one:
    one.bind_addr(("127.0.0.1", 0))
    pid = os.fork()
    if not pid:
        try:
            one.listen()
        except VerbsError as error:
            assert "forked" in str(error), error
        with create_id() as own:
            own.bind_addr(("127.0.0.1", 0))
            own.listen()
        sys.exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    one.listen()
"""


def test_a_forked_child_touches_nothing_and_can_begin_anew() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORK],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_many_threads_connect_at_once() -> None:
    failures: list[BaseException] = []

    def connect_often(port: int) -> None:
        try:
            for _ in range(20):
                with create_id(timing=FAST) as one:
                    one.resolve_addr(None, ("127.0.0.1", port))
                    one.resolve_route()
                    one.create_qp()
                    one.connect()
                    one.disconnect()
        except BaseException as error:
            failures.append(error)

    with EventChannel() as channel, listening(channel) as listener:
        callers = [threading.Thread(target=connect_often, args=(listener.get_src_port(),)) for _ in range(6)]
        for caller in callers:
            caller.start()
        over = 0
        while over < 120:
            with channel.get_cm_event(60) as event:
                one, kind = event.id, event.event
            if kind is EventType.CONNECT_REQUEST:
                one.create_qp()
                one.accept()
            elif kind is EventType.DISCONNECTED:
                over += 1
                one.destroy()
        for caller in callers:
            caller.join(60)
        assert not failures


@pytest.mark.roce
def test_a_request_that_is_taken_back_before_it_was_seen_harms_nobody() -> None:
    """REQ and REJ wait together when the agent looks: each is acted on before the next is read."""
    with EventChannel() as ours, EventChannel() as theirs, listening(theirs) as listener:
        one = create_id(ours, timing=FAST)
        resolve(one, ("127.0.0.1", listener.get_src_port()))
        one.create_qp()
        with registry.lock:  # the agent waits for it
            assert one.verbs
            before = one.verbs.counters().rx_packets
            one.connect()
            one.destroy()
            until(
                lambda: one.verbs is not None and one.verbs.counters().rx_packets >= before + 2, "both arrive"
            )
        request = expect(theirs, EventType.CONNECT_REQUEST)
        expect(theirs, EventType.REJECTED)
        with request.id, pytest.raises(VerbsError, match="no request waits"):
            request.id.accept()
        with joined() as pair:
            exchange(pair.client, pair.server)
