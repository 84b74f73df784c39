# SPDX-License-Identifier: Apache-2.0
"""A step of an exchange is taken whole or not at all, wherever memory is short; and the queues."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import rnic.cm
from cm.fabric import SERVICE, a_rep, a_req
from cm.test_states import MESSAGES, PEER_GUID, PEER_ID, Bench, apply
from rnic.cm import TABLE, Action, Connection, EventType, Exchange, IbCm, Input, State
from rnic.cm.exchange import Signal
from rnic.cm.states import WAITING
from rnic.wire import CmAttr, Dreq, SidrReq

ROOM = str(Path(rnic.cm.__file__).parent)
Make = Callable[[], tuple[IbCm, Exchange]]
Step = Callable[[IbCm, Exchange], object]


class Shortage:
    """MemoryError instead of the nth call that the manager makes; `met` tells whether it came to that."""

    def __init__(self, nth: int) -> None:
        self.left = nth
        self.met = False

    def profile(self, frame: FrameType, event: str, _arg: object) -> None:
        asks = frame if event == "c_call" else frame.f_back if event == "call" else None
        if asks is None or not asks.f_code.co_filename.startswith(ROOM):
            return
        self.left -= 1
        if self.left == 0:
            self.met = True
            raise MemoryError

    def during(self, step: Callable[[], object]) -> bool:
        """Whether the step was kept from being taken."""
        before = sys.getprofile()
        gc.disable()  # what it calls is not the manager's
        sys.setprofile(self.profile)
        try:
            step()
        except MemoryError:
            assert self.met
        finally:
            sys.setprofile(before)
            gc.enable()
        return self.met


def stand(cm: IbCm) -> list[Any]:
    """All that a step changes but what is counted: the exchanges, the table, the queues, the timers."""
    table = cm.table
    exchanges = [*table.exchanges(), *table.listeners.values()]
    timers = {(when, id(one)) for when, _, one in cm._timers}
    return [
        {one: dict(vars(one)) for one in exchanges},
        [dict(known) for known in (table._by_local, table._by_remote, table._by_qpn, table._asked)],
        table.is_calling(SERVICE, "peer"),
        dict(table.listeners),
        [list(cm._sends), list(cm._events), list(cm._met)],
        cm.deadline(),
        [(one.deadline(), id(one)) in timers for one in exchanges if one.deadline() is not None],
    ]


def told(cm: IbCm, target: Exchange) -> list[Any]:
    """What came of a step, without the numbers that another manager has, too."""
    table = cm.table
    known = (table._by_local, table._by_remote, table._by_qpn, table._asked, table.listeners)
    return [
        (target.state, target.over, target.closed, target.deadline(), target._left, target._wait),
        [len(one) for one in known],
        table.is_calling(SERVICE, "peer"),
        [type(one) for one in cm.take_met()],
        [(send.dest, CmAttr(send.mad.attr_id), send.mad.data[8:]) for send in cm.take_sends()],
        [(event.type, event.attr_mod, event.gone) for event in cm.take_events()],
        cm.deadline(),
        [answer.data[8:] for _, answer in cm._answers.values()],
    ]


def places(make: Make, step: Step) -> Iterator[tuple[IbCm, Exchange, list[Any]]]:
    """A manager for each call within a step, which memory was short for; and how it stood before."""
    for nth in count(1):
        cm, target = make()
        before = stand(cm)
        if not Shortage(nth).during(lambda cm=cm, target=target: step(cm, target)):  # type: ignore[misc]
            assert nth > 4
            return
        yield cm, target, before


def is_made_up_for(make: Make, step: Step) -> None:
    """Wherever memory was short, the same again leads to what it would have led to."""
    cm, target = make()
    step(cm, target)
    expected = told(cm, target)
    for cm, target, _ in places(make, step):
        step(cm, target)
        assert told(cm, target) == expected


def is_taken_whole(make: Make, step: Step) -> None:
    """And until then all stands as before."""
    for cm, _, before in places(make, step):
        assert stand(cm) == before
    is_made_up_for(make, step)


DONE = [
    pytest.param(state, event, closed, id=f"{state.name}-{event.name}{'-closed' * closed}")
    for (state, event), row in TABLE.items()
    for closed in (False, True)
    if row.action not in (Action.REFUSE, Action.IGNORE)
    and not (closed and (state not in (State.DREQ_SENT, State.TIMEWAIT) or event.is_call))
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("state", "event", "closed"), DONE)
def test_a_step_is_taken_whole_or_not_at_all(state: State, event: Input, closed: bool) -> None:
    benches = dict[IbCm, Bench]()

    def make() -> tuple[IbCm, Exchange]:
        bench = Bench()
        target = bench.reach(state, event)
        target.closed = closed
        benches[bench.cm] = bench
        return bench.cm, target

    is_taken_whole(make, lambda cm, target: apply(benches[cm], target, event))


@pytest.mark.parametrize("state", [state for state in State if state in WAITING | {State.TIMEWAIT}])
def test_what_is_due_stays_due_until_it_is_done(state: State) -> None:
    def make() -> tuple[IbCm, Exchange]:
        bench = Bench()
        return bench.cm, bench.reach(state, Input.TIMEOUT)

    due = make()[0].deadline()
    assert due is not None
    is_made_up_for(make, lambda cm, _: cm.timer(due))


@pytest.mark.parametrize("message", [MESSAGES[Input.REQ], SidrReq(request_id=PEER_ID, service_id=SERVICE)])
def test_a_request_for_which_memory_is_short_is_one_that_has_not_come(message: Any) -> None:
    data = message.to_mad(0x99).emit()

    def make() -> tuple[IbCm, Exchange]:
        bench = Bench()
        return bench.cm, bench.cm.listen(SERVICE, bench.now)

    is_taken_whole(make, lambda cm, _: cm.input(data, "peer", 1000))


def test_a_reply_for_which_memory_is_short_can_come_again() -> None:
    def make() -> tuple[IbCm, Exchange]:
        bench = Bench()
        return bench.cm, bench.active()

    def hear(cm: IbCm, target: Exchange) -> None:
        rep = a_rep(local_comm_id=PEER_ID, remote_comm_id=target.local_comm_id, local_ca_guid=PEER_GUID)
        cm.input(rep.to_mad(1).emit(), "peer", 1000)

    is_taken_whole(make, hear)


def test_no_timer_is_left_of_a_request_that_could_not_be_made() -> None:
    def make() -> tuple[IbCm, Exchange]:
        cm = IbCm(1, 0xA0)
        return cm, cm.connection("peer")

    def ask(_: IbCm, target: Exchange) -> None:
        assert isinstance(target, Connection)
        target.send_req(a_req(), 0)

    for cm, target, _ in places(make, ask):
        assert cm.deadline() is None
        cm.timer(1 << 50)
        target.close(0)
        assert len(cm.table) == 0


def test_deaths_are_told_to_all_though_memory_is_short() -> None:
    def make() -> tuple[IbCm, Exchange]:
        bench = Bench()
        conn = bench.established()
        conn.process = "process"
        return bench.cm, conn

    is_taken_whole(make, lambda cm, _: cm.died("process", 1000))


# -------------------------------------------------------------------------------- queues


def waiting() -> tuple[Bench, Connection]:
    bench = Bench()
    conn = bench.established()
    bench.cm.take_met()
    bench.cm.take_sends()
    bench.cm.take_events()
    return bench, conn


def test_events_are_taken_one_by_one_in_their_order() -> None:
    bench, conn = waiting()
    bench.to_us(conn, Dreq, remote_qpn=conn.local_qpn)
    conn.send_drep(bench.now)
    bench.cm.timer(1 << 50)
    assert [bench.cm.next_event(), bench.cm.next_event(), bench.cm.next_event()][2] is None


def test_what_is_put_back_is_the_next_one_again() -> None:
    bench = Bench()
    conns = [bench.cm.connection("peer") for _ in range(3)]
    for conn in conns:
        conn.send_req(a_req(max_cm_retries=0), bench.now)
    met = bench.cm.next_met()
    assert met is conns[0]
    bench.cm.put_back(met)
    assert bench.cm.take_met() == conns
    bench.cm.timer(1 << 50)
    errors = [bench.cm.next_event() for _ in range(2)]
    assert [event.type for event in errors if event] == [EventType.REQ_ERROR] * 2
    for event in reversed(errors):
        assert event is not None
        bench.cm.put_back(event)
    assert bench.cm.take_events()[:2] == errors


def test_who_is_closed_has_no_events_and_who_is_over_is_not_met() -> None:
    bench = Bench()
    first, second = bench.active(), bench.active()
    first.close(bench.now)
    assert bench.cm.next_met() is second
    assert bench.cm.next_met() is None
    second.close(bench.now)
    bench.cm.timer(1 << 50)
    assert bench.cm.next_event() is None


def test_sends_are_taken_one_by_one_in_their_order() -> None:
    bench = Bench()
    conns = [bench.active() for _ in range(2)]
    found = [bench.cm.next_send() for _ in range(3)]
    assert [send and send.mad.data[:4] for send in found] == [
        *(conn.local_comm_id.to_bytes(4, "big") for conn in conns),
        None,
    ]


def test_what_is_unsaid_is_the_last_of_each_queue() -> None:
    bench, conn = waiting()
    bench.cm.take_sends()
    said = bench.cm.said()
    assert said == (0, 0, 0)
    conn.input(Input.DREQ, Signal(bench.now, Dreq(), Dreq().to_mad(1)))
    kept = bench.cm.said()
    conn.send_drep(bench.now)
    other = bench.active()
    assert bench.cm.said() == (2, 1, 1)
    bench.cm.unsay(kept)
    assert bench.cm.said() == kept == (0, 1, 0)
    assert other not in bench.cm.take_met()
