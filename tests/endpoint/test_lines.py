# SPDX-License-Identifier: Apache-2.0
"""An exception at any line of a call: when the next call has settled, it was done whole or not at all."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import rnic.endpoint
from endpoint.queues import SMALL, Pair
from rnic._nic.nic import Ledger
from rnic.endpoint import Config, Failed, Outgoing, Protocol
from rnic.endpoint.outbox import Message
from rnic.enums import AccessFlags

ROOM = str(Path(rnic.endpoint.__file__).parent)
READ = AccessFlags.REMOTE_READ
COUNTED = [name for name, what in vars(Ledger).items() if not name.startswith("_") and not callable(what)]
ROOMY = replace(SMALL, receives=16, max_backlog=2000)


def interrupted(nth: int, call: Callable[[], object]) -> bool:
    """KeyboardInterrupt at the nth line of the call; False when it has fewer."""
    left = nth

    def trace(frame: FrameType, event: str, _arg: Any) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.startswith(ROOM):
            return None
        if event == "line":
            left -= 1
            if left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        assert left == 0
        return True
    finally:
        sys.settrace(before)
    return False


def stand(one: Protocol) -> dict[str, Any]:
    """All that a call changes, but what an unfinished one may leave: the time, the ABORT to come."""
    found = {name: value for name, value in vars(one).items() if name not in ("_heard_at", "_abort", "_step")}
    for name in ("_inbox", "_own", "_theirs", "_offers"):
        found[name] = dict(vars(found[name]))
    found["_offers"].pop("_flow")
    found["flow"] = {name: getattr(one.flow, name) for name in COUNTED}
    found["_own"]["shared"], found["_theirs"]["known"] = dict(one.shared), dict(one.regions)
    found["_posted"] = list(found["_posted"])
    events = one._inbox._events
    found["_inbox"]["_events"] = [(str(i.error), 0) if isinstance(i, Failed) else i for i in events]
    found["error"] = str(one.error)
    assembler = found["_assembler"]
    here = assembler._data.getvalue()[: assembler.buffered] if assembler._keeps else b""
    found["_assembler"] = (assembler.buffered, assembler._total, assembler._tag, here)
    queue = found["_outbox"]._queue
    found["_outbox"] = [
        (i.handle, bytes(i.data), i.number, i.offset, i.stopped) if isinstance(i, Message) else repr(i)
        for i in queue
    ]
    found["taken"] = one.taken
    return found


def talk() -> Pair:
    """Something of every kind is under way at a: it can be sent, come in, complete, and be taken."""
    pair = Pair(ROOMY, ROOMY)
    for end in pair.ends:
        end.protocol.share(0, 8, 1, READ)
        end.protocol.share(8, 8, 2, READ)
    pair.run()
    pair.b.protocol.send(b"event")
    pair.b.post_send()
    pair.arrive(pair.b)
    pair.a.protocol.send(b"out")
    pair.a.post_send()
    pair.arrive(pair.a)
    pair.a.protocol.send(bytes(100))
    return pair


def coming(*calls: Callable[[Protocol], object], arrived: int = 0) -> Callable[[], Pair]:
    """What b says is on its way; so much of it has come."""

    def make() -> Pair:
        pair = talk()
        for call in calls:
            call(pair.b.protocol)
        while pair.b.post_send():
            pass
        for _ in range(arrived):
            pair.arrive(pair.b)
        pair.a.post_receives()
        return pair

    return make


def going(*calls: Callable[[Protocol], object], sends: int = 0) -> Callable[[], Pair]:
    """What a says next is the last of it: so many SENDs have gone before."""

    def make() -> Pair:
        pair = talk()
        for call in calls:
            call(pair.a.protocol)
        for _ in range(sends):
            pair.a.post_send()
        return pair

    return make


def announced(*calls: Callable[[Protocol], object]) -> Callable[[], Pair]:
    """b has announced a message, and a knows it."""

    def make() -> Pair:
        pair = Pair(ROOMY, ROOMY)
        pair.b.protocol.announce(1000, 0x1000, 7, 5)
        pair.b.post_send()
        pair.arrive(pair.b)
        pair.a.post_receives()
        for call in calls:
            call(pair.a.protocol)
        return pair

    return make


def stopping() -> Pair:
    """As announced(); and b says STOP."""
    pair = announced()()
    pair.b.protocol.stop(1)
    pair.b.post_send()
    return pair


def half() -> Pair:
    """A piece of b's message has come; and b says STOP."""
    pair = talk()
    pair.b.protocol.send(bytes(200))
    pair.b.post_send()
    pair.arrive(pair.b)
    pair.a.post_receives()
    pair.b.protocol.stop(2)
    pair.b.post_send()
    return pair


def stopped() -> Pair:
    """A piece of a's message has gone; and a takes it back."""
    pair = talk()
    pair.a.post_send()
    pair.a.protocol.stop(2)
    return pair


def taken() -> Pair:
    """The other way round: a has announced, and b has taken it, which is on its way."""
    pair = Pair(ROOMY, ROOMY)
    pair.a.protocol.announce(1000, 0x1000, 7)
    pair.a.post_send()
    pair.arrive(pair.a)
    pair.b.protocol.begin_fetch()
    pair.b.protocol.fetched(bytes(1000))
    pair.b.post_send()
    return pair


def owing() -> Pair:
    """a has to return credits, and nothing else to say."""
    pair = Pair(ROOMY, ROOMY)
    for _ in range(ROOMY.receives // 2):
        pair.b.protocol.send(b"x")
        pair.b.post_send()
        pair.arrive(pair.b)
    pair.a.post_receives()
    return pair


def idle() -> Pair:
    pair = Pair(ROOMY, ROOMY)
    pair.a.protocol.timer(1e3)
    return pair


def released() -> Pair:
    pair = coming(lambda one: one.withdraw(1), arrived=1)()
    pair.a.post_receives()
    return pair


def arrival(pair: Pair) -> None:
    out, payload = pair.b.wire[0]
    pair.a.protocol.receive(out.header + payload, 1.0)


def completion(pair: Pair) -> object:
    return pair.a.protocol.sent(pair.a.arrived[-1].number, 1.0)


def sending(pair: Pair) -> object:
    return pair.a.protocol.next_send()


CALLS: dict[str, tuple[Callable[[], Pair], Callable[[Pair], object]]] = {
    "send": (talk, lambda pair: pair.a.protocol.send(b"more")),
    "share": (talk, lambda pair: pair.a.protocol.share(0, 8, 3, READ)),
    "withdraw": (talk, lambda pair: pair.a.protocol.withdraw(1)),
    "begin to close": (talk, lambda pair: pair.a.protocol.close(0.0)),
    "lost": (talk, lambda pair: pair.a.protocol.lost("gone")),
    "next_event": (talk, lambda pair: pair.a.protocol.next_event()),
    "sent": (talk, completion),
    "a message comes": (coming(lambda one: one.send(b"whole")), arrival),
    "a first piece comes": (coming(lambda one: one.send(bytes(200))), arrival),
    "a further piece comes": (coming(lambda one: one.send(bytes(200)), arrived=1), arrival),
    "a last piece comes": (coming(lambda one: one.send(bytes(100)), arrived=1), arrival),
    "a SHARE comes": (coming(lambda one: one.share(0, 8, 3, READ)), arrival),
    "a WITHDRAW comes": (coming(lambda one: one.withdraw(1)), arrival),
    "a GOODBYE comes": (coming(lambda one: one.close(0.0)), arrival),
    "an ABORT comes": (coming(lambda one: one.abort()), arrival),
    "announce": (talk, lambda pair: pair.a.protocol.announce(1000, 0x1000, 7)),
    "an ANNOUNCE comes": (coming(lambda one: one.announce(1000, 0x1000, 7)), arrival),
    "stop": (going(sends=1), lambda pair: pair.a.protocol.stop(2)),
    "a STOP of a piece comes": (half, arrival),
    "a STOP of an offer comes": (stopping, arrival),
    "a TAKEN comes": (taken, arrival),
    "fetched": (announced(Protocol.begin_fetch), lambda pair: pair.a.protocol.fetched(bytes(1000))),
    "discard an offer": (announced(), lambda pair: pair.a.protocol.discard()),
    "a first piece goes": (talk, sending),
    "a last piece goes": (going(sends=1), sending),
    "a SHARE goes": (going(lambda one: one.share(0, 8, 3, READ), sends=2), sending),
    "a WITHDRAW goes": (going(lambda one: one.withdraw(1), sends=2), sending),
    "a GOODBYE goes": (going(lambda one: one.close(0.0), sends=2), sending),
    "an ABORT goes": (going(lambda one: one.abort()), sending),
    "a RELEASE goes": (released, sending),
    "an ANNOUNCE goes": (going(lambda one: one.announce(1000, 0x1000, 7), sends=2), sending),
    "a STOP goes": (stopped, sending),
    "a TAKEN goes": (announced(lambda one: one.fetched(bytes(1000))), sending),
    "a CREDIT goes": (owing, sending),
    "a probe goes": (idle, sending),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_exception_at_any_line_leaves_a_call_done_or_not_begun(name: str) -> None:
    make, call = CALLS[name]
    pair = make()
    before = stand(pair.a.protocol)
    call(pair)
    after = stand(pair.a.protocol)
    assert before != after
    ends = set()
    for nth in count(1):
        pair = make()
        if not interrupted(nth, lambda pair=pair: call(pair)):  # type: ignore[misc]
            break
        pair.a.protocol.settle()
        found = stand(pair.a.protocol)
        assert found in (before, after), f"line {nth}"
        ends.add(found == after)
    assert ends == {False, True}


@pytest.mark.parametrize("name", [name for name in CALLS if name.endswith(" goes")])
def test_what_was_handed_out_is_kept_once_wherever_the_exception_came(name: str) -> None:
    make, _ = CALLS[name]
    for nth in count(1):
        pair, kept = make(), deque[Outgoing]()
        protocol = pair.a.protocol
        number = protocol.outstanding
        if not interrupted(nth, lambda protocol=protocol, kept=kept: protocol.next_send(kept)):  # type: ignore[misc]
            break
        protocol.settle()
        assert len(kept) == protocol.outstanding - number


SETTLING: dict[str, Callable[[Protocol], object]] = {
    "hello": lambda one: one.hello(),
    "send": lambda one: one.send(b""),
    "share": lambda one: one.share(0, 8, 3, READ),
    "withdraw": lambda one: one.withdraw(1),
    "announce": lambda one: one.announce(1000, 0x1000, 7),
    "cancel": lambda one: one.cancel(99),
    "stop": lambda one: one.stop(99),
    "detach": lambda one: one.detach(99),
    "close": lambda one: one.close(0.0),
    "abort": lambda one: one.abort(),
    "next_event": lambda one: one.next_event(),
    "peek_event": lambda one: one.peek_event(),
    "want": lambda one: one.want(True),
    "discard": lambda one: one.discard(),
    "receives_to_post": lambda one: one.receives_to_post(),
    "next_send": lambda one: one.next_send(),
    "receive": lambda one: one.receive(b"", 0.0),
    "sent": lambda one: one.sent(one.completed + 1, 0.0),
    "lost": lambda one: one.lost("gone"),
    "disconnected": lambda one: one.disconnected(),
    "timer": lambda one: one.timer(0.0),
}


@pytest.mark.parametrize("name", SETTLING)
def test_every_call_first_finishes_what_was_interrupted(name: str) -> None:
    protocol = talk().a.protocol
    done: list[int] = []

    def step(number: int) -> None:
        done.append(number)
        if len(done) == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        protocol._do(step, 1)
    SETTLING[name](protocol)
    assert done == [1, 1]
    SETTLING["peek_event"](protocol)
    assert done == [1, 1]


@pytest.mark.parametrize("value", ["3", 3.0, None])
def test_a_number_of_another_type_is_named(value: object) -> None:
    with pytest.raises(TypeError, match="receives is a whole number, not "):
        Config(receives=value)  # type: ignore[arg-type]
