# SPDX-License-Identifier: Apache-2.0
"""Scripts of calls on the ids of two seats, one that connects and one that is called, and what comes of them.

A script is words: `one.connect` is a call on an id that has to succeed, `child<ESTABLISHED` waits for that
event, `~` for whatever comes. After a state's script one call more is tried, or a random walk of calls; what
came of it in one pair of seats is compared with what came of it in another.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rdmacm.differences import Step, Told, refuses_unseen, why_different
from rdmacm.seat import CALLS

SERIALS = itertools.count()
_REFUSES = ("one.accept", "one.reject", "one.establish")
PASSIVE = ("listener", "child")

_RESOLVED = "one.resolve_addr one<ADDR_RESOLVED one.resolve_route one<ROUTE_RESOLVED"
_ASKED = f"{_RESOLVED} one.create_qp one.connect child<CONNECT_REQUEST"
_ASKED_FOREIGN = f"{_RESOLVED} one.connect_foreign child<CONNECT_REQUEST"
_ANSWERED = f"{_ASKED_FOREIGN} child.create_qp child.accept one<CONNECT_RESPONSE"
_ESTABLISHED = f"{_ASKED} child.create_qp child.accept one<ESTABLISHED child<ESTABLISHED"

STATES = {
    "new": "",
    "bound": "one.bind_addr",
    "listening": "one.bind_addr one.listen",
    "address known": "one.resolve_addr one<ADDR_RESOLVED",
    "bound, address known": "one.bind_addr one.resolve_addr one<ADDR_RESOLVED",
    "route known": _RESOLVED,
    "ready": f"{_RESOLVED} one.create_qp",
    "asked": _ASKED,
    "asked, foreign": _ASKED_FOREIGN,
    "asked, the child is ready": f"{_ASKED} child.create_qp",
    "asked, one disconnects": f"{_ASKED} one.disconnect",
    "asked, child disconnects": f"{_ASKED} child.disconnect",
    "answered": _ANSWERED,
    "answered, foreign": f"{_ASKED_FOREIGN} child.accept_foreign one<CONNECT_RESPONSE",
    "answered, one disconnects": f"{_ANSWERED} one.disconnect",
    "answered, child disconnects": f"{_ANSWERED} child.disconnect",
    "established": _ESTABLISHED,
    "established, foreign": f"{_ANSWERED} one.establish child<ESTABLISHED",
    "established, one has no more queue pair": f"{_ESTABLISHED} one.destroy_qp",
    "established, child has no more queue pair": f"{_ESTABLISHED} child.destroy_qp",
    "one disconnects": f"{_ESTABLISHED} one.disconnect child<DISCONNECTED",
    "child disconnects": f"{_ESTABLISHED} child.disconnect one<DISCONNECTED",
    "both disconnect": f"{_ESTABLISHED} one.disconnect child<DISCONNECTED child.disconnect one<DISCONNECTED",
    "child rejects": f"{_ASKED} child.reject one<REJECTED",
    "one rejects": f"{_ANSWERED} one.reject child<REJECTED",
    "asked, one is destroyed": f"{_ASKED} one.destroy ~",
    "asked, child is destroyed": f"{_ASKED} child.destroy one<REJECTED",
    "answered, one is destroyed": f"{_ANSWERED} one.destroy child<REJECTED",
    "answered, child is destroyed": f"{_ANSWERED} child.destroy one<REJECTED",
    "established, one is destroyed": f"{_ESTABLISHED} one.destroy child<DISCONNECTED",
    "established, child is destroyed": f"{_ESTABLISHED} child.destroy one<DISCONNECTED",
}


def ids_in(state: str) -> list[str]:
    """The ids that are there in a state; of the one that listens, where it is worth a look."""
    script = STATES[state]
    there = ["one"] if "one.destroy " not in script + " " else []
    if "child<CONNECT_REQUEST" in script and "child.destroy " not in script + " ":
        there.append("child")
    return [*there, "listener"] if state in ("new", "asked", "established") else there


def tries() -> Iterator[tuple[str, str]]:
    """Every state with every call on every id that is there."""
    for state in STATES:
        for name in ids_in(state):
            for call in CALLS:
                yield state, f"{name}.{call}"


@dataclass(frozen=True)
class Talk:
    """What was heard on the way to a state, the queue pairs' states then, and what came of each call."""

    heard: list[Any]
    states: dict[str, str]
    told: list[Told]


class Conversation:
    """Two seats and what they say."""

    def __init__(self, active: Any, passive: Any) -> None:
        self.active, self.passive = active, passive
        port = passive.listen()
        active.call((passive.ip, port))

    def hold(self, state: str, words: list[str]) -> Talk:
        """Lead both to a state, and then make the calls, up to one that an end does not survive."""
        heard = self._reach(state)
        talk = Talk(heard, self._states(), [])
        for word in words:
            talk.told.append(self._step(word))
            if talk.told[-1].answer == "crash":
                break
        return talk

    def _reach(self, state: str) -> list[Any]:
        heard: list[Any] = []
        for word in STATES[state].split():
            if word == "~":
                heard.append(self._settle())
            elif "<" in word:
                name, kind = word.split("<")
                heard.append(self._seat(name).expect(kind))
            else:
                answer = self._do(word)
                assert answer == "ok", f"{word}: {answer}"
        return heard

    def _step(self, word: str) -> Told:
        """Make a call, and hear all that comes of it."""
        answer = self._do(word)
        if answer == "crash":
            return Told(answer)
        active, passive = self._settle()
        return Told(answer, active, passive, self._states())

    def _seat(self, name: str) -> Any:
        return self.passive if name.startswith(PASSIVE) else self.active

    def _do(self, word: str) -> str:
        name, call = word.split(".")
        return str(self._seat(name).do(name, call))

    def _states(self) -> dict[str, str]:
        return {**self.active.states(), **self.passive.states()}

    def _settle(self) -> list[list[Any]]:
        """What the two seats hear until nothing is under way any more, each in its order."""
        heard: list[list[Any]] = [[], []]
        while True:
            self.active.ask(self.passive.ip, next(SERIALS))
            self.passive.ask(self.active.ip, next(SERIALS))
            new = [self.active.events(), self.passive.events()]
            if not any(new):
                return heard
            for mine, more in zip(heard, new, strict=True):
                mine += more


def route(seed: int, steps: int = 8) -> tuple[str, list[str]]:
    """A random state, and calls from there on."""
    rng = random.Random(seed)
    state = rng.choice(list(STATES))
    names, words = ids_in(state), list[str]()
    while len(words) < steps:
        word = f"{rng.choice(names)}.{rng.choice(list(CALLS))}"
        # The kernel does not end an id that has refused its own request before that is given up, after 100 s.
        waits = word == "one.destroy" and any(said.startswith(_REFUSES) for said in words)
        # librdmacm accepts with the depths of a connect() that it has refused.
        spoils = word.startswith("child.connect")
        if not waits and not spoils:
            words.append(word)
    return state, words


def compare(state: str, words: list[str], kernel: Talk, other: Talk) -> Iterator[str]:
    """What is different and not explained, up to a difference, after which the two go different ways."""
    if kernel.heard != other.heard and "~" not in STATES[state]:
        yield f"{state}: {kernel.heard}, not {other.heard}"
    past, states = {word for word in STATES[state].split() if "." in word}, kernel.states
    for word, one, another in zip(words, kernel.told, other.told, strict=False):
        name, call = word.split(".")
        step = Step(name, call, frozenset(past), states)
        if one == another and refuses_unseen(step, one):
            return
        if one != another:
            if why_different(step, one, another) is None:
                yield f"{state}, then {' '.join(words)}\n  {word}\n  kernel {one}\n  here   {another}"
            return
        past |= {word} if one.answer == "ok" else set()
        states = one.states
