# SPDX-License-Identifier: Apache-2.0
"""The states of a connection and of a service id resolution, as data (IBA 12.9.7, 12.11).

`TABLE` has a row for every pair of state and input. A row holds the action, the next state, and a reason if
the input is ignored or refused. `markdown()` prints the table as docs/cm-states.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum

from rnic.records import Record


class State(Enum):
    """The state of a connection or of a service id resolution: IBA 12.9.7, with the kernel's names."""

    IDLE = "not begun, or ended"
    LISTEN = "listening for a service id"
    REQ_SENT = "active: waiting for REP, REJ or MRA"
    MRA_REQ_RCVD = "active: the peer asked for more time to answer the REQ"
    REP_RCVD = "active: the application has the REP"
    MRA_REP_SENT = "active: this end asked for more time to answer the REP"
    REQ_RCVD = "passive: the application has the REQ"
    MRA_REQ_SENT = "passive: this end asked for more time to answer the REQ"
    REP_SENT = "passive: waiting for RTU, REJ, MRA or data"
    MRA_REP_RCVD = "passive: the peer asked for more time to answer the REP"
    ESTABLISHED = "connected"
    DREQ_SENT = "disconnecting: waiting for DREP"
    DREQ_RCVD = "disconnecting: the application has the DREQ"
    TIMEWAIT = "disconnected; identifiers are not used again while packets of the connection may be under way"
    SIDR_REQ_SENT = "waiting for SIDR_REP"
    SIDR_REQ_RCVD = "the application has the SIDR_REQ"


class Input(Enum):
    """What can happen: a call of the application, a message, or time."""

    LISTEN = "listen()"
    SEND_REQ = "send_req()"
    SEND_MRA = "send_mra()"
    SEND_REP = "send_rep()"
    SEND_RTU = "send_rtu()"
    SEND_REJ = "send_rej()"
    ESTABLISH = "establish()"
    SEND_DREQ = "send_dreq()"
    SEND_DREP = "send_drep()"
    SEND_SIDR_REQ = "send_sidr_req()"
    SEND_SIDR_REP = "send_sidr_rep()"
    CLOSE = "close()"

    REQ = "REQ"
    MRA_REQ = "MRA of the REQ"
    MRA_REP = "MRA of the REP"
    MRA_OTHER = "MRA of a LAP"
    REP = "REP"
    RTU = "RTU"
    REJ = "REJ"
    REJ_STALE = "REJ, stale connection"
    DREQ = "DREQ"
    DREP = "DREP"
    SIDR_REQ = "SIDR_REQ"
    SIDR_REP = "SIDR_REP"
    LAP = "LAP"
    APR = "APR"

    STALE = "the peer's queue pair requests another connection"
    GONE = "the peer's process has died"
    RETRY = "timeout, retries left"
    TIMEOUT = "timeout, no retries left; handshake too long, or replaced by a new one; or TIMEWAIT over"

    @property
    def is_call(self) -> bool:
        """Whether it is a call of the application: a call in the wrong state is refused, not ignored."""
        return self.value.endswith("()")


class Action(Enum):
    """What a row does; the classes that run the table have a method for each action."""

    REFUSE = "raise EINVAL"
    IGNORE = "count it, and do nothing else"
    NOTHING = "nothing"
    LISTEN = "register the service id"
    UNLISTEN = "give up the service id"
    SPAWN = "make a new object, which handles the message in IDLE"
    SEND_REQ = "send REQ, start the timer"
    TAKE_REQ = "report REQ_RECEIVED"
    SEND_MRA = "send MRA (or keep it to answer a repeated message)"
    EXTEND = "wait as long as the MRA says; report MRA_RECEIVED"
    SEND_REP = "send REP, start the timer"
    TAKE_REP = "report REP_RECEIVED"
    SEND_RTU = "send RTU"
    TAKE_RTU = "report RTU_RECEIVED"
    ESTABLISH = "report USER_ESTABLISHED"
    SEND_REJ = "send REJ"
    SEND_TIMEOUT = "send REJ (timeout)"
    REJECT = "send REJ (consumer defined)"
    REJECT_AGAIN = "send the REJ again; if there was none, send REJ (stale connection)"
    TAKE_REJ = "report REJ_RECEIVED"
    ANSWER_AGAIN = "send the last answer again"
    RESEND = "send again, start the timer"
    GIVE_UP_REQ = "send REJ (timeout); report REQ_ERROR"
    GIVE_UP_REP = "send REJ (timeout); report REP_ERROR"
    GIVE_UP_DREQ = "report DREQ_ERROR"
    LOSE_REQ = "report REQ_ERROR"
    LOSE_REP = "report REP_ERROR"
    EXPIRE_REQ = "send REJ (no resources); report REQ_ERROR"
    GIVE_UP_SIDR = "report SIDR_REQ_ERROR"
    SEND_DREQ = "send DREQ, start the timer"
    TAKE_DREQ = "report DREQ_RECEIVED"
    SEND_DREP = "send DREP"
    RELEASE = "send the DREP again; if the DREQs crossed, send it for the first time"
    TAKE_DREP = "report DREP_RECEIVED"
    END_TIMEWAIT = "report TIMEWAIT_EXIT"
    SEND_APR = "send APR (unsupported)"
    SEND_SIDR_REQ = "send SIDR_REQ, start the timer"
    TAKE_SIDR_REQ = "report SIDR_REQ_RECEIVED"
    SEND_SIDR_REP = "send SIDR_REP"
    REFUSE_SIDR = "send SIDR_REP (reject)"
    TAKE_SIDR_REP = "report SIDR_REP_RECEIVED"


class Row(Record):
    """What one input does in one state."""

    action: Action
    next: State  # the state afterwards
    reason: str = ""  # why the input is ignored or refused


# This end has sent a request, and the timer runs.
WAITING = frozenset(
    {
        State.REQ_SENT,
        State.MRA_REQ_RCVD,
        State.REP_SENT,
        State.MRA_REP_RCVD,
        State.DREQ_SENT,
        State.SIDR_REQ_SENT,
    }
)

# A peer has requested a connection, which is not established yet: the time for this is limited.
HALF_OPEN = frozenset({State.REQ_RCVD, State.MRA_REQ_SENT, State.REP_SENT, State.MRA_REP_RCVD})

_S, _I, _A = State, Input, Action
_STAY = None

# What is done: (states, inputs, action, next state).
_DONE: tuple[tuple[tuple[State, ...], tuple[Input, ...], Action, State | None], ...] = (
    ((_S.IDLE,), (_I.LISTEN,), _A.LISTEN, _S.LISTEN),
    ((_S.IDLE,), (_I.SEND_REQ,), _A.SEND_REQ, _S.REQ_SENT),
    ((_S.IDLE,), (_I.REQ,), _A.TAKE_REQ, _S.REQ_RCVD),
    ((_S.IDLE,), (_I.SEND_SIDR_REQ,), _A.SEND_SIDR_REQ, _S.SIDR_REQ_SENT),
    ((_S.IDLE,), (_I.SIDR_REQ,), _A.TAKE_SIDR_REQ, _S.SIDR_REQ_RCVD),
    ((_S.IDLE,), (_I.CLOSE,), _A.NOTHING, _S.IDLE),
    #
    ((_S.LISTEN,), (_I.REQ, _I.SIDR_REQ), _A.SPAWN, _STAY),
    ((_S.LISTEN,), (_I.CLOSE,), _A.UNLISTEN, _S.IDLE),
    #
    ((_S.REQ_SENT,), (_I.MRA_REQ,), _A.EXTEND, _S.MRA_REQ_RCVD),
    ((_S.REQ_SENT, _S.MRA_REQ_RCVD), (_I.REP,), _A.TAKE_REP, _S.REP_RCVD),
    ((_S.REQ_SENT, _S.MRA_REQ_RCVD), (_I.REJ,), _A.TAKE_REJ, _S.IDLE),
    ((_S.REQ_SENT, _S.MRA_REQ_RCVD), (_I.REJ_STALE,), _A.TAKE_REJ, _S.TIMEWAIT),
    ((_S.REQ_SENT, _S.MRA_REQ_RCVD), (_I.SEND_REJ,), _A.SEND_REJ, _S.IDLE),
    ((_S.REQ_SENT, _S.MRA_REQ_RCVD), (_I.CLOSE,), _A.SEND_TIMEOUT, _S.IDLE),
    ((_S.REQ_SENT, _S.MRA_REQ_RCVD), (_I.RETRY,), _A.RESEND, _STAY),
    ((_S.REQ_SENT, _S.MRA_REQ_RCVD), (_I.TIMEOUT,), _A.GIVE_UP_REQ, _S.IDLE),
    # The process with the service has died. The next one that has it, or a refusal, answers at once.
    ((_S.REQ_SENT,), (_I.GONE,), _A.RESEND, _STAY),
    ((_S.MRA_REQ_RCVD,), (_I.GONE,), _A.LOSE_REQ, _S.IDLE),
    #
    ((_S.REP_RCVD,), (_I.SEND_MRA,), _A.SEND_MRA, _S.MRA_REP_SENT),
    ((_S.REP_RCVD, _S.MRA_REP_SENT), (_I.SEND_RTU,), _A.SEND_RTU, _S.ESTABLISHED),
    ((_S.REP_RCVD, _S.MRA_REP_SENT), (_I.SEND_REJ,), _A.SEND_REJ, _S.IDLE),
    ((_S.REP_RCVD, _S.MRA_REP_SENT), (_I.CLOSE,), _A.REJECT, _S.IDLE),
    ((_S.REP_RCVD, _S.MRA_REP_SENT), (_I.REJ, _I.REJ_STALE), _A.TAKE_REJ, _S.TIMEWAIT),
    ((_S.REP_RCVD, _S.MRA_REP_SENT), (_I.GONE,), _A.LOSE_REP, _S.TIMEWAIT),
    ((_S.MRA_REP_SENT, _S.ESTABLISHED), (_I.REP,), _A.ANSWER_AGAIN, _STAY),
    #
    ((_S.REQ_RCVD,), (_I.SEND_MRA,), _A.SEND_MRA, _S.MRA_REQ_SENT),
    ((_S.REQ_RCVD, _S.MRA_REQ_SENT), (_I.SEND_REP,), _A.SEND_REP, _S.REP_SENT),
    ((_S.REQ_RCVD, _S.MRA_REQ_SENT), (_I.SEND_REJ,), _A.SEND_REJ, _S.IDLE),
    ((_S.REQ_RCVD, _S.MRA_REQ_SENT), (_I.CLOSE,), _A.REJECT, _S.IDLE),
    ((_S.REQ_RCVD, _S.MRA_REQ_SENT), (_I.REJ,), _A.TAKE_REJ, _S.IDLE),
    ((_S.REQ_RCVD, _S.MRA_REQ_SENT), (_I.REJ_STALE,), _A.TAKE_REJ, _S.TIMEWAIT),
    ((_S.REQ_RCVD, _S.MRA_REQ_SENT), (_I.GONE,), _A.LOSE_REQ, _S.IDLE),
    ((_S.REQ_RCVD, _S.MRA_REQ_SENT), (_I.TIMEOUT,), _A.EXPIRE_REQ, _S.IDLE),
    ((_S.MRA_REQ_SENT, _S.REP_SENT), (_I.REQ,), _A.ANSWER_AGAIN, _STAY),
    #
    ((_S.REP_SENT,), (_I.MRA_REP,), _A.EXTEND, _S.MRA_REP_RCVD),
    ((_S.REP_SENT, _S.MRA_REP_RCVD), (_I.RTU,), _A.TAKE_RTU, _S.ESTABLISHED),
    ((_S.REP_SENT, _S.MRA_REP_RCVD), (_I.ESTABLISH,), _A.ESTABLISH, _S.ESTABLISHED),
    ((_S.REP_SENT, _S.MRA_REP_RCVD), (_I.REJ,), _A.TAKE_REJ, _S.IDLE),
    ((_S.REP_SENT, _S.MRA_REP_RCVD), (_I.REJ_STALE,), _A.TAKE_REJ, _S.TIMEWAIT),
    ((_S.REP_SENT, _S.MRA_REP_RCVD), (_I.SEND_REJ,), _A.SEND_REJ, _S.TIMEWAIT),
    ((_S.REP_SENT, _S.MRA_REP_RCVD), (_I.CLOSE,), _A.REJECT, _S.TIMEWAIT),
    ((_S.REP_SENT, _S.MRA_REP_RCVD), (_I.DREQ,), _A.TAKE_DREQ, _S.DREQ_RCVD),
    ((_S.REP_SENT, _S.MRA_REP_RCVD), (_I.RETRY,), _A.RESEND, _STAY),
    ((_S.REP_SENT, _S.MRA_REP_RCVD), (_I.TIMEOUT,), _A.GIVE_UP_REP, _S.TIMEWAIT),
    ((_S.REP_SENT, _S.MRA_REP_RCVD), (_I.GONE,), _A.LOSE_REP, _S.TIMEWAIT),
    #
    ((_S.ESTABLISHED,), (_I.ESTABLISH,), _A.NOTHING, _STAY),
    ((_S.ESTABLISHED,), (_I.SEND_DREQ, _I.CLOSE, _I.STALE), _A.SEND_DREQ, _S.DREQ_SENT),
    ((_S.ESTABLISHED,), (_I.DREQ,), _A.TAKE_DREQ, _S.DREQ_RCVD),
    ((_S.ESTABLISHED,), (_I.GONE,), _A.GIVE_UP_DREQ, _S.TIMEWAIT),
    ((_S.ESTABLISHED,), (_I.REJ, _I.REJ_STALE), _A.TAKE_REJ, _S.TIMEWAIT),
    ((_S.ESTABLISHED,), (_I.LAP,), _A.SEND_APR, _STAY),
    #
    ((_S.DREQ_SENT,), (_I.DREP,), _A.TAKE_DREP, _S.TIMEWAIT),
    ((_S.DREQ_SENT,), (_I.DREQ,), _A.TAKE_DREQ, _S.DREQ_RCVD),
    ((_S.DREQ_SENT,), (_I.REJ, _I.REJ_STALE), _A.TAKE_REJ, _S.TIMEWAIT),
    ((_S.DREQ_SENT,), (_I.RETRY,), _A.RESEND, _STAY),
    ((_S.DREQ_SENT,), (_I.TIMEOUT, _I.GONE), _A.GIVE_UP_DREQ, _S.TIMEWAIT),
    ((_S.DREQ_SENT,), (_I.CLOSE,), _A.NOTHING, _STAY),
    #
    ((_S.DREQ_RCVD,), (_I.SEND_DREP, _I.CLOSE), _A.SEND_DREP, _S.TIMEWAIT),
    ((_S.DREQ_RCVD,), (_I.DREP,), _A.TAKE_DREP, _S.TIMEWAIT),
    #
    ((_S.TIMEWAIT,), (_I.REQ,), _A.REJECT_AGAIN, _STAY),
    ((_S.TIMEWAIT,), (_I.DREQ,), _A.RELEASE, _STAY),
    ((_S.TIMEWAIT,), (_I.SEND_DREP, _I.CLOSE), _A.NOTHING, _STAY),
    ((_S.TIMEWAIT,), (_I.TIMEOUT,), _A.END_TIMEWAIT, _S.IDLE),
    #
    ((_S.SIDR_REQ_SENT,), (_I.SIDR_REP,), _A.TAKE_SIDR_REP, _S.IDLE),
    ((_S.SIDR_REQ_SENT,), (_I.RETRY, _I.GONE), _A.RESEND, _STAY),
    ((_S.SIDR_REQ_SENT,), (_I.TIMEOUT,), _A.GIVE_UP_SIDR, _S.IDLE),
    ((_S.SIDR_REQ_SENT,), (_I.CLOSE,), _A.NOTHING, _S.IDLE),
    ((_S.SIDR_REQ_RCVD,), (_I.SEND_SIDR_REP,), _A.SEND_SIDR_REP, _S.IDLE),
    ((_S.SIDR_REQ_RCVD,), (_I.CLOSE,), _A.REFUSE_SIDR, _S.IDLE),
)

_EVERY = tuple(State)
_BEFORE_REP = (_S.IDLE, _S.LISTEN, _S.REQ_SENT, _S.MRA_REQ_RCVD, _S.REQ_RCVD, _S.MRA_REQ_SENT)
_SIDR = (_S.SIDR_REQ_SENT, _S.SIDR_REQ_RCVD)

# What is ignored: (states, inputs, reason). A pair that is named above is not ignored.
_IGNORED: tuple[tuple[tuple[State, ...], tuple[Input, ...], str], ...] = (
    ((_S.IDLE, _S.LISTEN), (_I.MRA_REQ, _I.MRA_REP, _I.MRA_OTHER), "nothing was sent that could be answered"),
    ((_S.IDLE, _S.LISTEN), (_I.REP, _I.RTU, _I.REJ, _I.REJ_STALE), "nothing was sent that could be answered"),
    ((_S.IDLE, _S.LISTEN), (_I.DREQ, _I.DREP, _I.LAP, _I.APR), "there is no connection"),
    ((_S.IDLE, _S.LISTEN), (_I.SIDR_REP, _I.STALE), "nothing was sent that could be answered"),
    (
        _SIDR,
        tuple(
            one
            for one in Input
            if not one.is_call
            and one not in (_I.SIDR_REQ, _I.SIDR_REP, _I.STALE, _I.GONE, _I.RETRY, _I.TIMEOUT)
        ),
        "a resolution is not a connection",
    ),
    ((_S.SIDR_REQ_SENT,), (_I.SIDR_REQ,), "the id belongs to a question of this end"),
    ((_S.SIDR_REQ_RCVD,), (_I.SIDR_REQ,), "repeated: the application has it already"),
    ((_S.SIDR_REQ_RCVD,), (_I.SIDR_REP,), "this end asked nothing"),
    ((_S.SIDR_REQ_RCVD,), (_I.GONE,), "the answer costs nothing, and this end waits for nothing"),
    (_EVERY, (_I.SIDR_REQ, _I.SIDR_REP), "a connection is not a resolution"),
    (
        (_S.REQ_SENT, _S.MRA_REQ_RCVD, _S.REP_RCVD, _S.MRA_REP_SENT),
        (_I.REQ,),
        "this end is the active one; two ends that call each other do not share one connection",
    ),
    ((_S.REQ_RCVD,), (_I.REQ,), "repeated: the application has it already"),
    ((_S.MRA_REP_RCVD,), (_I.REQ,), "repeated: the MRA shows that the REP arrived"),
    ((_S.ESTABLISHED, _S.DREQ_SENT, _S.DREQ_RCVD), (_I.REQ,), "repeated: it was answered long ago"),
    ((_S.MRA_REQ_RCVD,), (_I.MRA_REQ,), "repeated: the first MRA is in force"),
    ((_S.MRA_REP_RCVD,), (_I.MRA_REP,), "repeated: the first MRA is in force"),
    (_EVERY, (_I.MRA_REQ, _I.MRA_REP), "no such message of this end waits for an answer"),
    (_EVERY, (_I.MRA_OTHER, _I.APR), "this end never sends a LAP: RoCE has no alternate paths"),
    (_EVERY, (_I.LAP,), "there is no connection with a path to change"),
    ((_S.REP_RCVD,), (_I.REP,), "repeated: the application has it already"),
    ((_S.REQ_RCVD, _S.MRA_REQ_SENT, _S.REP_SENT, _S.MRA_REP_RCVD), (_I.REP,), "this end is the passive one"),
    ((_S.DREQ_SENT, _S.DREQ_RCVD, _S.TIMEWAIT), (_I.REP,), "late: the DREQ tells the peer more"),
    ((_S.ESTABLISHED,), (_I.RTU,), "repeated"),
    ((_S.DREQ_SENT, _S.DREQ_RCVD, _S.TIMEWAIT), (_I.RTU,), "late: the connection is being released"),
    (_EVERY, (_I.RTU,), "no REP was sent"),
    ((_S.DREQ_RCVD, _S.TIMEWAIT), (_I.REJ, _I.REJ_STALE), "the connection is being released already"),
    (_BEFORE_REP, (_I.DREQ,), "there is no connection yet"),
    ((_S.REP_RCVD, _S.MRA_REP_SENT), (_I.DREQ,), "the peer cannot have the RTU; its REP will time out"),
    ((_S.DREQ_RCVD,), (_I.DREQ,), "repeated: the application has it already"),
    ((_S.TIMEWAIT,), (_I.DREP,), "repeated, or the DREQs crossed"),
    (_EVERY, (_I.DREP,), "no DREQ was sent"),
    ((_S.IDLE, _S.LISTEN), (_I.GONE,), "there is no peer"),
    ((_S.DREQ_RCVD, _S.TIMEWAIT), (_I.GONE,), "the connection is being released already"),
    (_EVERY, (_I.STALE,), "there is no connection; the timer of this state ends it"),
    (_EVERY, (_I.RETRY, _I.TIMEOUT), "no timer runs"),
)


def _allowed(call: Input) -> str:
    states = [s.name for states, inputs, _, _ in _DONE if call in inputs for s in states]
    return f"only in {', '.join(states)}"


def _build() -> dict[tuple[State, Input], Row]:
    table: dict[tuple[State, Input], Row] = {}
    for pair, action, following in _done():
        row = Row(action, following)
        assert table.setdefault(pair, row) is row, f"two rows for {pair}"
    for states, inputs, reason in _IGNORED:
        for state in states:
            row = Row(Action.IGNORE, state, reason)
            for one in inputs:
                table.setdefault((state, one), row)
    for call in (one for one in Input if one.is_call):
        reason = _allowed(call)
        for state in State:
            table.setdefault((state, call), Row(Action.REFUSE, state, reason))
    assert len(table) == len(State) * len(Input), "a pair without a row"
    return table


def _done() -> Iterator[tuple[tuple[State, Input], Action, State]]:
    for states, inputs, action, following in _DONE:
        for state in states:
            for one in inputs:
                yield (state, one), action, following or state


TABLE = _build()


_HEAD = """\
# The states of the communication manager

This page is printed from `TABLE` in `src/rnic/cm/states.py`; a test compares the two.

Words in capitals are messages, states and events of IBA chapter 12. Words with brackets are calls of the
application. The two ends agree in the REQ how long they wait for an answer, and how often they send a message
again. Every pair of state and input is here. An ignored message is counted; a refused call raises EINVAL.

"""


def markdown() -> str:
    """The table as a page in Markdown: a section for each state, with the ignored inputs at its end.

    python -c 'import rnic.cm; print(rnic.cm.markdown(), end="")' > docs/cm-states.md
    """
    return _HEAD + "\n".join(line for state in State for line in _section(state))


def _section(state: State) -> Iterator[str]:
    rows = {one: TABLE[state, one] for one in Input}
    yield from (f"### {state.name}", "", f"{state.value[0].upper()}{state.value[1:]}.", "")
    done = {one: row for one, row in rows.items() if row.action not in (Action.IGNORE, Action.REFUSE)}
    yield from ("| when | what is done | next state |", "|---|---|---|")
    for one, row in done.items():
        following = row.next.name if row.next is not state else ""
        yield f"| {one.value} | {row.action.value} | {following} |"
    yield ""
    reasons: dict[str, list[str]] = {}
    for one, row in rows.items():
        if row.action is Action.IGNORE:
            reasons.setdefault(row.reason, []).append(one.value)
    yield from (f"- Ignored: {_list(inputs)}: {reason}." for reason, inputs in reasons.items())
    refused = [f"`{one.value}`" for one, row in rows.items() if row.action is Action.REFUSE]
    yield from (f"- Refused: {_list(refused)}.", "")


def _list(words: Iterable[str]) -> str:
    return "; ".join(words)
