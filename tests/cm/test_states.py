# SPDX-License-Identifier: Apache-2.0
"""Every pair of state and input: what the table says is what happens; and the table as it is printed."""

from __future__ import annotations

from collections.abc import Callable
from errno import EINVAL
from pathlib import Path
from random import Random
from typing import Any

import pytest

from cm.fabric import SERVICE, a_rep, a_req
from rnic.cm import (
    TABLE,
    Action,
    Connection,
    EventType,
    Exchange,
    IbCm,
    Input,
    Listener,
    Resolution,
    Send,
    State,
    receiver_id,
)
from rnic.cm.exchange import Signal
from rnic.cm.states import WAITING, markdown
from rnic.errors import VerbsError
from rnic.wire import (
    Answered,
    Apr,
    CmAttr,
    CmMessage,
    Drep,
    Dreq,
    Lap,
    Mra,
    PortSpace,
    Rej,
    RejReason,
    Req,
    Rtu,
    SidrRep,
    SidrReq,
    parse_cm,
    service_id,
)

PEER_ID = 0x77
PEER_GUID = 0xB0


class Bench:
    """One manager, and messages by hand from a peer."""

    def __init__(self) -> None:
        self.cm = IbCm(slot=5, ca_guid=0xA0, rng=Random(1))
        self.now = 1000

    def say(self, message: CmMessage, tid: int = 0x99) -> None:
        self.cm.input(message.to_mad(tid).emit(), "peer", self.now)

    def to_us(self, conn: Exchange, cls: type[Any], **more: Any) -> None:
        self.say(cls(local_comm_id=PEER_ID, remote_comm_id=conn.local_comm_id, **more))

    def passive(self) -> Connection:
        listener = self.cm.listen(SERVICE, self.now)
        self.say(a_req(local_comm_id=PEER_ID, local_ca_guid=PEER_GUID))
        listener.close(self.now)
        conn = self.cm.table.find_remote(PEER_GUID, PEER_ID)
        assert conn is not None
        return conn

    def active(self) -> Connection:
        conn = self.cm.connection("peer", packet_life_time=7)
        conn.send_req(a_req(), self.now)
        return conn

    def rep_sent(self) -> Connection:
        conn = self.passive()
        conn.send_rep(a_rep(), self.now)
        return conn

    def rep_rcvd(self) -> Connection:
        conn = self.active()
        rep = a_rep(local_comm_id=PEER_ID, remote_comm_id=conn.local_comm_id, local_ca_guid=PEER_GUID)
        self.say(rep)
        return conn

    def established(self) -> Connection:
        conn = self.rep_rcvd()
        conn.send_rtu(self.now)
        return conn

    # one factory per state; each goes there as a program and its peer would

    def in_idle(self) -> Exchange:
        return self.cm.connection("peer")

    def in_listen(self) -> Exchange:
        return self.cm.listen(SERVICE, self.now)

    def in_req_sent(self) -> Exchange:
        return self.active()

    def in_mra_req_rcvd(self) -> Exchange:
        conn = self.active()
        self.to_us(conn, Mra, message=Answered.REQ, service_timeout=14)
        return conn

    def in_rep_rcvd(self) -> Exchange:
        return self.rep_rcvd()

    def in_mra_rep_sent(self) -> Exchange:
        conn = self.rep_rcvd()
        conn.send_mra(14, self.now)
        return conn

    def in_req_rcvd(self) -> Exchange:
        return self.passive()

    def in_mra_req_sent(self) -> Exchange:
        conn = self.passive()
        conn.send_mra(14, self.now)
        return conn

    def in_rep_sent(self) -> Exchange:
        return self.rep_sent()

    def in_mra_rep_rcvd(self) -> Exchange:
        conn = self.rep_sent()
        self.to_us(conn, Mra, message=Answered.REP, service_timeout=14)
        return conn

    def in_established(self) -> Exchange:
        return self.established()

    def in_dreq_sent(self) -> Exchange:
        conn = self.established()
        conn.send_dreq(self.now)
        return conn

    def in_dreq_rcvd(self) -> Exchange:
        conn = self.established()
        self.to_us(conn, Dreq, remote_qpn=conn.local_qpn)
        return conn

    def in_timewait(self) -> Exchange:
        conn = self.established()
        conn.send_dreq(self.now)
        self.to_us(conn, Drep)
        return conn

    def in_sidr_req_sent(self) -> Exchange:
        one = self.cm.resolution("peer")
        one.send_sidr_req(SidrReq(service_id=SERVICE), self.now, timeout_ns=5000, retries=3)
        return one

    def in_sidr_req_rcvd(self) -> Exchange:
        listener = self.cm.listen(SERVICE, self.now)
        self.say(SidrReq(request_id=PEER_ID, service_id=SERVICE))
        listener.close(self.now)
        one = self.cm.table.find_question(PEER_ID, "peer")
        assert one is not None
        return one

    def reach(self, state: State, event: Input) -> Exchange:
        """An object in a state, of the class that the input is for where the state has room for several."""
        if state is State.IDLE and event is Input.LISTEN:
            return Listener(self.cm, SERVICE, lambda *_: None)
        if state is State.IDLE and event in (Input.SEND_SIDR_REQ, Input.SIDR_REQ):
            return self.cm.resolution("peer")
        found: Exchange = getattr(self, f"in_{state.name.lower()}")()
        assert found.state is state
        self.cm.take_sends()
        self.cm.take_events()
        return found


CALLS: dict[Input, Callable[[Any, int], None]] = {
    Input.LISTEN: lambda x, now: x.listen(now),
    Input.SEND_REQ: lambda x, now: x.send_req(a_req(), now),
    Input.SEND_MRA: lambda x, now: x.send_mra(14, now),
    Input.SEND_REP: lambda x, now: x.send_rep(a_rep(), now),
    Input.SEND_RTU: lambda x, now: x.send_rtu(now),
    Input.SEND_REJ: lambda x, now: x.send_rej(RejReason.CONSUMER_DEFINED, now),
    Input.ESTABLISH: lambda x, now: x.establish(now),
    Input.SEND_DREQ: lambda x, now: x.send_dreq(now),
    Input.SEND_DREP: lambda x, now: x.send_drep(now),
    Input.SEND_SIDR_REQ: lambda x, now: x.send_sidr_req(SidrReq(), now, timeout_ns=5000),
    Input.SEND_SIDR_REP: lambda x, now: x.send_sidr_rep(SidrRep(), now),
    Input.CLOSE: lambda x, now: x.close(now),
}

MESSAGES: dict[Input, CmMessage] = {
    Input.REQ: a_req(local_comm_id=PEER_ID, local_ca_guid=PEER_GUID),
    Input.MRA_REQ: Mra(message=0, service_timeout=14),
    Input.MRA_REP: Mra(message=1, service_timeout=14),
    Input.MRA_OTHER: Mra(message=2, service_timeout=14),
    Input.REP: a_rep(local_comm_id=PEER_ID, local_ca_guid=PEER_GUID),
    Input.RTU: Rtu(),
    Input.REJ: Rej(reason=RejReason.CONSUMER_DEFINED),
    Input.REJ_STALE: Rej(reason=RejReason.STALE_CONN),
    Input.DREQ: Dreq(),
    Input.DREP: Drep(),
    Input.SIDR_REQ: SidrReq(service_id=SERVICE),
    Input.SIDR_REP: SidrRep(),
    Input.LAP: Lap(),
    Input.APR: Apr(),
}

_E = EventType
# What an action sends and reports.
EFFECTS: dict[Action, tuple[list[str], list[EventType]]] = {
    Action.NOTHING: ([], []),
    Action.LISTEN: ([], []),
    Action.UNLISTEN: ([], []),
    Action.SEND_REQ: (["REQ"], []),
    Action.TAKE_REQ: ([], [_E.REQ_RECEIVED]),
    Action.SEND_MRA: (["MRA"], []),
    Action.EXTEND: ([], [_E.MRA_RECEIVED]),
    Action.SEND_REP: (["REP"], []),
    Action.TAKE_REP: ([], [_E.REP_RECEIVED]),
    Action.SEND_RTU: (["RTU"], []),
    Action.TAKE_RTU: ([], [_E.RTU_RECEIVED]),
    Action.ESTABLISH: ([], [_E.USER_ESTABLISHED]),
    Action.SEND_REJ: (["REJ"], []),
    Action.SEND_TIMEOUT: (["REJ"], []),
    Action.REJECT: (["REJ"], []),
    Action.REJECT_AGAIN: (["REJ"], []),
    Action.TAKE_REJ: ([], [_E.REJ_RECEIVED]),
    Action.GIVE_UP_REQ: (["REJ"], [_E.REQ_ERROR]),
    Action.GIVE_UP_REP: (["REJ"], [_E.REP_ERROR]),
    Action.GIVE_UP_DREQ: ([], [_E.DREQ_ERROR]),
    Action.EXPIRE_REQ: (["REJ"], [_E.REQ_ERROR]),
    Action.LOSE_REQ: ([], [_E.REQ_ERROR]),
    Action.LOSE_REP: ([], [_E.REP_ERROR]),
    Action.GIVE_UP_SIDR: ([], [_E.SIDR_REQ_ERROR]),
    Action.SEND_DREQ: (["DREQ"], []),
    Action.TAKE_DREQ: ([], [_E.DREQ_RECEIVED]),
    Action.SEND_DREP: (["DREP"], []),
    Action.RELEASE: (["DREP"], []),
    Action.TAKE_DREP: ([], [_E.DREP_RECEIVED]),
    Action.END_TIMEWAIT: ([], [_E.TIMEWAIT_EXIT]),
    Action.SEND_APR: (["APR"], []),
    Action.SEND_SIDR_REQ: (["SIDR_REQ"], []),
    Action.TAKE_SIDR_REQ: ([], [_E.SIDR_REQ_RECEIVED]),
    Action.SEND_SIDR_REP: (["SIDR_REP"], []),
    Action.REFUSE_SIDR: (["SIDR_REP"], []),
    Action.TAKE_SIDR_REP: ([], [_E.SIDR_REP_RECEIVED]),
}
AGAIN = {
    State.MRA_REQ_SENT: "MRA", State.MRA_REP_SENT: "MRA", State.REP_SENT: "REP", State.ESTABLISHED: "RTU",
    State.REQ_SENT: "REQ", State.MRA_REQ_RCVD: "REQ", State.MRA_REP_RCVD: "REP", State.DREQ_SENT: "DREQ",
    State.SIDR_REQ_SENT: "SIDR_REQ",
}  # fmt: skip


def expected_effect(state: State, event: Input, action: Action) -> tuple[list[str], list[EventType]]:
    if action in (Action.ANSWER_AGAIN, Action.RESEND):
        return [AGAIN[state]], []
    if action is Action.SPAWN:
        return [], [_E.REQ_RECEIVED if event is Input.REQ else _E.SIDR_REQ_RECEIVED]
    return EFFECTS[action]


def apply(bench: Bench, target: Exchange, event: Input) -> None:
    if event in CALLS:
        CALLS[event](target, bench.now)
    elif event in MESSAGES:
        message = MESSAGES[event]
        target.input(event, Signal(bench.now, message, message.to_mad(0x99), source="peer"))
    elif event is Input.GONE:
        target.gone(bench.now)
    else:
        target.input(event, Signal(bench.now))


def check_numbers(bench: Bench, target: Exchange, state: State, send: Send) -> None:
    """Whom it goes to, both ids, and the transaction: that of the REQ, of the DREQ, or of the question."""
    kind, message = CmAttr(send.mad.attr_id), parse_cm(send.mad)
    assert (send.dest, send.mad.attr_mod) == ("peer", 0)
    asked = isinstance(target, Connection) and target.asked is not None
    answers = (CmAttr.REP, CmAttr.DREP, CmAttr.APR, CmAttr.SIDR_REP)
    theirs = kind in answers or (asked and kind in (CmAttr.MRA, CmAttr.REJ))
    assert send.mad.tid == (0x99 if theirs else bench.cm._tid(target.local_comm_id))
    if isinstance(message, SidrReq | SidrRep):
        asks = isinstance(message, SidrReq)
        assert message.request_id == (target.local_comm_id if asks else PEER_ID)
        return
    unseen = isinstance(message, Rej) and state is State.REQ_RCVD
    assert getattr(message, "local_comm_id") == (0 if unseen else target.local_comm_id)  # noqa: B009
    if not isinstance(message, Req):
        heard = state not in (State.IDLE, State.REQ_SENT)
        assert receiver_id(message) == (PEER_ID if heard else 0)
    if isinstance(message, Dreq):
        assert message.remote_qpn == (0x111 if asked else 0x222)


PAIRS = [pytest.param(state, event, id=f"{state.name}-{event.name}") for state in State for event in Input]


@pytest.mark.parametrize(("state", "event"), PAIRS)
def test_every_pair_does_what_the_table_says(state: State, event: Input) -> None:
    row = TABLE[state, event]
    bench = Bench()
    target = bench.reach(state, event)
    if event in CALLS and not hasattr(target, event.value.rstrip("()")):
        assert row.action is Action.REFUSE  # another class has the call, and is never in this state
        return
    before = bench.cm.statistics()
    if row.action is Action.REFUSE:
        with pytest.raises(VerbsError, match=f"{state.name}: only in") as caught:
            apply(bench, target, event)
        assert (caught.value.errno, caught.value.verb) == (EINVAL, event.name.lower())
    else:
        apply(bench, target, event)
    assert target.state is row.next
    assert (target.deadline() is not None) == (row.next in WAITING or row.next is State.TIMEWAIT)
    sends = bench.cm.take_sends()
    for send in sends:
        check_numbers(bench, target, state, send)
    sent = [CmAttr(send.mad.attr_id).name for send in sends]
    events = bench.cm.take_events()
    told = [one.type for one in events]
    assert [(one.attr_mod, one.gone) for one in events] == [(0, event is Input.GONE)] * len(events)
    if row.action is Action.REFUSE:
        assert (sent, told) == ([], [])
    elif row.action is Action.IGNORE:
        assert (sent, told) == ([], [])
        assert sum(bench.cm.statistics().dropped.values()) == sum(before.dropped.values()) + 1
    else:
        assert (sent, told) == expected_effect(state, event, row.action)
    if row.next is State.IDLE and row.action not in (Action.REFUSE, Action.IGNORE):
        assert target.over
        assert bench.cm.table.find(target.local_comm_id) is None


def test_the_table_has_every_pair_and_says_why_nothing_is_done() -> None:
    assert set(TABLE) == {(state, event) for state in State for event in Input}
    for (state, event), row in TABLE.items():
        idle = row.action in (Action.IGNORE, Action.REFUSE)
        assert bool(row.reason) == idle
        if idle:
            assert row.next is state
            assert event.is_call == (row.action is Action.REFUSE)
        if row.action is Action.REFUSE:
            fits = {one.name for one in State if TABLE[one, event].action is not Action.REFUSE}
            assert set(row.reason.removeprefix("only in ").split(", ")) == fits


def test_every_action_is_used_and_every_state_is_reached() -> None:
    assert {row.action for row in TABLE.values()} == set(Action)
    assert {row.next for row in TABLE.values()} == set(State)
    known = set().union(*(cls.actions for cls in (Connection, Resolution, Listener)))
    assert known == set(Action) - {Action.REFUSE, Action.IGNORE, Action.NOTHING}


def test_every_state_that_waits_gives_up_in_the_end() -> None:
    for state in WAITING | {State.TIMEWAIT}:
        assert TABLE[state, Input.TIMEOUT].action is not Action.IGNORE
        assert (TABLE[state, Input.RETRY].action is Action.RESEND) == (state in WAITING)


def test_everything_can_be_closed() -> None:
    assert all(TABLE[state, Input.CLOSE].action is not Action.REFUSE for state in State)


def test_what_is_over_takes_no_more_calls() -> None:
    bench = Bench()
    conn = bench.active()
    conn.send_rej(RejReason.CONSUMER_DEFINED, bench.now)
    assert conn.over
    conn.close(bench.now)
    with pytest.raises(VerbsError, match="it is over"):
        conn.send_req(a_req(), bench.now)


def test_a_call_with_a_field_that_does_not_fit_changes_nothing() -> None:
    bench = Bench()
    conn = bench.cm.connection("peer")
    with pytest.raises(ValueError, match="private_data"):
        conn.send_req(a_req(private_data=bytes(93)), bench.now)
    with pytest.raises(ValueError, match="attr_mod"):
        conn.send_req(a_req(), bench.now, attr_mod=1 << 32)
    assert (conn.state.name, bench.cm.take_sends()) == ("IDLE", [])
    conn.send_req(a_req(private_data=bytes(92)), bench.now)
    assert conn.state.name == "REQ_SENT"


def test_the_documentation_prints_the_table(root: Path) -> None:
    page = (root / "docs/cm-states.md").read_text()
    assert page == markdown(), "print it again: rnic.cm.markdown() says how"


def test_a_port_of_each_space_is_another_service() -> None:
    bench = Bench()
    for space in PortSpace:
        bench.cm.listen(service_id(space, 7471), bench.now)
    with pytest.raises(VerbsError, match="has a listener"):
        bench.cm.listen(SERVICE, bench.now)
