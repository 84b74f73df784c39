# SPDX-License-Identifier: Apache-2.0
"""An exception of a signal's handler, as Ctrl-C, at each place where Python runs such handlers: the object
goes on, or says that it is over.
"""

from __future__ import annotations

import dis
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import rnic
import rnic.patterns
from patterns.ends import HOST, WAIT, queue_pairs
from patterns.memories import client, served
from rnic.patterns.chain import TornError
from rnic.patterns.credits import Channel
from rnic.patterns.onesided import Store, StoreMemory, WordMemory, Words
from rnic.patterns.ports import QueuePairPort
from rnic.patterns.rpc import Client, Server

ROOM = str(Path(rnic.patterns.__file__).parent)
LOOKS = {"RESUME", "JUMP_BACKWARD", "CALL", "CALL_KW", "CALL_FUNCTION_EX"}
"""Behind these the interpreter looks for signals; behind a call of a function in Python it does not."""


class Interruption:
    """Raises an exception once, at the nth of these places in rnic.patterns."""

    def __init__(self, nth: int, error: type[BaseException]) -> None:
        self.left, self.came, self.error = nth, False, error
        self._before: dict[FrameType, str] = {}

    def __call__(self, frame: FrameType, event: str, _arg: object) -> Any:
        if event == "call":
            frame.f_trace_opcodes, frame.f_trace_lines = frame.f_code.co_filename.startswith(ROOM), False
            self._before[frame] = "RESUME"
        elif event == "return" and frame.f_back is not None:
            self._before.pop(frame.f_back, None)  # what it has called is no function in C
        elif event == "opcode":
            before = self._before.get(frame, "")
            self._before[frame] = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            if before in LOOKS and not self.came:
                self.left -= 1
                if self.left < 0:
                    self.came = True
                    raise self.error
        return self

    def forget(self) -> None:
        """Python keeps a trace function that has raised; with it would stay all that the frames have."""
        self._before.clear()


def interrupted(work: Callable[[], object], nth: int, error: type[BaseException] = KeyboardInterrupt) -> bool:
    """Whether the nth place was there."""
    interruption = Interruption(nth, error)
    sys.settrace(interruption)
    try:
        work()
    except error:
        pass
    finally:
        sys.settrace(None)
        interruption.forget()
    return interruption.came


def check_each(
    work: Callable[[], object],
    still_good: Callable[[], object],
    error: type[BaseException] = KeyboardInterrupt,
) -> int:
    """Interrupt the work at each place; how many there were."""
    nth = 0
    while interrupted(work, nth, error):
        still_good()
        nth += 1
    return nth


# ---------------------------------------------------------------- clients of a server


def test_a_store() -> None:
    with served(StoreMemory, slots=8, value_size=64) as (port, _), client(Store, port) as store:
        store.put(b"key", b"value")

        def still_good() -> None:
            store.put(b"key", b"value", timeout=WAIT)
            assert store.get(b"key", timeout=WAIT) == b"value"

        assert check_each(lambda: store.get(b"key", timeout=WAIT), still_good) > 20
        assert check_each(lambda: store.put(b"key", b"other", timeout=WAIT), still_good) > 40


def test_locks() -> None:
    with served(WordMemory, locks=1, counters=1) as (port, _), client(Words, port) as words:

        def hold() -> None:
            with words.lock(0, timeout=WAIT):
                pass

        def still_good() -> None:
            hold()
            assert words.add(0, timeout=WAIT) >= 0

        assert check_each(hold, still_good) > 20


@contextmanager
def answering() -> Iterator[rnic.Connection]:
    with rnic.listen(HOST, 0) as listener:
        server = Server({"upper": bytes.upper})
        serving = threading.Thread(target=listener.serve, args=(server.serve,))
        serving.start()
        with rnic.connect(HOST, listener.port) as conn:
            yield conn
        listener.close()
        serving.join(WAIT)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_calls(error: type[BaseException]) -> None:
    with answering() as conn:
        asking = Client(conn, limit=2)

        def still_good() -> None:
            for _ in range(3):  # more than the limit
                assert asking.call("upper", b"text", timeout=WAIT) == b"TEXT"
            assert not asking.outstanding

        assert check_each(lambda: asking.call("upper", b"x", timeout=WAIT), still_good, error) > 20


def test_an_answer_that_has_come_is_not_lost() -> None:
    with answering() as conn, Client(conn) as asking:
        calls = [asking.start("upper", b"x", WAIT)]

        def still_good() -> None:
            assert calls[-1].result(WAIT) == b"X"
            assert not asking.outstanding
            calls.append(asking.start("upper", b"x", WAIT))

        assert check_each(lambda: calls[-1].result(WAIT), still_good) > 10


# ---------------------------------------------------------------- on queue pairs


@contextmanager
def channels() -> Iterator[tuple[Channel, threading.Thread]]:
    """One, and a thread at the other end that sends back what comes."""
    with queue_pairs() as (a, b):
        ours, theirs = Channel(a), Channel(b)

        def echo() -> None:
            try:
                for message in theirs:
                    theirs.send(message, WAIT)
                theirs.close()
            except ConnectionError:
                theirs.abort()

        thread = threading.Thread(target=echo)
        thread.start()
        try:
            yield ours, thread
        finally:
            ours.abort()
            thread.join(WAIT)
            assert not thread.is_alive()


def test_a_channel() -> None:
    """It goes on, and nothing is lost meanwhile."""
    nth = 0
    came = True
    while came:
        with channels() as (channel, _):
            channel.send(b"first", WAIT)
            assert channel.recv(WAIT) == b"first"

            def work() -> None:
                channel.send(b"x" * 5000, WAIT)
                channel.recv(WAIT)

            came = interrupted(work, nth)
            for number in range(40):  # more than there are receives
                channel.send(b"%d" % number, WAIT)
                while (found := channel.recv(WAIT)) != b"%d" % number:
                    assert found == b"x" * 5000  # which was sent in between
        nth += 1
    assert nth > 10


def test_a_port() -> None:
    nth = 0
    while write_interrupted(nth):
        nth += 1
    assert nth > 20


def write_interrupted(nth: int) -> bool:
    """Whether there was an nth place; the queue goes on, or is over and says why."""
    with queue_pairs() as (a, b), ExitStack() as stack:
        ours, theirs = QueuePairPort(a), QueuePairPort(b)
        stack.callback(theirs.close)
        stack.callback(ours.close)
        source, target = ours.memory(8), theirs.memory(64)

        def work() -> None:
            with ours.sends.chain(signaled=True) as chain:
                chain.write(rnic.SGE(source, 0, 8), target.addr, target.rkey)
            ours.sends.wait(chain.ticket, WAIT)

        came = interrupted(work, nth)
        with suppress(TornError):
            for _ in range(100):  # more than the queue has places
                work()
            ours.sends.flush(WAIT)
        return came
