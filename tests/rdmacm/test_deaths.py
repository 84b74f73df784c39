# SPDX-License-Identifier: Apache-2.0
"""The peer is killed in every state of the handshake and of the transfer, on this host and across a wire."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from errno import EAGAIN, ECONNREFUSED, ECONNRESET, EMFILE, ENOMEM, ETIMEDOUT

import pytest

from rdmacm.ends import FAST, HASTY, QUICK, WAIT, Other, ib_of, other, serve
from rdmacm.mortal import End, Mortal, Wire, end, mortal
from rdmacm.ways import (
    called,
    check_a_stopped_process,
    check_what_is_kept_of_the_dead,
    far_joined,
    joined_by,
    joined_to,
    needs_root,
    prepare,
    seen,
    with_a_forked_child,
)
from rnic import VerbsError, WROpcode
from rnic.rdmacm import EventType, PortSpace, Timing, create_id
from rnic.rdmacm.ibcm.connection import IbConnection
from rnic.rdmacm.ibcm.gsi import Gsi, Peer
from rnic.rdmacm.ibcm.processes import Name, Processes
from rnic.rdmacm.registry import registry
from rnic.wire import CmAttr, RejReason, SidrStatus
from waiting import until

pytestmark = pytest.mark.roce

STEADY = Timing(response_timeout=18, packet_life_time=8)  # 1.1 s, and the timeout of the queue pair is short
PATIENT = Timing()  # the kernel's: nothing is said again within 4.8 s

NOBODY = 65534

E_ = EventType


@pytest.fixture(scope="module")
def healthy() -> Iterator[tuple[Other, int]]:
    """A process that nothing happens to, which echoes."""
    with other(serve, "127.0.0.1", 0.0, 10**6) as peer:
        yield peer, peer.hear()


def goes_on(healthy: tuple[Other, int]) -> None:
    """This process connects to another peer, and data comes back as it went."""
    with create_id(timing=FAST) as one:
        one.resolve_addr(None, ("127.0.0.1", healthy[1]))
        one.resolve_route()
        one.create_qp()
        out, back = bytearray(os.urandom(64)), bytearray(64)
        with one.reg_msgs(out) as out_mr, one.reg_msgs(back) as back_mr:
            one.post_recv(back_mr)
            one.connect()
            one.post_send(out_mr)
            assert one.get_recv_comp(WAIT).ok
            assert back == out
        one.disconnect()


def test_a_peer_that_could_not_be_watched_at_once_is_watched_when_it_can_be(
    monkeypatch: pytest.MonkeyPatch, healthy: tuple[Other, int]
) -> None:
    """Both ends lack descriptors when they meet; then one dies, and the other has nothing to send."""
    watch, refusals = Processes._watch, [EMFILE, EAGAIN, ENOMEM]

    def reluctant(self: Processes, name: Name) -> int:
        if refusals:
            raise VerbsError(refusals.pop(), "none can be had now", "cm_watch")
        return watch(self, name)

    monkeypatch.setattr(Processes, "_watch", reluctant)
    with mortal() as peer, end(PATIENT) as me:
        joined_to(me, peer)
        until(lambda: not refusals, what="it is tried again")
        peer.kill()
        assert me.expect(E_.DISCONNECTED) == -ECONNRESET
    goes_on(healthy)


def test_who_ends_says_so_more_than_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last id has gone: nobody repeats the farewell when the agent has gone, too."""
    said: list[bytes] = []
    send = Gsi.send

    def heard(self: Gsi, peer: Peer, data: bytes) -> None:
        said.append(data[16:18])
        send(self, peer, data)

    monkeypatch.setattr(Gsi, "send", heard)
    with mortal() as peer:
        with end(PATIENT) as me:
            joined_to(me, peer)
            peer.stop()
            me.disconnect()
        until(lambda: not registry.agents(), what="the agent ends")
        dreq = CmAttr.DREQ.to_bytes(2, "big")
        assert said.count(dreq) > 2
        peer.go_on()


def say(what: str, died: float) -> None:
    """Print how long it took, for docs/proof.md.  What was heard tells who noticed, not the time."""
    print(f"{what}: {time.monotonic() - died:.2f} s")


def only_soak() -> None:
    if not os.environ.get("RNIC_SOAK"):
        pytest.skip("RNIC_SOAK=1 takes it")


# ------------------------------------------------------------------ ways into each state


def calling_the_stopped(me: End, peer: Mortal) -> None:
    port = peer.do("listen")
    peer.stop()
    me.ask(port)


def told_to_wait(me: End, peer: Mortal) -> None:
    seen(me, peer)
    me.reach("MRA_REQ_RCVD")


def answered(me: End, peer: Mortal) -> None:
    me.ask(peer.do("listen"), bare=True)
    peer.do("take")
    peer.do("accept")
    me.expect(E_.CONNECT_RESPONSE)


def thinking(me: End, peer: Mortal) -> None:
    answered(me, peer)
    me.mra()


def accepting(me: End, peer: Mortal) -> None:
    called(me, peer, bare=True)
    me.accept()
    peer.do("expect", E_.CONNECT_RESPONSE)


def accepting_who_thinks(me: End, peer: Mortal) -> None:
    accepting(me, peer)
    peer.do("mra")
    me.reach("MRA_REP_RCVD")


def leaving(me: End, peer: Mortal) -> None:
    joined_to(me, peer)
    me.disconnect()
    peer.do("expect", E_.DISCONNECTED)


def leaving_who_called(me: End, peer: Mortal) -> None:
    joined_by(me, peer)
    me.disconnect()
    peer.do("expect", E_.DISCONNECTED)


def asking(me: End, peer: Mortal) -> None:
    me.ask(peer.do("listen", "127.0.0.1", PortSpace.UDP), ps=PortSpace.UDP)
    peer.do("take")


def asking_the_stopped(me: End, peer: Mortal) -> None:
    port = peer.do("listen", "127.0.0.1", PortSpace.UDP)
    peer.stop()
    me.ask(port, ps=PortSpace.UDP)


@dataclass(frozen=True)
class Case:
    """What is done, the survivor's state then, and what it hears when the other one is killed."""

    begin: Callable[[End, Mortal], None]
    state: str
    event: EventType
    status: int
    timing: Timing = PATIENT


CASES = [
    Case(calling_the_stopped, "REQ_SENT", E_.REJECTED, RejReason.INVALID_SERVICE_ID),
    Case(seen, "REQ_SENT", E_.REJECTED, RejReason.INVALID_SERVICE_ID),
    Case(told_to_wait, "MRA_REQ_RCVD", E_.UNREACHABLE, -ECONNRESET, FAST),
    Case(answered, "REP_RCVD", E_.UNREACHABLE, -ECONNRESET),
    Case(thinking, "MRA_REP_SENT", E_.UNREACHABLE, -ECONNRESET),
    Case(joined_to, "ESTABLISHED", E_.DISCONNECTED, -ECONNRESET),
    Case(joined_by, "ESTABLISHED", E_.DISCONNECTED, -ECONNRESET),
    Case(with_a_forked_child, "ESTABLISHED", E_.DISCONNECTED, -ECONNRESET),
    Case(called, "MRA_REQ_SENT", E_.UNREACHABLE, -ECONNRESET),
    Case(accepting, "REP_SENT", E_.UNREACHABLE, -ECONNRESET),
    Case(accepting_who_thinks, "MRA_REP_RCVD", E_.UNREACHABLE, -ECONNRESET),
    Case(leaving, "DREQ_SENT", E_.DISCONNECTED, -ECONNRESET),
    Case(leaving_who_called, "DREQ_SENT", E_.DISCONNECTED, -ECONNRESET),
    Case(asking_the_stopped, "SIDR_REQ_SENT", E_.UNREACHABLE, SidrStatus.UNSUPPORTED),
    Case(asking, "SIDR_REQ_SENT", E_.UNREACHABLE, SidrStatus.UNSUPPORTED),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.state}-{case.begin.__name__}")
def test_the_peer_is_killed_on_this_host(case: Case, healthy: tuple[Other, int]) -> None:
    with mortal(case.timing) as peer, end(case.timing) as me:
        case.begin(me, peer)
        assert me.state() == case.state
        died = peer.kill()
        assert me.expect(case.event) == case.status
        say(f"{case.state} ({case.begin.__name__}) {case.event.name}", died)
        if case.event is E_.DISCONNECTED:  # no work waits for retries to be used up
            until(me.is_in_error, "its work is flushed")
        goes_on(healthy)


def test_a_request_that_nobody_has_seen_is_dropped_with_its_sender(healthy: tuple[Other, int]) -> None:
    with mortal(PATIENT) as peer, end(PATIENT) as me:
        peer.do("ask", me.listen())
        poll = select.poll()
        poll.register(me.channel.fileno(), select.POLLIN)
        assert poll.poll(WAIT * 1000)
        died = peer.kill()
        until(lambda: not poll.poll(0), "the request goes")
        say("MRA_REQ_SENT, unseen: dropped", died)
        assert me.id.waiting == 0
        goes_on(healthy)


@pytest.mark.parametrize("role", ["caller", "called"])
def test_the_peer_is_killed_after_its_disconnect_request(role: str, healthy: tuple[Other, int]) -> None:
    with mortal() as peer, end() as me:
        (joined_to if role == "caller" else joined_by)(me, peer)
        peer.do("disconnect")
        assert me.expect(E_.DISCONNECTED) == 0
        assert me.state() == "DREQ_RCVD"
        peer.kill()
        me.disconnect()
        me.expect(E_.TIMEWAIT_EXIT)
        goes_on(healthy)


@pytest.mark.parametrize("role", ["caller", "called"])
def test_the_peer_is_killed_while_identifiers_rest(role: str, healthy: tuple[Other, int]) -> None:
    with mortal() as peer, end() as me:
        (joined_to if role == "caller" else joined_by)(me, peer)
        me.disconnect()
        peer.do("expect", E_.DISCONNECTED)
        peer.do("disconnect")
        me.expect(E_.DISCONNECTED)
        peer.kill()
        me.expect(E_.TIMEWAIT_EXIT)
        goes_on(healthy)


def test_who_asked_for_a_datagram_service_is_killed_before_the_answer(healthy: tuple[Other, int]) -> None:
    with mortal() as peer, end() as me:
        peer.do("ask", me.listen("127.0.0.1", PortSpace.UDP), "127.0.0.1", PortSpace.UDP)
        me.take()
        assert me.state() == "SIDR_REQ_RCVD"
        peer.kill()
        me.accept()
        goes_on(healthy)


# ------------------------------------------------------------------ transfers


def name_of(opcode: WROpcode | None) -> str:
    return "idle" if opcode is None else opcode.name


TRANSFERS = [None, WROpcode.RDMA_WRITE, WROpcode.RDMA_READ, WROpcode.SEND]


def killed(opcode: WROpcode | None, first: bool) -> bool:
    """Whether it was during the transfer: who kills may come late on a busy machine."""
    with mortal(PATIENT) as peer, end(PATIENT) as me:
        joined_to(me, peer)
        prepare(me, peer, opcode, first)()
        died = peer.kill()
        assert me.expect(E_.DISCONNECTED) == -ECONNRESET
        say(f"{name_of(opcode)} of the {'survivor' if first else 'killed'}: DISCONNECTED", died)
        if opcode is None:
            return True
        if first:
            return not all(me.rest())
        return opcode is not WROpcode.SEND or not all(me.received())


@pytest.mark.parametrize("first", [True, False], ids=["survivor", "killed"])
@pytest.mark.parametrize("opcode", TRANSFERS, ids=name_of)
def test_the_peer_is_killed_during_a_transfer(
    opcode: WROpcode | None, first: bool, healthy: tuple[Other, int]
) -> None:
    if not first and opcode is not WROpcode.SEND:
        only_soak()
    until(lambda: killed(opcode, first), "the transfer was not over yet")
    goes_on(healthy)


def test_a_stopped_process_is_not_dead() -> None:
    check_a_stopped_process(PATIENT)


@needs_root
@pytest.mark.parametrize("role", ["caller", "called"])
def test_another_users_process_is_killed(role: str) -> None:
    """Its user cannot have our port, but its lifeline hangs up for everybody."""
    with end(PATIENT) as me, mortal(PATIENT, uid=NOBODY) as peer:
        me.listen()  # the port is ours, then
        (joined_to if role == "caller" else joined_by)(me, peer)
        died = peer.kill()
        assert me.expect(E_.DISCONNECTED) == -ECONNRESET
        say("another user's: DISCONNECTED", died)


def test_one_watch_serves_all_connections_to_a_process() -> None:
    with mortal() as peer, end() as me:
        port = peer.do("listen")
        for _ in range(10):
            me.ask(port)
            peer.do("take")
            peer.do("accept")
            me.expect(E_.ESTABLISHED)
            peer.do("expect", E_.ESTABLISHED)
        (agent,) = registry.agents()
        processes = ib_of(agent).meetings.processes
        assert len(processes._known) == 2  # the slot, and the service
        died = peer.kill()
        for _ in range(10):
            assert me.expect(E_.DISCONNECTED) == -ECONNRESET
        say("ten connections DISCONNECTED", died)
        until(lambda: not processes._known, "the watches go")


def test_watches_are_given_back() -> None:
    check_what_is_kept_of_the_dead()


# ------------------------------------------------------------------ across a wire


def far_request(me: End, peer: Mortal, wire: Wire) -> None:
    port = peer.do("listen", wire.there)
    peer.stop()
    me.ask(port, wire.there)


def far_answer(me: End, peer: Mortal, wire: Wire) -> None:
    peer.do("ask", me.listen(wire.here), wire.here, PortSpace.TCP, True)
    me.take()
    me.accept()
    peer.do("expect", E_.CONNECT_RESPONSE)


def far_farewell(me: End, peer: Mortal, wire: Wire) -> None:
    far_joined(me, peer, wire)
    me.disconnect()
    peer.do("expect", E_.DISCONNECTED)


def far_question(me: End, peer: Mortal, wire: Wire) -> None:
    port = peer.do("listen", wire.there, PortSpace.UDP)
    peer.stop()
    me.ask(port, wire.there, PortSpace.UDP)


FAR = [
    (far_request, "REQ_SENT", E_.UNREACHABLE, -ECONNREFUSED, HASTY),  # ICMP: the port is closed by then
    (far_answer, "REP_SENT", E_.UNREACHABLE, -ETIMEDOUT, QUICK),
    (far_farewell, "DREQ_SENT", E_.DISCONNECTED, -ETIMEDOUT, QUICK),
    (far_question, "SIDR_REQ_SENT", E_.UNREACHABLE, -ETIMEDOUT, HASTY),
]


@needs_root
@pytest.mark.parametrize(
    ("begin", "state", "kind", "status", "timing"),
    FAR,
    ids=lambda one: str(one) if isinstance(one, str) else "",
)
def test_across_a_wire_the_cm_gives_up(
    begin: Callable[[End, Mortal, Wire], None],
    state: str,
    kind: EventType,
    status: int,
    timing: Timing,
    wire: Wire,
    healthy: tuple[Other, int],
) -> None:
    for patience in (timing, FAST):  # on a busy machine it may give up before the peer has died
        with mortal(patience, wire.netns) as peer, end(patience) as me:
            begin(me, peer, wire)
            died = peer.kill()
            found = me.expect(kind)
            say(f"wire, {state}, given up after {patience.max_cm_retries + 1} messages: {kind.name}", died)
            goes_on(healthy)
        if found == status:
            break
    assert found == status


@needs_root
@pytest.mark.parametrize("opcode", TRANSFERS, ids=name_of)
def test_across_a_wire_the_retry_count_decides(
    opcode: WROpcode | None, wire: Wire, healthy: tuple[Other, int]
) -> None:
    """An idle queue pair learns nothing before its next request."""
    if opcode is not None:
        only_soak()
    with mortal(STEADY, wire.netns) as peer, end(STEADY) as me:
        far_joined(me, peer, wire)
        begin = prepare(me, peer, WROpcode.RDMA_WRITE if opcode is None else opcode, True)
        if opcode is not None:
            begin()
        died = peer.kill()
        if opcode is None:
            with pytest.raises(TimeoutError):
                me.channel.get_cm_event(0.5)
            died = time.monotonic()
            with pytest.raises(AssertionError):
                begin()
        me.expect(E_.DISCONNECTED)
        assert isinstance(me.id.conversation, IbConnection)
        timeout = me.id.conversation.link.timeout
        what = f"wire, {name_of(opcode)}{', from its next request' if opcode is None else ''}"
        say(f"{what}: DISCONNECTED, timeout {timeout}, 7 retries", died)
        goes_on(healthy)
