# SPDX-License-Identifier: Apache-2.0
"""The ways that bytes take between two ends of rnic."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, cast

from differential.end import Address
from differential.iwarp_end import StreamRunner, end_on
from differential.model import FAULTS, Completion
from differential.program import Program, Round
from differential.runner import DifferentError, Runner
from rnic import Context, Faults, open_device
from transport.node import Node, Setting

# What a bad wire does to a program of a reliable connection: nothing that its completions show.
BAD_WIRE: dict[str, Any] = {"loss": 0.03, "duplicate": 0.03, "reorder": 0.05, "reorder_gap": 2}
PIECES = 300  # bytes at most that a socket gives or takes at once


class Process(Node):
    """An interpreter of its own: its memory has other addresses than the other end's."""

    def started(self, way: int, env: dict[str, str]) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-m", "differential.worker", str(way)]
        return subprocess.Popen(words, env=env, pass_fds=[way])


class FarEnd:
    """An end in another process; what it does is RnicEnd's."""

    def __init__(self, process: Process, *args: Any) -> None:
        self._process = process
        process.call("open", *args)

    def address(self) -> Address:
        return cast(Address, self._do("address"))

    def connect(self, *args: Any) -> None:
        self._do("connect", *args)

    def prepare(self, *args: Any) -> Address:
        return cast(Address, self._do("prepare", *args))

    def bind(self, at: int, length: int) -> int:
        return int(self._do("bind", at, length))

    def post_recv(self, receives: Any) -> None:
        if receives:
            self._do("post_recv", receives)

    def post_send(self, requests: Any, chained: bool) -> None:
        self._do("post_send", requests, chained)

    def collect(
        self, sent: int, received: int, timeout: float = 60.0
    ) -> tuple[list[Completion], list[Completion]]:
        found: tuple[list[Completion], list[Completion]] = self._do("collect", sent, received, timeout)
        return found

    def digest(self, holes: Any) -> str:
        return str(self._do("digest", holes))

    def memory(self) -> bytes:
        return bytes(self._do("memory"))

    def state(self) -> str:
        return str(self._do("state"))

    def break_(self, how: str) -> None:
        self._do("break_", how)

    def renew(self, sig_all: bool) -> Address:
        return cast(Address, self._do("renew", sig_all))

    def refuse(self, what: str) -> str:
        return str(self._do("refuse", what))

    def arm(self, limit: int) -> None:
        self._do("arm", limit)

    def events(self, number: int, timeout: float) -> list[str]:
        return list(self._do("events", number, timeout))

    def refill(self) -> None:
        self._do("refill")

    def close(self) -> None:
        self._process.call("close")

    def _do(self, method: str, *args: Any) -> Any:
        return self._process.call("do", method, *args)


class Ways:
    """Runs programs; processes and contexts stay for the next program.

    NAMES: between two processes, two contexts of one process, or within one context; by packets, by shared
    memory, or over iWARP.  And with packets lost, doubled and reordered, and through sockets that take and
    give few bytes at once.
    """

    NAMES = (
        "wire",
        "shared memory",
        "contexts, wire",
        "contexts, shared memory",
        "one context, wire",
        "one context, shared memory",
        "bad wire",
        "bad shared memory",
        "iwarp",
        "contexts, iwarp",
        "one context, iwarp",
        "iwarp in pieces",
    )

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._processes: list[Process] = []
        self._contexts: dict[str, list[Context]] = {}

    def suits(self, name: str, program: Program) -> bool:
        """Whether a model can say what must come: not where a bad wire may lose it for good.

        That is so of an unreliable service, and of the last word of an end that fails: nobody says it again.
        And iWARP has reliable connections alone.
        """
        if "iwarp" in name:
            return program.service == "RC"
        return not name.startswith("bad") or (program.service == "RC" and not ends_badly(program))

    def run(self, name: str, program: Program, seed: int = 1) -> None:
        """DifferentError when something is not as the model says."""
        with ExitStack() as stack:
            a, b = (stack.enter_context(end) for end in self._ends(name, program, seed))
            (StreamRunner if "iwarp" in name else Runner)(program, a, b).run()

    def explain(self, name: str, program: Program, seed: int = 1) -> str:
        """What is not as the model says; nothing when all is well."""
        try:
            self.run(name, program, seed)
        except DifferentError as error:
            return str(error)
        return ""

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> Ways:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ends(self, name: str, program: Program, seed: int) -> Iterator[Any]:
        for i, own_memory in enumerate(program.own_memory):
            args = (program.service, own_memory, program.sig_all, program.shared[i], i)
            if "context" in name:
                context = self._context(name.split(", ")[1], 0 if name.startswith("one") else i)
                yield _closing(end_on(context, *args))
            else:
                faults = _faults(name, seed * 2 + i)
                yield _closing(FarEnd(self._process(i), *_device(name), faults, *args))

    def _process(self, i: int) -> Process:
        while len(self._processes) <= i:
            self._processes.append(self._stack.enter_context(Process(Setting())))
        return self._processes[i]

    def _context(self, wire: str, i: int) -> Context:
        made = self._contexts.setdefault(wire, [])
        while len(made) <= i:
            name, local = _device(wire)
            made.append(self._stack.enter_context(open_device(name, local=local)))
        return made[i]


def _device(name: str) -> tuple[str, bool | None]:
    """What a way opens: a device, and whether by shared memory."""
    return ("iwarp_lo", None) if "iwarp" in name else ("roce_lo", name.endswith("shared memory"))


def _faults(name: str, seed: int) -> Faults | None:
    if name.startswith("bad"):
        return Faults(seed=seed, **BAD_WIRE)
    return Faults(seed=seed, chunk=PIECES) if name.endswith("in pieces") else None


def ends_badly(program: Program) -> bool:
    """Whether a request takes the end down that it is for."""
    works = (work for step in program.steps if isinstance(step, Round) for work in (*step.a, *step.b))
    return any(FAULTS["RC", work.fault].peer == "ERR" for work in works if work.fault)


@contextmanager
def _closing(end: Any) -> Iterator[Any]:
    try:
        yield end
    finally:
        end.close()
