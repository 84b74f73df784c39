# SPDX-License-Identifier: Apache-2.0
"""The states of MPA's start-up, as data (RFC 5044, 7.1; RFC 6581).

`TABLE` has a row for every pair of state and input. A row holds the action, the next state, and a reason if
the input is refused. `markdown()` prints the table as docs/mpa-states.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from rnic.records import Record


class State(Enum):
    """How far a start-up is."""

    IDLE = "not begun: the TCP connection was just made"
    REQ_SENT = "initiator: waiting for the reply"
    AWAIT_REQ = "responder: waiting for the request"
    REQ_RCVD = "responder: the application has the request"
    UP = "both frames were exchanged: the stream is the queue pair's"
    OVER = "refused, failed or given up"


class Input(Enum):
    """What can happen: a call of the application, a frame, the end of the stream, or time."""

    SEND_REQUEST = "send_request()"
    AWAIT_REQUEST = "await_request()"
    SEND_REPLY = "send_reply()"
    SEND_REJECT = "send_reject()"
    CLOSE = "close()"

    REQUEST = "request"
    REPLY = "reply that fits"
    UNFIT_REPLY = "reply with too few READs, or without an RTR message that this end sends"
    REJECT = "reply that refuses"
    OLD_REPLY = "reply of an older revision, or the end of the stream instead of a reply to revision 2"
    MALFORMED = "bytes that are no frame for this end"
    END = "end of the stream"
    TIMEOUT = "timeout, or replaced by a new connection"

    @property
    def is_call(self) -> bool:
        """Whether it is a call of the application: a call in the wrong state is refused."""
        return self.value.endswith("()")


class Action(Enum):
    """What a row does; Startup has a method for each."""

    REFUSE = "raise EINVAL"
    NOTHING = "nothing"
    SEND_REQUEST = "send the request, start the timer"
    START_TIMER = "start the timer"
    TAKE_REQUEST = "report REQUEST"
    SEND_REPLY = "send the reply"
    SEND_REJECT = "send a reply that refuses"
    TAKE_REPLY = "report REPLY"
    TERMINATE = "send a Terminate message; report FAILED"
    TAKE_REJECT = "report REJECTED"
    FALL_BACK = "report OLD_PEER: a request of revision 1 may do, on a connection of its own"
    RESET = "report REJECTED: the peer has closed"
    FAIL = "report FAILED"
    EXPIRE = "send a reply that refuses; report FAILED"


class Row(Record):
    """What one input does in one state."""

    action: Action
    next: State  # the state afterwards
    reason: str = ""  # why the input is refused


_S, _I, _A = State, Input, Action

# What is done: (states, inputs, action, next state).
_DONE: tuple[tuple[tuple[State, ...], tuple[Input, ...], Action, State], ...] = (
    ((_S.IDLE,), (_I.SEND_REQUEST,), _A.SEND_REQUEST, _S.REQ_SENT),
    ((_S.IDLE,), (_I.AWAIT_REQUEST,), _A.START_TIMER, _S.AWAIT_REQ),
    ((_S.IDLE,), (_I.CLOSE,), _A.NOTHING, _S.OVER),
    ((_S.IDLE,), (_I.END,), _A.FAIL, _S.OVER),
    #
    ((_S.REQ_SENT,), (_I.REPLY,), _A.TAKE_REPLY, _S.UP),
    ((_S.REQ_SENT,), (_I.UNFIT_REPLY,), _A.TERMINATE, _S.OVER),
    ((_S.REQ_SENT,), (_I.REJECT,), _A.TAKE_REJECT, _S.OVER),
    ((_S.REQ_SENT,), (_I.OLD_REPLY,), _A.FALL_BACK, _S.OVER),
    ((_S.REQ_SENT,), (_I.END,), _A.RESET, _S.OVER),
    ((_S.REQ_SENT,), (_I.REQUEST, _I.MALFORMED, _I.TIMEOUT), _A.FAIL, _S.OVER),
    ((_S.REQ_SENT,), (_I.CLOSE,), _A.NOTHING, _S.OVER),
    #
    ((_S.AWAIT_REQ,), (_I.REQUEST,), _A.TAKE_REQUEST, _S.REQ_RCVD),
    ((_S.AWAIT_REQ,), (_I.MALFORMED, _I.END, _I.TIMEOUT), _A.FAIL, _S.OVER),
    ((_S.AWAIT_REQ,), (_I.CLOSE,), _A.NOTHING, _S.OVER),
    #
    ((_S.REQ_RCVD,), (_I.SEND_REPLY,), _A.SEND_REPLY, _S.UP),
    ((_S.REQ_RCVD,), (_I.SEND_REJECT, _I.CLOSE), _A.SEND_REJECT, _S.OVER),
    ((_S.REQ_RCVD,), (_I.TIMEOUT,), _A.EXPIRE, _S.OVER),
    ((_S.REQ_RCVD,), (_I.END,), _A.FAIL, _S.OVER),
    #
    ((_S.UP, _S.OVER), (_I.CLOSE,), _A.NOTHING, _S.OVER),
)

_EVERY = tuple(State)
_ANSWERS = (_I.REPLY, _I.UNFIT_REPLY, _I.REJECT, _I.OLD_REPLY)

# What cannot be, as the driver does not read or wait then: (states, inputs, reason).
_REFUSED: tuple[tuple[tuple[State, ...], tuple[Input, ...], str], ...] = (
    (_EVERY, tuple(one for one in Input if one.is_call), "the call does not fit the state"),
    ((_S.IDLE, _S.REQ_RCVD, _S.UP, _S.OVER), (_I.REQUEST, *_ANSWERS, _I.MALFORMED), "no byte is wanted"),
    ((_S.AWAIT_REQ,), _ANSWERS, "a responder wants a request"),
    ((_S.UP, _S.OVER), (_I.END,), "the stream is no business of the start-up any more"),
    ((_S.IDLE, _S.UP, _S.OVER), (_I.TIMEOUT,), "no timer runs"),
)


def _table() -> dict[tuple[State, Input], Row]:
    found: dict[tuple[State, Input], Row] = {}
    for states, inputs, action, following in _DONE:
        for pair in ((state, one) for state in states for one in inputs):
            assert pair not in found, pair
            found[pair] = Row(action, following)
    for states, inputs, reason in _REFUSED:
        for state in states:
            for one in inputs:
                found.setdefault((state, one), Row(Action.REFUSE, state, reason))
    return found


TABLE = _table()

_HEAD = """\
# The states of MPA's start-up

This page is printed from `TABLE` in `src/rnic/mpa/states.py`; a test compares the two.

The initiator has made the TCP connection, and sends a request. The responder replies (RFC 5044, 7.1; RFC
6581). Words with brackets are calls of the application. Every pair of state and input is here. What is
refused raises EINVAL.

"""


def markdown() -> str:
    """The table as a page in Markdown: a section for each state.

    python -c 'import rnic.mpa; print(rnic.mpa.markdown(), end="")' > docs/mpa-states.md
    """
    return _HEAD + "\n".join(line for state in State for line in _section(state))


def _section(state: State) -> Iterator[str]:
    rows = {one: TABLE[state, one] for one in Input}
    yield from (f"### {state.name}", "", f"{state.value[0].upper()}{state.value[1:]}.", "")
    yield from ("| when | what is done | next state |", "|---|---|---|")
    for one, row in rows.items():
        if row.action is not Action.REFUSE:
            following = row.next.name if row.next is not state else ""
            yield f"| {one.value} | {row.action.value} | {following} |"
    yield ""
    reasons: dict[str, list[str]] = {}
    for one, row in rows.items():
        if row.action is Action.REFUSE:
            reasons.setdefault(row.reason, []).append(f"`{one.value}`" if one.is_call else one.value)
    yield from (f"- Refused: {'; '.join(inputs)}: {reason}." for reason, inputs in reasons.items())
    yield ""
