# SPDX-License-Identifier: Apache-2.0
"""Ids for the tests: what they wait for, and processes that hold one end."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from errno import ECONNREFUSED, ECONNRESET
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from forked import FORKS
from rnic import SGE, Faults
from rnic.cm import Exchange
from rnic.rdmacm import CmId, ConnParam, Event, EventChannel, EventType, PortSpace, Timing, create_id
from rnic.rdmacm.agent import Agent
from rnic.rdmacm.ibcm.conversation import IbConversation
from rnic.rdmacm.ibcm.manager import IbService
from rnic.wire import RejReason
from waiting import until

WAIT = 180.0  # seconds that only a hang takes
# When a message is said again, and when it is given up: after 0.54 s and 8.6 s; 18 and 60 ms; 0.54 and 1.6 s.
FAST = Timing(response_timeout=17, max_cm_retries=15, packet_life_time=10)
HASTY = Timing(response_timeout=12, max_cm_retries=2, packet_life_time=8)  # for a peer that never answers
QUICK = Timing(response_timeout=17, max_cm_retries=2, packet_life_time=8)  # for one that does at first
IWARP = os.environ.get("RNIC_TRANSPORT") == "iwarp"  # the devices that come first
# Statuses of REJECTED: nobody listens, the program does not want it, there is no room.
NOBODY: int = -ECONNREFUSED if IWARP else RejReason.INVALID_SERVICE_ID
UNWANTED: int = -ECONNRESET if IWARP else RejReason.CONSUMER_DEFINED
NO_ROOM: int = -ECONNRESET if IWARP else RejReason.NO_RESOURCES
LOOPBACKS = ["127.0.0.1", "::1"]


def expect(channel: EventChannel, *kinds: EventType) -> Event:
    """The next event, which has to be one of these; acknowledged."""
    with channel.get_cm_event(WAIT) as event:
        assert event.event in kinds, event
        return event


@contextmanager
def no_descriptors() -> Iterator[None]:
    """All numbers below the limit are in use."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def expect_timewait(channel: EventChannel) -> None:
    """The queue pair can be used again: iWARP does not report that, as the kernel's does not."""
    if not IWARP:
        expect(channel, EventType.TIMEWAIT_EXIT)


def cm_threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name.startswith("rnic-cm")]


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def ib_of(agent: Agent) -> IbService:
    """The connection service of RoCE."""
    assert isinstance(agent.service, IbService)
    return agent.service


def exchange_of(one: CmId) -> Exchange | None:
    """What an id says in messages of the communication manager; None before it says anything."""
    assert one.conversation is None or isinstance(one.conversation, IbConversation)
    return one.conversation.exchange if one.conversation else None


def all_quiet() -> None:
    """The agents have ended."""
    until(lambda: not cm_threads(), "the agents end")


@contextmanager
def listening(
    channel: EventChannel, address: str = "127.0.0.1", ps: PortSpace = PortSpace.TCP, backlog: int = 0
) -> Iterator[CmId]:
    with create_id(channel, ps, timing=FAST) as listener:
        listener.bind_addr((address, 0))
        listener.listen(backlog)
        yield listener


def resolve(cm_id: CmId, to: tuple[str, int]) -> None:
    """Address and route, for an id with a channel."""
    cm_id.resolve_addr(None, to)
    expect(cm_id.channel, EventType.ADDR_RESOLVED)
    cm_id.resolve_route()
    expect(cm_id.channel, EventType.ROUTE_RESOLVED)


@contextmanager
def resolved(
    ps: PortSpace = PortSpace.TCP, timing: Timing = FAST, address: str = "127.0.0.1"
) -> Iterator[tuple[EventChannel, EventChannel, CmId]]:
    """An id that knows its way to a listener; its channel, the listener's, and the id."""
    with EventChannel() as ours, EventChannel() as theirs, listening(theirs, address, ps) as listener:
        with create_id(ours, ps, timing=timing) as one:
            resolve(one, (address, listener.get_src_port()))
            yield ours, theirs, one


@dataclass
class Joined:
    """Both ends of a connection in this process."""

    client: CmId
    server: CmId
    request: Event
    accepted: Event
    listener: CmId


@contextmanager
def joined(
    address: str = "127.0.0.1",
    timing: Timing = FAST,
    asked: ConnParam | None = None,
    agreed: ConnParam | None = None,
) -> Iterator[Joined]:
    with resolved(timing=timing, address=address) as (ours, theirs, client):
        client.create_qp()
        client.connect(asked)
        request = expect(theirs, EventType.CONNECT_REQUEST)
        assert request.listen_id
        with request.id as server:
            server.create_qp()
            server.accept(agreed)
            accepted = expect(ours, EventType.ESTABLISHED)
            expect(theirs, EventType.ESTABLISHED)
            yield Joined(client, server, request, accepted, request.listen_id)


def part(pair: Joined) -> None:
    """Disconnect, by both ends, to the end of TIMEWAIT."""
    pair.client.disconnect()
    expect(pair.server.channel, EventType.DISCONNECTED)
    pair.server.disconnect()
    expect(pair.client.channel, EventType.DISCONNECTED)
    for end in (pair.client, pair.server):
        expect_timewait(end.channel)


def exchange(one: CmId, other: CmId) -> None:
    """A message each way."""
    for source, target in ((one, other), (other, one)):
        out, into = bytearray(os.urandom(4000)), bytearray(5000)
        with source.reg_msgs(out) as out_mr, target.reg_msgs(into) as into_mr:
            target.post_recv(into_mr, wr_id=7)
            source.post_send(out_mr)
            got = target.get_recv_comp(WAIT)
            assert source.get_send_comp(WAIT).ok
            assert (got.ok, got.wr_id, got.byte_len) == (True, 7, 4000)
            assert into[:4000] == out


# ------------------------------------------------------------------ in another process


@dataclass
class Other:
    """A process, and the way to it."""

    process: Any
    way: Connection

    def hear(self) -> Any:
        assert self.way.poll(WAIT * 2), "the other process does not answer"
        return self.way.recv()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


@contextmanager
def other(target: Callable[..., None], *args: object) -> Iterator[Other]:
    here, there = FORKS.Pipe()
    process = FORKS.Process(target=target, args=(there, *args), daemon=True)
    process.start()
    there.close()
    found = Other(process, here)
    try:
        yield found
    finally:
        found.kill()
        here.close()


def serve(way: Connection, address: str, loss: float = 0.0, count: int = 1, stop_at: str = "") -> None:
    """Takes connections, echoes a message on each, and parts; stops where it is told to, for ever."""
    with create_id(timing=FAST) as listener:
        listener.bind_addr((address, 0))
        listener.listen()
        if loss:
            assert listener.verbs
            listener.verbs.set_faults(Faults(seed=5, loss=loss))
        way.send(listener.get_src_port())
        for _ in range(count):
            child = listener.get_request()
            hold(way, stop_at, "request")
            with child:
                child.create_qp()
                data = bytearray(64)
                with child.reg_msgs(data) as mr:
                    child.post_recv(mr)
                    child.accept(ConnParam(private_data=b"welcome"))
                    hold(way, stop_at, "connected")
                    got = child.get_recv_comp(WAIT)
                    child.post_send(SGE(mr, 0, got.byte_len))
                    expect(child.channel, EventType.DISCONNECTED)
                    child.disconnect()
                    expect_timewait(child.channel)
                    child.destroy_qp()
        way.send("done")
        way.poll(WAIT)  # who has gone cannot answer a DREQ whose DREP was lost


def call(way: Connection, address: str, port: int, stop_at: str = "") -> None:
    """Connects to a port, and stops where it is told to."""
    with create_id(timing=FAST) as one:
        one.resolve_addr(None, (address, port))
        one.resolve_route()
        one.create_qp()
        if stop_at == "request":
            one.sync = False
            one.connect()
            hold(way, stop_at, "request")
        one.connect()
        hold(way, stop_at, "connected")


def hold(way: Connection, stop_at: str, here: str) -> None:
    if stop_at == here:
        way.send(here)
        threading.Event().wait()
