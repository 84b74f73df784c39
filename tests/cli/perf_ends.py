# SPDX-License-Identifier: Apache-2.0
"""Both ends of `rnic perf` as threads of one process: a measurement without starting two interpreters."""

from __future__ import annotations

import io
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

from rnic.cli import exchange
from rnic.cli.perf import perf, session
from rnic.cli.perf.command import plan_of, refuse
from rnic.cli.perf.line import QUIET, Line
from rnic.cli.perf.plan import Plan
from rnic.cli.perf.progress import Progress
from rnic.cli.perf.report import Record

SECONDS = 300


def plan(words: str) -> Plan:
    """What a command line means."""
    context = perf.make_context("perf", words.split())
    refuse(context.params, set())
    return plan_of(context.params)


@contextmanager
def lines() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A TCP connection; server's end, client's."""
    with exchange.listen(0, "127.0.0.1") as listener:
        near = exchange.connect("127.0.0.1", listener.getsockname()[1], QUIET)
        with closing(near), closing(exchange.accept(listener, QUIET)) as far:
            yield far, near


@contextmanager
def taking_turns() -> Iterator[None]:
    """Two loops of the interpreter share it: each gives way at once."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(2e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


def measured(words: str | Plan) -> list[Record]:
    """The client's records, which the server has been told of."""
    found: list[Record] = []
    served: list[Record] = []
    asked = plan(words) if isinstance(words, str) else words
    with taking_turns(), lines() as (far, near), ThreadPoolExecutor(2) as threads:
        server = threads.submit(session.server, Line(far, "client"), {}, session.Where(), served.append)
        progress = Progress(asked, io.StringIO())
        client = threads.submit(
            session.client, Line(near, "server"), asked, session.Where(), found.append, progress
        )
        client.result(SECONDS)
        server.result(SECONDS)
    assert found == served
    return found
