# SPDX-License-Identifier: Apache-2.0
"""Any interleaving of calls, arrivals and completions: all arrives once, in order, intact, none waits."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from endpoint.queues import End, Pair
from rnic.endpoint import (
    SPARE,
    Closed,
    Config,
    Event,
    MessageReceived,
    PeerClosed,
    RegionShared,
    RegionWithdrawn,
    State,
)
from rnic.enums import AccessFlags

CONFIGS = st.builds(
    Config,
    receive_size=st.integers(64, 200),
    receives=st.integers(3, 9),
    max_message=st.just(2000),
    max_backlog=st.integers(1, 3000),
    max_regions=st.integers(0, 4),
    idle_interval=st.just(1.0),
)
SIDES = st.integers(0, 1)
LIVE = (State.OPEN, State.HALF_CLOSED_LOCAL, State.HALF_CLOSED_REMOTE)


class Conversation(RuleBasedStateMachine):
    """Two ends; each remembers what the other one has to hear."""

    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair()
        self.said: list[list[Event]] = [[], []]
        self.handles: list[list[int]] = [[], []]
        self.announced: list[set[int]] = [set(), set()]  # those of the handles
        self.closed = [False, False]
        self.counter = 0

    def end(self, side: int) -> End:
        return self.pair.ends[side]

    def heard_from(self, side: int) -> list[Event]:
        return [event for event in self.end(1 - side).events if event != Closed()]

    @initialize(a=CONFIGS, b=CONFIGS)
    def connect(self, a: Config, b: Config) -> None:
        self.pair = Pair(a, b)

    # -------------------------------------------------------- users

    @rule(side=SIDES, size=st.one_of(st.integers(0, 2000), st.integers(0, 64)), count=st.integers(1, 4))
    def send(self, side: int, size: int, count: int) -> None:
        if self.closed[side]:
            return
        for _ in range(count):
            self.counter += 1
            data = (self.counter.to_bytes(4, "big") * (size // 4 + 1))[:size]
            self.handles[side].append(self.end(side).protocol.send(bytearray(data)))
            self.said[side].append(MessageReceived(data))

    @rule(side=SIDES, size=st.integers(1, 2000))
    def announce(self, side: int, size: int) -> None:
        if self.closed[side]:
            return
        self.counter += 1
        data = (self.counter.to_bytes(4, "big") * (size // 4 + 1))[:size]
        handle = self.end(side).announce(data)
        self.handles[side].append(handle)
        self.announced[side].add(handle)
        self.said[side].append(MessageReceived(data))

    @rule(side=SIDES, pick=st.integers(0, 1 << 30))
    def cancel(self, side: int, pick: int) -> None:
        if not self.handles[side]:
            return
        index = pick % len(self.handles[side])
        if self.handles[side][index] in self.announced[side]:
            return
        if self.end(side).protocol.cancel(self.handles[side][index]):
            del self.handles[side][index]
            messages = [i for i, event in enumerate(self.said[side]) if isinstance(event, MessageReceived)]
            del self.said[side][messages[index]]

    @rule(side=SIDES)
    def share(self, side: int) -> None:
        protocol = self.end(side).protocol
        live = sum(isinstance(event, RegionShared) for event in self.said[side])
        live -= sum(isinstance(event, RegionWithdrawn) for event in self.said[side])
        peer = protocol.peer
        if self.closed[side] or peer is None or live >= peer.max_regions:
            return
        self.counter += 1
        region = protocol.share(self.counter, 8, self.counter, AccessFlags.REMOTE_READ)
        self.said[side].append(RegionShared(region))

    @rule(side=SIDES)
    def withdraw(self, side: int) -> None:
        gone = {event.region.id for event in self.said[side] if isinstance(event, RegionWithdrawn)}
        for event in self.said[side]:
            if isinstance(event, RegionShared) and event.region.id not in gone and not self.closed[side]:
                self.end(side).protocol.withdraw(event.region.id)
                self.said[side].append(RegionWithdrawn(event.region))
                return

    @precondition(lambda self: self.counter > 20)
    @rule(side=SIDES)
    def close(self, side: int) -> None:
        if not self.closed[side]:
            self.closed[side] = True
            self.end(side).protocol.close(self.pair.now)
            self.said[side].append(PeerClosed())

    @rule(side=SIDES)
    def take_event(self, side: int) -> None:
        self.end(side).take_event()

    # -------------------------------------------------------- drivers, the wire and time

    @rule(side=SIDES)
    def fetch(self, side: int) -> None:
        self.end(side).fetch(self.end(1 - side))

    @rule(side=SIDES)
    def post_receives(self, side: int) -> None:
        self.end(side).post_receives()

    @rule(side=SIDES, count=st.integers(1, 8))
    def post_sends(self, side: int, count: int) -> None:
        for _ in range(count):
            self.end(side).post_send()

    @rule(side=SIDES, count=st.integers(1, 8))
    def arrive(self, side: int, count: int) -> None:
        for _ in range(count):
            self.pair.arrive(self.end(side))

    @rule(side=SIDES, count=st.integers(1, 8))
    def complete(self, side: int, count: int) -> None:
        for _ in range(count):
            self.end(side).complete(self.pair.now)

    @rule(side=SIDES)
    def pass_time(self, side: int) -> None:
        self.pair.now += 0.4
        deadline = self.end(side).protocol.deadline()
        if deadline is not None and deadline <= self.pair.now:
            self.end(side).protocol.timer(self.pair.now)

    @rule()
    def rest(self) -> None:
        self.pair.run()

    # -------------------------------------------------------- what must hold

    @invariant()
    def what_was_heard_is_what_was_said(self) -> None:
        for side in (0, 1):
            heard = self.heard_from(side)
            assert heard == self.said[side][: len(heard)]
            sent = [one for one in self.handles[side] if one not in self.announced[side]]
            told = [one for one in self.end(side).delivered if one not in self.announced[side]]
            assert told == sent[: len(told)]

    @invariant()
    def memory_is_bounded(self) -> None:
        for end in self.pair.ends:
            config, seen = end.protocol.config, end.protocol.statistics()
            in_receives = (config.receives + SPARE) * (config.receive_size + 64)
            assert seen.backlog <= config.max_backlog + config.max_message + in_receives
            assert seen.partial <= config.max_message
            receives = end.receives + seen.held + end.protocol.receives_to_post()
            if seen.state in LIVE:
                assert receives == config.receives + SPARE
            else:  # what still comes is not looked at, and its receive is not posted again
                assert receives <= config.receives + SPARE

    def teardown(self) -> None:
        """One user stops taking: the other still gets all.  Then both take, and nothing is left."""
        lazy = self.counter % 2
        self.pair.run(takers=(self.end(1 - lazy),))
        assert self.heard_from(lazy) == self.said[lazy]
        self.pair.run()
        for side, end in enumerate(self.pair.ends):
            assert self.heard_from(side) == self.said[side]
            assert sorted(end.delivered) == self.handles[side]
            assert end.protocol.queued == 0
            assert end.protocol.finished == all(self.closed) == (Closed() in end.events)
            if not all(self.closed):
                assert not end.protocol.unreleased


def test_what_comes_after_both_goodbyes_changes_nothing() -> None:
    """A RELEASE, for instance: one of the conversations that have been found."""
    state = Conversation()
    config = Config(
        receive_size=64, receives=3, max_message=2000, max_backlog=1, max_regions=1, idle_interval=1.0
    )
    state.connect(a=config, b=config)
    state.send(count=4, side=0, size=0)
    state.share(side=0)
    for count in (1, 2, 2, 3, 4, 4):
        state.send(count=count, side=0, size=0)
    state.rest()
    state.close(side=1)
    state.withdraw(side=0)
    state.close(side=0)
    state.post_sends(count=1, side=1)
    state.rest()
    state.memory_is_bounded()
    assert [end.protocol.state for end in state.pair.ends] == [State.CLOSED, State.CLOSED]
    assert state.pair.a.receives < config.receives + SPARE
    state.teardown()


def machine(examples: int, steps: int) -> Any:
    """The test case that pytest finds."""
    case = Conversation.TestCase
    case.settings = settings(max_examples=examples, stateful_step_count=steps, deadline=None)
    return case


TestConversation = machine(examples=5000 if os.environ.get("RNIC_SOAK") else 100, steps=60)
