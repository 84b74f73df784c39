# SPDX-License-Identifier: Apache-2.0
"""A peer that does not answer: the error says what the network says of it."""

from __future__ import annotations

import asyncio
import os
import re
import select
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from errno import EACCES, ECONNREFUSED, EHOSTUNREACH, ENETUNREACH, EPERM, ETIMEDOUT
from ipaddress import ip_address
from pathlib import Path
from time import monotonic, monotonic_ns

import pytest

import namespaces
import rnic
import rnic.aio
from conn.peers import WAIT
from rdmacm.ends import HASTY, no_descriptors, resolve
from rnic.conn.dial import Dial
from rnic.conn.waits import sleep
from rnic.endpoint import Config
from rnic.rdmacm import CmId, EventChannel, EventType, Timing, create_id, reach
from rnic.rdmacm.ibcm.connection import IbConnection
from rnic.rdmacm.registry import registry
from transport.netdev import Netdevs, ip
from waiting import until

pytestmark = pytest.mark.wire

HERE, THERE = "10.84.0.1", "10.84.0.2"
WAITS = (
    0.3,
    3,
    30,
    120,
)  # seconds: nobody answers, however long one waits; a busy machine takes longer to know why


class Neighbour(Netdevs):
    """Another host at the end of the cable, on which nothing runs."""

    def _make(self) -> None:
        super()._make()
        here = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        namespaces.unshare()
        self.there = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        namespaces.enter(here)
        ip("link", "set", self.b, "netns", f"/proc/{os.getpid()}/fd/{self.there}")
        self.address(self.a, HERE + "/24")
        namespaces.enter(self.there)
        # A host answers one sender a few times only in a second: it asks once, and would not be heard.
        with suppress(OSError):  # in some containers it cannot be written
            Path("/proc/sys/net/ipv4/icmp_ratelimit").write_text("0")
        ip("link", "set", self.b, "up")
        self.address(self.b, THERE + "/24")
        namespaces.enter(here)
        os.close(here)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """On the other host."""
        here = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        namespaces.enter(self.there)
        try:
            yield
        finally:
            namespaces.enter(here)
            os.close(here)

    def _leave(self) -> None:
        os.close(self.there)
        super()._leave()


@pytest.fixture
def neighbour() -> Iterator[Neighbour]:
    reach.forget()
    with Neighbour() as made:
        yield made
    reach.forget()


def why_it_ends(connect: Callable[[float], object]) -> str:
    """What the error says, once the network has had the time to answer."""
    said = ""
    for timeout in WAITS:
        with pytest.raises(TimeoutError) as caught:
            connect(timeout)
        said = str(caught.value)
        if "no router says why" not in said:
            break
    return said


@pytest.mark.usefixtures("neighbour")
def test_a_host_whose_port_is_closed_is_named_so() -> None:
    said = why_it_ends(lambda timeout: rnic.connect(THERE, 7000, timeout=timeout))
    assert re.search(r"no answer from 10\.84\.0\.2 port 7000 .* UDP port 4791 is closed there", said)


@pytest.mark.usefixtures("neighbour")
def test_so_it_is_for_a_task() -> None:
    said = why_it_ends(lambda timeout: asyncio.run(rnic.aio.connect(THERE, 7000, timeout=timeout)))
    assert "UDP port 4791 is closed there" in said


def call(one: CmId) -> None:
    """The host on which nothing runs."""
    resolve(one, (THERE, 7000))
    one.create_qp()
    one.connect()


@pytest.mark.usefixtures("neighbour")
def test_the_event_of_an_id_has_the_error_as_its_status() -> None:
    with (
        EventChannel() as channel,
        create_id(channel, timing=Timing(response_timeout=14, max_cm_retries=1)) as one,
    ):
        call(one)
        with channel.get_cm_event(60) as event:
            assert event.event is EventType.UNREACHABLE
            assert event.status == -ECONNREFUSED


def falls_silent(neighbour: Neighbour, one: CmId) -> None:
    """The network says why there is no answer, once, and then no more: routers have a limit for that."""
    question = until(lambda: one.question, "the network is asked")
    assert question is not None
    heard = select.poll()
    heard.register(question.fileno(), select.POLLERR)
    assert heard.poll(WAIT * 1000)
    with neighbour.inside():
        ip("address", "flush", "dev", neighbour.b)
    reach.forget()


def test_what_the_network_said_in_the_beginning_is_told_in_the_end(neighbour: Neighbour) -> None:
    timing = Timing(response_timeout=17, max_cm_retries=4)
    with EventChannel() as channel, create_id(channel, timing=timing) as one:
        call(one)
        falls_silent(neighbour, one)
        with channel.get_cm_event(WAIT) as event:
            assert (event.event, event.status) == (EventType.UNREACHABLE, -ECONNREFUSED)


@pytest.mark.parametrize("abandoned", [False, True])
def test_so_it_is_when_connect_comes_to_its_limit(neighbour: Neighbour, abandoned: bool) -> None:
    dial = Dial([THERE], 7000, Config())
    limit = monotonic() + WAIT
    while dial.cm_id.question is None:
        assert monotonic() < limit
        sleep((dial.fileno(),), monotonic() + 0.1)
        dial.step(monotonic())
    falls_silent(neighbour, dial.cm_id)
    if abandoned:
        dial.abandon()
    assert "UDP port 4791 is closed there" in dial.silence()
    dial.abandon()


@pytest.mark.parametrize("device", ["roce_lo", "iwarp_lo"])
def test_a_server_that_serves_others_is_not_taken_for_one_that_is_down(device: str) -> None:
    with rnic.listen("127.0.0.1", 0, device=device) as server:
        with pytest.raises(TimeoutError, match="has not accepted the connection yet") as caught:
            rnic.connect("127.0.0.1", server.port, device=device, timeout=0.3)
        assert "blocked" not in str(caught.value)


def test_a_peer_that_answers_late_costs_no_descriptor() -> None:
    """The question to the network is taken back."""
    with rnic.listen("127.0.0.1", 0) as server:
        dial = Dial(["127.0.0.1"], server.port, Config())

        def asked() -> IbConnection | None:
            conn = dial.cm_id.conversation
            return conn if isinstance(conn, IbConnection) and conn.exchange else None

        try:
            until(lambda: dial.step(monotonic()) or asked(), "it asks")
            with registry.lock:
                conn = asked()
                assert conn
                conn.asked_at -= 10**10
                dial.cm_id.watch(monotonic_ns())
                question = dial.cm_id.question
            assert question is not None
            thread = threading.Thread(target=lambda: server.accept(WAIT).abort())
            thread.start()
            until(lambda: dial.step(monotonic()), "it is connected")
            thread.join()
            assert dial.cm_id.question is None
        finally:
            dial.abandon()


def test_a_forked_child_has_no_question(neighbour: Neighbour) -> None:
    reach.forget()
    with reach.Question(ip_address(THERE)) as question:
        fd = question.fileno()
        pid = os.fork()
        if not pid:
            try:
                os.fstat(fd)
            except OSError:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        os.fstat(fd)
    assert neighbour.a


def test_what_was_not_heard_yet_is_no_answer(neighbour: Neighbour, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is what others are told, who ask now, what one did not hear who has asked long ago."""
    monkeypatch.setattr("rnic.rdmacm.reach.WAIT_MS", 60_000)
    ip("neighbour", "replace", THERE, "lladdr", "02:00:00:00:00:77", "dev", neighbour.a)  # nobody's
    there = ip_address(THERE)
    with reach.Question(there) as early:
        assert (early.answer(), early.code) == (0, None)
        early._asked -= 61
        assert (early.answer(), early.code) == (0, 0)
    with reach.Question(there) as another:
        assert another.code is None


def test_an_answer_that_comes_is_heard_though_it_was_asked_for_before(
    neighbour: Neighbour, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rnic.rdmacm.reach.WAIT_MS", 60_000)  # a busy machine answers late
    with reach.Question(ip_address(THERE)) as question:
        assert neighbour.a
        assert until(question.answer, "it is heard") == ECONNREFUSED
        assert question._probe is not None
        assert question._probe.fileno() == -1


@pytest.mark.usefixtures("neighbour")
def test_a_lack_of_descriptors_says_nothing_of_the_peer() -> None:
    with no_descriptors(), reach.Question(ip_address(THERE)) as question:
        assert question.answer() == 0
    assert until(lambda: reach.why(ip_address(THERE)), "it is heard") == ECONNREFUSED


def test_a_question_that_was_taken_back_has_no_answer() -> None:
    question = reach.Question(ip_address("127.0.3.9"))
    question.close()
    assert question.answer() == 0


def test_a_route_that_prohibits_is_told(neighbour: Neighbour) -> None:
    ip("route", "add", "prohibit", "10.85.0.0/24")
    assert reach.why(ip_address("10.85.0.1")) == EACCES
    ip("route", "add", "unreachable", "10.86.0.0/24")
    assert reach.why(ip_address("10.86.0.1")) == EHOSTUNREACH
    assert neighbour.a


@pytest.mark.usefixtures("neighbour")
def test_an_address_that_no_host_has_is_named_so() -> None:
    with pytest.raises(
        rnic.VerbsError, match=r"10\.84\.0\.9 port 7000: no host answers at this address"
    ) as caught:
        rnic.connect("10.84.0.9", 7000, timeout=WAIT)
    assert caught.value.errno == ETIMEDOUT
    with pytest.raises(rnic.VerbsError, match=r"10\.99\.0\.1 port 7000: Network is unreachable") as caught:
        rnic.connect("10.99.0.1", 7000, timeout=WAIT)
    assert caught.value.errno == ENETUNREACH


def test_each_error_has_words_of_its_own() -> None:
    words = {reach.words(code) for code in (0, EPERM, EACCES, ECONNREFUSED, EHOSTUNREACH)}
    assert len(words) == 5
    assert "firewall" in reach.words(EPERM)
    assert "NAT" in reach.words(0)


def test_nobody_waits_while_the_network_is_asked_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent has the lock when a peer is given up: it goes on, and tells when it knows."""
    reach.forget()
    monkeypatch.setattr("rnic.rdmacm.reach.WAIT_MS", 60_000)
    with EventChannel() as channel, ExitStack() as stack:
        ids = [stack.enter_context(create_id(channel, timing=HASTY)) for _ in range(3)]
        for number, one in enumerate(ids):
            one.resolve_addr(None, ("127.0.0.1", 7000 + number))
            channel.get_cm_event(WAIT).ack()
            assert one.verbs
            one.verbs.set_faults(rnic.Faults(loss=1.0))
            one.resolve_route()
            channel.get_cm_event(WAIT).ack()
            one.create_qp()
            one.connect()
        agent = ids[0].agent
        assert agent is not None

        def asked() -> list[Callable[[int], object]]:
            return [call for _, _, call in agent._timers if "ask_why" in call.__qualname__]

        until(lambda: len(asked()) == len(ids), "they are given up")
        assert registry.lock.acquire(timeout=60), "the agent waits with the lock"
        assert not channel.has_events
        for tell in asked():
            tell(0)
        agent._timers.clear()
        registry.lock.release()
        for _ in ids:
            with channel.get_cm_event(WAIT) as event:
                assert (event.event, event.status) == (EventType.UNREACHABLE, -ETIMEDOUT)
                said = r"127\.0\.0\.1 port 700\d does not answer: .* \(UNREACHABLE: Connection timed out\)"
                assert re.fullmatch(said, event.explain())
    reach.forget()


LATE = TimeoutError, rnic.EndpointError  # of who had too little time on a busy machine


def is_at(conn: rnic.Connection | rnic.aio.Connection, host: str) -> bool:
    return conn.peer_address is not None and conn.peer_address[0] == host


def first_that_connects(connect: Callable[[float], bool]) -> bool:
    return any(connect(timeout) for timeout in WAITS)


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the addresses that every name has."""
    both = ["127.0.0.1", "::1"]
    monkeypatch.setattr("rnic.conn.sync.hosts", lambda *_: both)
    monkeypatch.setattr("rnic.aio.dialing.hosts", lambda *_: both)
    return both


def test_an_address_of_a_name_without_room_is_passed_over(both: list[str]) -> None:
    """So it is with one that nobody has taken up in ten seconds: its host refuses it in the same words."""

    def served(listener: rnic.Listener, stack: ExitStack) -> None:
        serving = threading.Thread(target=listener.serve, args=(lambda conn: [*conn],))
        stack.callback(serving.join, WAIT)
        stack.enter_context(listener)
        serving.start()

    with ExitStack() as stack:
        full = rnic.listen(both[0], 0, max_connections=1)
        served(full, stack)
        one = stack.enter_context(rnic.connect("a.name", full.port, timeout=WAIT))
        assert is_at(one, both[0])
        with pytest.raises(rnic.RefusedError, match=r"::1 port .* nobody listens there"):
            rnic.connect("a.name", full.port, timeout=WAIT)
        served(rnic.listen(both[1], full.port), stack)
        assert is_at(stack.enter_context(rnic.connect("a.name", full.port, timeout=WAIT)), both[1])


def test_a_silent_address_of_a_name_has_its_share_of_the_time(both: list[str]) -> None:
    """A server that accepts nobody, and behind it one that does."""
    with rnic.listen(both[0], 0) as silent, rnic.listen(both[1], silent.port) as server:
        serving = threading.Thread(target=server.serve, args=(lambda conn: [*conn],))
        serving.start()

        def connected(timeout: float) -> bool:
            with suppress(*LATE), rnic.connect("a.name", silent.port, timeout=timeout) as conn:
                return is_at(conn, both[1])
            return False

        async def connected_by_a_task(timeout: float) -> bool:
            with suppress(*LATE):
                async with rnic.aio.connect("a.name", silent.port, timeout=timeout) as conn:
                    return is_at(conn, both[1])
            return False

        try:
            assert first_that_connects(connected)
            assert first_that_connects(lambda timeout: asyncio.run(connected_by_a_task(timeout)))
        finally:
            server.close()
            serving.join(WAIT)
