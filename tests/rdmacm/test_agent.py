# SPDX-License-Identifier: Apache-2.0
"""The agent of a device: what it lacks when it begins is told, and nothing is left behind."""

from __future__ import annotations

import _thread
import os
import select
import sys
import threading
from errno import EAGAIN, EIO, EMFILE
from pathlib import Path

import pytest

import rnic
from rnic import QP, QPAttr, QPState, VerbsError
from rnic.rdmacm.agent import Agent
from rnic.rdmacm.endpoint import resolve_addrinfo
from rnic.rdmacm.ibcm.gsi import RECEIVES, Gsi
from rnic.threads import Thread


def descriptors() -> list[str]:
    return sorted(path.name for path in Path("/proc/self/fd").iterdir())


def no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def no_descriptor(*_: object) -> int:
    raise OSError(EMFILE, os.strerror(EMFILE))


def no_device(*_: object) -> None:
    raise VerbsError(EIO, "the network device has gone", "modify_qp")


@pytest.mark.parametrize(
    ("where", "name", "fails"),
    [
        (Thread, "start", no_thread),
        (os, "eventfd", no_descriptor),
        (select, "epoll", no_descriptor),
        (QP, "modify", no_device),
    ],
    ids=["thread", "eventfd", "epoll", "device"],
)
def test_an_agent_that_cannot_begin_gives_everything_back(
    monkeypatch: pytest.MonkeyPatch, where: object, name: str, fails: object
) -> None:
    before = descriptors()
    context = rnic.open_device("roce_lo")
    with monkeypatch.context() as patch:
        patch.setattr(where, name, fails)
        with pytest.raises(OSError, match=r"RLIMIT_NPROC|Too many open files|has gone") as caught:
            Agent(threading.RLock(), context, 1)
    assert caught.value.errno in (EAGAIN, EIO, EMFILE)
    assert context.closed
    assert descriptors() == before


def test_a_name_is_not_looked_up_without_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    with rnic.rdmacm.create_id() as one:
        monkeypatch.setattr(Thread, "start", no_thread)
        with pytest.raises(VerbsError, match=r"no thread rnic-addrinfo: .*RLIMIT_NPROC") as caught:
            resolve_addrinfo(one, "localhost", 7471)
        assert caught.value.errno == EAGAIN
        monkeypatch.undo()


def test_receives_that_are_flushed_are_not_posted_again() -> None:
    with rnic.open_device("roce_lo") as context, context.alloc_pd() as pd:
        gsi = Gsi(context, pd)
        gsi._qp.modify(QPAttr(qp_state=QPState.ERR))
        taken = 0
        while gsi.take() is not None:
            taken += 1
            assert taken <= RECEIVES, "the same ones come again and again"
        assert taken
        gsi.close()


def test_a_thread_without_memory_to_begin_with_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(_: threading.Thread) -> None:
        raise MemoryError

    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    monkeypatch.setattr(Thread, "_set_ident", no_memory)
    thread = Thread(target=print, daemon=True)
    with pytest.raises(RuntimeError, match="can't start new thread: no memory for it"):
        thread.start()
    assert not thread.is_alive()


def test_a_thread_that_ends_before_its_first_line_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where memory lacks for the first frame, nothing of Python runs in the new thread."""

    def starts_nothing(_function: object, args: tuple[()]) -> int:
        return _thread.start_new_thread(int, args)

    before = threading.enumerate()
    with monkeypatch.context() as patch:
        for name in ("_start_new_thread", "_start_joinable_thread"):
            patch.setattr(threading, name, starts_nothing, raising=False)
        thread = Thread(target=print, daemon=True)
        with pytest.raises(RuntimeError, match="can't start new thread: no memory for it"):
            thread.start()
    assert not thread.is_alive()
    assert threading.enumerate() == before


def test_the_thread_may_end_while_somebody_wakes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its descriptor would be somebody else's then."""
    lock = threading.RLock()
    agent = Agent(lock, rnic.open_device("roce_lo"), 1)
    write = os.eventfd_write
    written = []

    def late(fd: int, number: int) -> None:
        monkeypatch.undo()
        with lock:
            agent.end()
        agent.join_thread(60)
        write(fd, number)
        written.append(fd)

    monkeypatch.setattr(os, "eventfd_write", late)
    agent.kick()
    assert written
