# SPDX-License-Identifier: Apache-2.0
"""Where rnic answers a call otherwise than the Linux kernel (6.1) with librdmacm (44.0), and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

ANYTHING = ...
"""Instead of an answer: it is not compared; another test does."""


@dataclass(frozen=True)
class Told:
    """What came of a call: its answer, what each seat heard, and the states of the queue pairs."""

    answer: str
    active: Any = ()
    passive: Any = ()
    states: Any = field(default_factory=dict)

    def is_met_by(self, other: Told) -> bool:
        pairs = zip(self._parts(), other._parts(), strict=True)
        return all(one is ANYTHING or one == another for one, another in pairs)

    def _parts(self) -> tuple[Any, ...]:
        return self.answer, self.active, self.passive, self.states

    @property
    def heard(self) -> list[str]:
        """The kinds of the events."""
        return [event[1] for event in (*self.active, *self.passive)]


@dataclass(frozen=True)
class Step:
    """A call, and what was before it."""

    name: str
    call: str
    past: frozenset[str]  # the calls that have succeeded
    states: Any  # of the queue pairs

    def had(self, *calls: str) -> bool:
        """Whether the id has been called so, with success."""
        return any(f"{self.name}.{call}" in self.past for call in calls)

    @property
    def refused(self) -> Told:
        """rnic's way of saying no: nothing has changed."""
        return Told("EINVAL", [], [], self.states)


CONNECTS = ("connect", "connect_foreign", "connect_most", "connect_long", "connect_deep")
ACCEPTS = ("accept", "accept_foreign", "accept_most", "accept_long", "accept_deep", "accept_none")

Rule = Callable[[Step, Told], Iterator[Told]]
"""What may come of the call instead of what the kernel makes of it."""


def crashes(step: Step, kernel: Told) -> Iterator[Told]:
    """librdmacm takes what an id has not got yet (a device, a queue pair, a parameter) for a pointer."""
    if kernel.answer == "crash":
        yield Told("ok" if step.call == "destroy_qp" else "EINVAL", ANYTHING, ANYTHING, ANYTHING)


def no_queue_pair(step: Step, kernel: Told) -> Iterator[Told]:
    """A connection of queue pair 0, the subnet manager's (IBA 3.5.3): rnic neither asks nor agrees."""
    bare = step.call in (*CONNECTS, *ACCEPTS) and not step.call.endswith("_foreign")
    if bare and step.name not in step.states and kernel.answer == "ok":
        yield step.refused
        yield Told("ok", ANYTHING, ANYTHING, ANYTHING)


def refused_and_broken(step: Step, kernel: Told) -> Iterator[Told]:
    """A call that fails changes nothing: the kernel refuses the connection as well when accept() or
    establish() do not fit its state; librdmacm's disconnect() puts the queue pair into ERR before it fails.
    """
    breaks = kernel.answer == "EINVAL" and (kernel.heard or kernel.states != step.states)
    if breaks and step.call in (*ACCEPTS, "establish", "disconnect"):
        yield step.refused


def refuses_unseen(step: Step, kernel: Told) -> bool:
    """Whether the kernel may have refused the connection so, though nobody has heard of it yet."""
    return kernel.answer == "EINVAL" and step.call in (*ACCEPTS, "establish") and step.had(*CONNECTS)


def queue_pair_error(step: Step, kernel: Told) -> Iterator[Told]:
    """An error of the queue pair that rnic is told of ends the connection; the kernel takes only COMM_EST."""
    if step.call == "notify_fatal" and kernel.answer == "EINVAL":
        yield Told("ok", ANYTHING, ANYTHING, ANYTHING)


def early_attributes(step: Step, _kernel: Told) -> Iterator[Told]:
    """Attributes for RTR and RTS before there is a peer: the kernel gives zeros."""
    if step.call in ("rtr_attr", "rts_attr") and step.name == "one" and not step.had(*CONNECTS):
        yield step.refused


def untold_child(step: Step, kernel: Told) -> Iterator[Told]:
    """The peer has gone before its request was accepted: the kernel lets accept() fail, and tells nothing."""
    accepted = any(f"child.{call}" in step.past for call in ACCEPTS)
    if step.name == "one" and step.call == "destroy" and step.had(*CONNECTS) and not accepted:
        yield Told("ok", kernel.active, ANYTHING, ANYTHING)


def flow_control(step: Step, kernel: Told) -> Iterator[Told]:
    """accept() without parameters: rnic answers the flow control that was asked for, librdmacm none."""
    if step.call == "accept_none":
        yield Told("ok", ANYTHING, kernel.passive, kernel.states)


def broken_in_between(_step: Step, kernel: Told) -> Iterator[Told]:
    """The queue pair is in ERR when the peer's answer comes: rnic tells the peer, librdmacm does not."""
    if "CONNECT_ERROR" in kernel.heard:
        yield Told("ok", ANYTHING, ANYTHING, ANYTHING)


def ends_in_order(step: Step, kernel: Told) -> Iterator[Told]:
    """disconnect() in the handshake: rnic ends the connection when there is one, the kernel forgets it."""
    agreed = {"ESTABLISHED", "CONNECT_RESPONSE"} & set(kernel.heard)
    if agreed and {"one.disconnect", "child.disconnect"} & step.past:
        yield Told("ok", ANYTHING, ANYTHING, ANYTHING)


RULES: tuple[Rule, ...] = (
    crashes,
    no_queue_pair,
    refused_and_broken,
    queue_pair_error,
    early_attributes,
    untold_child,
    flow_control,
    broken_in_between,
    ends_in_order,
)


def why_different(step: Step, kernel: Told, other: Told) -> str | None:
    """The name of the rule that explains it; None when there is none."""
    for rule in RULES:
        if any(meant.is_met_by(other) for meant in rule(step, kernel)):
            return rule.__name__
    return None
