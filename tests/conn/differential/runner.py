# SPDX-License-Identifier: Apache-2.0
"""Runs a program on two ends, and holds every outcome against the model."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, NamedTuple

from conn.differential.model import Model, allows
from conn.differential.program import (
    LONGEST,
    RAW_LONGEST,
    After,
    Listen,
    Maker,
    Round,
    Send,
    Stats,
    Tagged,
    Wrong,
    content,
    digest,
)  # fmt: skip
from conn.differential.worker import Setting
from conn.peers import WAIT
from rnic.endpoint import Config
from rnic.enums import AccessFlags

LAG = 32
"""Messages that were delivered and are not counted yet, as Statistics says."""
TESTS = Path(__file__).parents[2]


def config(**options: Any) -> Config:
    return Config(max_message=LONGEST, **options)


CONFIGS = {
    "default": config(),
    "least": config(receive_size=64, send_size=64, receives=3, max_backlog=8192, spin=0.0),
    "all": config(announce=1),
    "pieces": config(announce=None, receive_size=512, receives=5, max_backlog=8192),
    "narrow": config(access=AccessFlags.REMOTE_WRITE, announce=1, receives=7, receive_size=1000),
    "nothing": config(access=AccessFlags(0), announce=2000, receives=6),
    "mixed": config(announce=1000, receive_size=200, send_size=300, receives=4, max_backlog=65_536),
    "uneven": config(
        announce=None, receive_size=16_384, send_size=184, receives=33, max_backlog=10_000, spin=0.001
    ),
}


RAW = 0
"""The version of ends that say no hello."""
LINKS = {
    "memory": ({"RNIC_TRANSPORT": "roce", "RNIC_LOCAL": "on"}, 0),
    "wire": ({"RNIC_TRANSPORT": "roce", "RNIC_LOCAL": "off"}, 0),
    "lossy": ({"RNIC_TRANSPORT": "roce", "RNIC_LOCAL": "off"}, 10),
    "iwarp": ({"RNIC_TRANSPORT": "iwarp"}, 0),
}
"""The environment of each, and how many of 1,000 packets are lost."""


RAW_CONFIGS = {
    "raw": config(raw=True),
    "raw small": config(raw=True, receive_size=RAW_LONGEST, send_size=RAW_LONGEST, receives=16, spin=0.0),
}


class Way(NamedTuple):
    """Where the bytes go, and by which code."""

    link: str = "wire"
    processes: int = 1
    versions: tuple[int, int] = (2, 2)
    faces: tuple[str, str] = ("sync", "sync")
    configs: tuple[str, str] = ("default", "default")

    def settings(self) -> tuple[Setting, Setting]:
        a, b = (
            Setting(face, {**CONFIGS, **RAW_CONFIGS}[name])
            for face, name in zip(self.faces, self.configs, strict=True)
        )
        return a, b


class Workers:
    """Processes with ends, started when they are needed."""

    def __init__(self) -> None:
        self._processes: dict[tuple[str, int, int], tuple[subprocess.Popen[bytes], list[Any]]] = {}

    def pipe(self, link: str, version: int, number: int, thread: int) -> Any:
        key = (link, version, number)
        if key not in self._processes:
            self._processes[key] = self._start(*key)
        return self._processes[key][1][thread]

    def _start(self, link: str, version: int, _number: int) -> tuple[subprocess.Popen[bytes], list[Any]]:
        pipes = [Pipe() for _ in "ab"]
        fds = [theirs.fileno() for _, theirs in pipes]
        command = [
            sys.executable,
            "-m",
            "conn.differential.worker",
            *map(str, fds),
            str(version),
            str(LINKS[link][1]),
        ]
        env = {**os.environ, **LINKS[link][0], "PYTHONPATH": str(TESTS)}
        process = subprocess.Popen(command, pass_fds=fds, env=env)
        for _, theirs in pipes:
            theirs.close()
        return process, [ours for ours, _ in pipes]

    def close(self) -> None:
        for _, pipes in self._processes.values():
            for pipe in pipes:
                pipe.close()
        for process, _ in self._processes.values():
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()

    def two(self, way: Way) -> tuple[Any, Any]:
        a, b = way.versions
        if way.processes == 1 and a == b:
            return self.pipe(way.link, a, 0, 0), self.pipe(way.link, b, 0, 1)
        return self.pipe(way.link, a, 0, 0), self.pipe(way.link, b, 1, 1)


@contextmanager
def workers() -> Iterator[Workers]:
    made = Workers()
    try:
        yield made
    finally:
        made.close()


class HungError(Exception):
    """An end does not answer."""


def hear(pipe: Any, what: str) -> Any:
    if not pipe.poll(WAIT):
        raise HungError(what)
    word, found = pipe.recv()
    if word == "failed":
        raise AssertionError(f"{what}: {found}")
    return found


def run(made: Workers, way: Way, program: tuple[Round, ...]) -> list[tuple[list[Any], list[Any]]]:
    """The outcomes of every round, at both ends."""
    a, b = made.two(way)
    one, other = way.settings()
    try:
        b.send((other, 0))
        a.send((one, hear(b, "listen")))
        hear(a, "connect"), hear(b, "accept")
        found = []
        for number, both in enumerate(program):
            for pipe, steps in zip((a, b), both, strict=True):
                pipe.send(steps)
            found.append((hear(a, f"round {number} of a: {both}"), hear(b, f"round {number} of b: {both}")))
        for pipe in (a, b):
            pipe.send(None)
        return found
    except BaseException:
        made.close()
        raise


def differences(program: tuple[Round, ...], found: list[tuple[list[Any], list[Any]]]) -> Iterator[str]:
    """What the model does not allow, in words."""
    model = Model()
    for number, (both, outcomes) in enumerate(zip(program, found, strict=True)):
        expected = model.round(both)
        for side in (0, 1):
            for step, said, did in zip(both[side], expected[side], outcomes[side], strict=True):
                if not allows(said, did):
                    yield f"round {number}, {'ab'[side]}: {step}\n  expected {said}\n  found {did}"
    yield from _lost(program, found)
    yield from _counted(program, found)


def _counted(program: tuple[Round, ...], found: list[tuple[list[Any], list[Any]]]) -> Iterator[str]:
    """The counters of both ends when nothing is under way."""
    came = [0, 0]
    for both, outcomes in zip(program, found, strict=True):
        for side in (0, 1):
            for step, did in zip(both[side], outcomes[side], strict=True):
                if isinstance(step, Listen | Tagged) and isinstance(did, list):
                    came[side] += len(did)
        for side in (0, 1):
            for step, did in zip(both[side], outcomes[side], strict=True):
                if isinstance(step, Stats):
                    yield from _wrong_counts(did, came[side], came[1 - side])


def _wrong_counts(did: dict[str, Any], received: int, sent: int) -> Iterator[str]:
    quiet = dict.fromkeys(("queued", "backlog", "partial", "held", "probes"), 0)
    if did["state"] not in ("OPEN", "RAW"):
        yield f"statistics: {did}"
    for name, value in {"messages_received": received, **quiet}.items():
        if did[name] != value:
            yield f"statistics: {name} is {did[name]}, it should be {value}: {did}"
    if not sent - LAG <= did["messages_sent"] <= sent:
        yield f"statistics: {did['messages_sent']} sent, the peer has {sent}: {did}"


def _lost(program: tuple[Round, ...], found: list[tuple[list[Any], list[Any]]]) -> Iterator[str]:
    """What was sent has come: a call that returned is in what the peer received."""
    for number, (both, outcomes) in enumerate(zip(program, found, strict=True)):
        for side in (0, 1):
            sent = [
                digest(content(step.key, step.size))
                for step, did in zip(both[side], outcomes[side], strict=True)
                if isinstance(step, Send) and did == "sent" and step.patience is not None
            ]
            for step, did in zip(both[1 - side], outcomes[1 - side], strict=True):
                if isinstance(step, Listen) and isinstance(did, list):
                    yield from (
                        f"round {number}: {'ab'[side]} sent {crc}, and it has not come"
                        for crc in sent
                        if crc not in did
                    )


def refusals(program: tuple[Round, ...], found: list[tuple[list[Any], list[Any]]]) -> list[tuple[Any, Any]]:
    """What was said to each call that cannot be, and to calls after the end."""
    return [
        (step, did)
        for both, outcomes in zip(program, found, strict=True)
        for side in (0, 1)
        for step, did in zip(both[side], outcomes[side], strict=True)
        if isinstance(step, Wrong | After)
    ]


def make(seed: int, version: int = 2) -> tuple[Round, ...]:
    """The program of a seed; each fifth has no regions, for ends that do not grant all."""
    if version == RAW:
        return Maker(seed, raw=True).program()
    return Maker(seed, regions=seed % 5 > 0, tags=version > 1).program()


def steps(seed: int) -> int:
    """How many steps and operations the program has."""
    return sum(len(getattr(step, "ops", "1")) for both in make(seed) for side in both for step in side)


def ways(seed: int, count: int, oldest: int = 2) -> list[Way]:
    """Some by which the program of a seed can go; one end at least speaks the oldest version.

    Raw ends hold receives back, which iWARP does not forgive.
    """
    rng = random.Random(-seed)
    legal = list(RAW_CONFIGS)
    if oldest != RAW:
        legal = [name for name, one in CONFIGS.items() if seed % 5 == 0 or one.access == Config().access]

    def two(*choices: Any) -> tuple[Any, Any]:
        return rng.choice(choices), rng.choice(choices)

    versions = {2: ((2, 2),), 1: ((1, 1), (1, 2), (2, 1)), RAW: ((RAW, RAW),)}[oldest]
    return [
        Way(
            rng.choice(list(LINKS) if oldest != RAW else ["memory", "wire"]),
            rng.choice((1, 2)),
            rng.choice(versions),
            two("sync", "aio", "tasks"),
            two(*legal),
        )
        for _ in range(count)
    ]


def explain(made: Workers, chosen: list[Way], seed: int) -> str:
    """Run the program of a seed by some ways; return what is wrong or differs, in words, or nothing."""
    program = make(seed, min(min(way.versions) for way in chosen))
    said: list[str] = []
    first: list[tuple[Any, Any]] | None = None
    for way in chosen:
        found = run(made, way, program)
        wrong = list(differences(program, found))
        texts = refusals(program, found)
        first = first or texts
        wrong += [
            f"{one} by the first way, {other} here"
            for one, other in zip(first, texts, strict=True)
            if one != other
        ]
        if wrong:
            said.append("\n".join([f"seed {seed}, {way}", *wrong[:4]]))
    return "\n".join(said)
