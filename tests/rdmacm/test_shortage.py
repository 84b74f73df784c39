# SPDX-License-Identifier: Apache-2.0
"""Memory runs out in the agent's thread, at any place, for a moment: every connection still has its end."""

from __future__ import annotations

import gc
import os
import random
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import rnic
from rnic.rdmacm import CmId, ConnParam, EventChannel, EventType, create_id, outcomes
from rnic.rdmacm.agent import Agent
from rnic.rdmacm.iwcm.manager import IwService
from rnic.rdmacm.names import Timing
from rnic.rdmacm.registry import registry
from waiting import until

HOST = "127.0.0.1"
WAIT = 180.0  # seconds, which only a hang meets
ROOMS = tuple(str(Path(rnic.__file__).parent / room) for room in ("rdmacm", "cm", "mpa"))
SOAK = bool(os.environ.get("RNIC_SOAK"))
FAR = 100_000  # calls, which no conversation has
QUICK = Timing(response_timeout=13)  # 34 ms: a datagram that is lost is sent again after that
CALLED = (EventType.ESTABLISHED, EventType.REJECTED, EventType.UNREACHABLE, EventType.CONNECT_ERROR)
CAP = rnic.QPCap(max_send_wr=1, max_recv_wr=1)


class Shortage:
    """MemoryError in the agent's thread instead of the nth call of a function."""

    def __init__(self, nth: int, places: int) -> None:
        self.left, self.places = nth, places
        self.at: list[str] = []
        self.begun = False

    def profile(self, frame: FrameType, event: str, called: object) -> None:
        if event not in ("call", "c_call") or not frame.f_code.co_filename.startswith(ROOMS):
            return
        if (
            getattr(called, "__name__", "") == "__exit__"
        ):  # a lock is let go of without memory, or never again
            return
        if frame.f_code.co_name == "__del__":  # Python tells nobody what a finaliser raises
            return
        if not threading.current_thread().name.startswith("rnic-cm-"):
            return
        self.begun |= frame.f_code is Agent._round.__code__  # before, the thread has not
        self.left -= self.begun
        if self.begun and -self.places < self.left <= 0:
            self.at.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}, {event}")
            raise MemoryError


@pytest.fixture(autouse=True)
def no_profile_is_left() -> Iterator[None]:
    yield
    threading.setprofile(None)


def told(channel: EventChannel, *kinds: EventType) -> EventType:
    """The next event, of those: others, which a connection may have before, are passed over."""
    while True:
        with channel.get_cm_event(WAIT) as event:
            if event.event in kinds:
                return event.event


def equip(one: CmId, pd: rnic.PD, cq: rnic.CQ) -> None:
    one.create_qp(pd, rnic.QPInitAttr(cq, cq, cap=CAP))


class Conversation:
    """Two ids of this process: one calls, is accepted, and disconnects."""

    def __init__(self) -> None:
        self.server, self.client = EventChannel(), EventChannel()
        self.listener = create_id(self.server, timing=QUICK)
        self.listener.bind_addr((HOST, 0))
        self.listener.listen()
        self.refused = False

    def serve(self) -> None:
        """To its end, in a thread; a caller that was refused before it was seen has none.

        If both the RTU and the DREQ are lost, the server gives up first: the caller is REJECTED then.
        """
        while True:
            try:
                with self.server.get_cm_event(0.05) as event:
                    kind, one = event.event, event.id
            except TimeoutError:
                if self.refused:
                    return
                continue
            if kind is EventType.CONNECT_REQUEST:
                break
        context = one.verbs
        assert context is not None
        with one, context.alloc_pd() as pd, context.create_cq(2) as cq:
            equip(one, pd, cq)
            one.accept(ConnParam())
            if told(self.server, EventType.DISCONNECTED, *CALLED) is EventType.ESTABLISHED:
                told(self.server, EventType.DISCONNECTED)
            one.destroy_qp()

    def call(self) -> EventType:
        with create_id(self.client, timing=QUICK) as one:
            one.resolve_addr(None, (HOST, self.listener.get_src_port()))
            told(self.client, EventType.ADDR_RESOLVED)
            one.resolve_route()
            told(self.client, EventType.ROUTE_RESOLVED)
            context = one.verbs
            assert context is not None
            with context.alloc_pd() as pd, context.create_cq(2) as cq:
                equip(one, pd, cq)
                one.connect(ConnParam())
                end = told(self.client, EventType.DISCONNECTED, *CALLED)
                if end is EventType.ESTABLISHED:
                    one.disconnect()
                    end = told(self.client, EventType.DISCONNECTED, EventType.REJECTED)
                one.destroy_qp()
                return end

    def run(self) -> EventType:
        failed: list[BaseException] = []

        def serve() -> None:
            try:
                self.serve()
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=serve, daemon=True)
        with self.server, self.client, self.listener:
            thread.start()
            end = self.call()
            self.refused = end is not EventType.DISCONNECTED
            thread.join(2 * WAIT)
            assert not thread.is_alive()
            assert not failed, failed
            return end


def one_conversation(shortage: Shortage) -> EventType:
    threading.setprofile(shortage.profile)  # of the agent's thread, which begins now
    try:
        end = Conversation().run()
        until(lambda: not any(agent.ids for agent in registry.agents()), "no id is left")
        return end
    except BaseException as error:
        raise AssertionError(f"memory was short at {shortage.at}") from error
    finally:
        threading.setprofile(None)


def places() -> int:
    """Of a conversation without a shortage."""
    calm = Shortage(FAR, 1)
    assert one_conversation(calm) is EventType.DISCONNECTED
    assert calm.left > 0
    return FAR - calm.left


def test_an_id_that_the_program_has_not_seen_goes_without_a_word() -> None:
    with (
        EventChannel() as channel,
        create_id(channel) as listener,
        warnings.catch_warnings(record=True) as said,
    ):
        warnings.simplefilter("always")
        listener.spawn()
        gc.collect()
    assert not said


@pytest.mark.parametrize("many", [1, 7])
def test_every_connection_has_its_end_though_memory_was_short(many: int) -> None:
    far = places()
    nths = range(1, far + 1) if SOAK else sorted(random.Random(many).sample(range(1, far + 1), 40))
    for nth in nths:
        one_conversation(Shortage(nth, many))


@pytest.mark.skipif(os.environ.get("RNIC_TRANSPORT") != "iwarp", reason="of its connection service")
@pytest.mark.parametrize("nth", [1, 2])  # of the two ends
def test_an_established_connection_is_told_though_memory_was_short(
    monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    told, plain = [], IwService.report

    def report(self: IwService, one: CmId, call: Any, *values: Any) -> None:
        if call is outcomes.established:
            told.append(one)
            if len(told) == nth:
                raise MemoryError
        plain(self, one, call, *values)

    monkeypatch.setattr(IwService, "report", report)
    assert Conversation().run() is EventType.DISCONNECTED
    assert len(told) == 3
