# SPDX-License-Identifier: Apache-2.0
"""Processes that hold the other end of a connection."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

import rnic
import rnic.endpoint.config
import rnic.endpoint.hello
from forked import FORKS
from rnic.endpoint import Config
from waiting import until

HOST = "127.0.0.1"
WAIT = 180.0  # seconds that only a hang takes
SMALL = Config(receive_size=2048, send_size=2048, receives=8, max_backlog=8192)
Serve = Callable[..., None]


def _child(serve: Serve, pipe: Any, config: Config | None, args: tuple[Any, ...]) -> None:
    with rnic.listen(HOST, 0, config=config) as server:
        pipe.send(server.port)
        with server.accept(WAIT) as conn:
            serve(conn, *args)
    pipe.send("done")


@contextmanager
def peer(
    serve: Serve, *args: Any, config: Config | None = None, clean: bool = True
) -> Iterator[tuple[int, BaseProcess]]:
    """Another process that listens and serves one connection: its port, and itself; it has to end well."""
    ours, theirs = FORKS.Pipe()
    process = FORKS.Process(target=_child, args=(serve, theirs, config, args))
    process.start()
    theirs.close()
    try:
        assert ours.poll(WAIT), "the peer does not begin"
        yield ours.recv(), process
        if clean:
            process.join(WAIT)
            assert process.exitcode == 0
    finally:
        process.kill()
        process.join()
        ours.close()


def speak(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process speaks no newer version of the endpoint protocol."""
    for module in (rnic.endpoint.config, rnic.endpoint.hello):
        monkeypatch.setattr(module, "VERSIONS", (1, version))


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def quiet(before: int) -> None:
    """No agent is left, and as many descriptors are open as before.

    An exception that a signal's handler raises can hold the frame in which an agent's descriptor was in use.
    """
    until(lambda: not [one for one in threading.enumerate() if one.name.startswith("rnic")], "the agents end")
    gc.collect()
    assert descriptors() <= before
