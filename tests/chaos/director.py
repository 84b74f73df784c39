# SPDX-License-Identifier: Apache-2.0
"""Leads processes in traffic, does to them what happens to processes, and says what it found."""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos import left
from chaos.ends import LIMIT
from chaos.flood import KINDS
from chaos.ways import WAYS
from chaos.worker import Settings

TESTS = Path(__file__).resolve().parents[1]
STRANGER = 54000  # users of workers that are not the director's: from here on
BEGINS = 120.0  # seconds that a process may need until it serves
MIB = 1 << 20


@dataclass
class Plan:
    """How a run goes."""

    seconds: float = 60.0
    seed: int = 1
    members: int = 6
    """Processes at a time."""
    plant: str = ""
    calm: bool = False
    """Traffic alone."""


@dataclass
class Member:
    """A worker, as the director sees it."""

    settings: Settings
    process: asyncio.subprocess.Process
    log: Path
    before: dict[int, tuple[int, int]] = field(default_factory=dict)
    """The limits that it began with, of those that were changed."""
    where: dict[str, Any] = field(default_factory=dict)
    """How it is called; empty until it serves."""
    heard: float = 0.0
    stopped: bool = False
    killed: bool = False
    ending: bool = False
    ended: dict[str, Any] | None = None

    def __str__(self) -> str:
        return f"worker {self.settings.who} (process {self.process.pid})"

    @property
    def alive(self) -> bool:
        return self.process.returncode is None and not self.killed

    def tell(self, what: str, value: object = True) -> None:
        assert self.process.stdin
        with suppress(ConnectionError, RuntimeError):
            self.process.stdin.write((json.dumps({what: value}) + "\n").encode())

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.process.pid, number)


class Director:
    """One run."""

    def __init__(self, plan: Plan, place: Path) -> None:
        self.plan, self.place = plan, place
        self.dice = random.Random(plan.seed)
        self.members: list[Member] = []
        self.tasks: set[asyncio.Task[None]] = set()
        self.did: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []
        self.forked: set[int] = set()
        self.made = 0
        self.failed = asyncio.Event()
        self.over = False
        self.strangers = os.geteuid() == 0

    # ------------------------------------------------------------ the run

    async def run(self) -> None:
        before = left.on_the_machine()
        for _ in range(self.plan.members):
            await self.spawn()
        await self.serving()
        acting = [asyncio.create_task(self.watch())]
        if not self.plan.calm:
            acting += [asyncio.create_task(self.mischief()), asyncio.create_task(self.noise())]
        with suppress(TimeoutError):
            await asyncio.wait_for(self.failed.wait(), self.plan.seconds)
        self.over = True
        for task in acting:
            task.cancel()
        await asyncio.gather(*acting, return_exceptions=True)
        await self.finish()
        self.look(before)
        if not self.faults and not any(name.startswith("did ") for name in self.counts):
            self.fault("nothing was verified: the run shows nothing")

    async def serving(self) -> None:
        """The time counts from when all serve: on a busy machine they begin slowly."""
        by = time.monotonic() + BEGINS
        while not all(one.where for one in self.members) and time.monotonic() < by:
            if self.failed.is_set():
                return
            await asyncio.sleep(0.02)

    def fault(self, text: str) -> None:
        if not self.faults:
            for member in self.members:
                member.tell("look")
        self.faults.append(text)
        self.failed.set()

    async def finish(self) -> None:
        """All go on, without limits, and end in order."""
        if self.faults:
            await asyncio.sleep(1.0)  # until all have looked
        for member in self.members:
            self.relieve(member)
            if member.where and not member.ending:
                self.bid_farewell(member)
        by = time.monotonic() + 4 * LIMIT
        while not self.faults and any(member.alive for member in self.members) and time.monotonic() < by:
            await asyncio.sleep(0.02)
        for member in self.members:
            if member.alive:
                await self.stuck(member, "does not end")
        if self.tasks:  # which end when nobody holds a worker's pipe any more
            _, late = await asyncio.wait(list(self.tasks), timeout=LIMIT)
            for task in late:
                task.cancel()

    def bid_farewell(self, member: Member) -> None:
        member.ending = True
        member.tell("end")

    async def stuck(self, member: Member, how: str) -> None:
        """A process that hangs: where its threads are comes into its log."""
        if not self.faults:
            member.signal(signal.SIGUSR1)
            await asyncio.sleep(1.0)
            self.fault(f"{member} {how}\n{tail(member.log)}")
        member.killed = True
        member.signal(signal.SIGKILL)

    def look(self, before: set[str]) -> None:
        """What is left on the machine."""
        left.end([pid for pid in left.children() if pid in self.forked])
        remaining = left.children()
        for pid in remaining:
            self.fault(f"left behind: process {pid}: {left.command(pid)}")
        for what in sorted(left.on_the_machine() - before):
            self.fault(f"left behind: {what}")
        left.end(remaining)
        for path in sorted((self.place / "tmp").rglob("*")):
            self.fault(f"left behind: {path}")

    # ------------------------------------------------------------ workers

    async def spawn(self) -> None:
        self.made += 1
        names = [way.name for way in WAYS]
        stranger = self.strangers and self.dice.random() < 0.25
        settings = Settings(
            who=self.made,
            seed=self.dice.getrandbits(32),
            callers=self.dice.randint(1, 4),
            ways=tuple(self.dice.sample(names, self.dice.randint(1 if not self.plan.plant else 4, 4))),
            uid=STRANGER + self.made if stranger else 0,
            plant=self.plan.plant if self.made == 1 else "",
        )
        local = {"RNIC_LOCAL": "off" if self.dice.random() < 0.3 else "on"}
        log = self.place / f"worker-{self.made}.log"
        with log.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "chaos.worker",
                settings.text(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **local, "PYTHONPATH": str(TESTS), "TMPDIR": str(self.place / "tmp")},
                limit=MIB,
            )
        member = Member(settings, process, log, heard=time.monotonic())
        self.members.append(member)
        task = asyncio.create_task(self.follow(member))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def follow(self, member: Member) -> None:
        """What a worker says, to its end."""
        assert member.process.stdout
        async for line in member.process.stdout:
            member.heard = time.monotonic()
            ((what, value),) = json.loads(line).items()
            self.hear(member, what, value)
        code = await member.process.wait()
        self.members.remove(member)
        if member.killed or (member.ended and code == 0):
            pass
        elif member.before and code > 0:
            self.counts["died in an exception while it was limited"] += 1
        else:
            self.fault(f"{member} ended with {code}, which nobody has asked for\n{tail(member.log)}")
        if not self.over and not self.faults:
            await self.spawn()

    def hear(self, member: Member, what: str, value: Any) -> None:
        if what == "ready":
            self.serves(member, value)
        elif what == "beat":
            self.counts.update(value)
        elif what == "forked":
            self.forked.add(value)
        elif what == "scarce":
            self.limit(member, *value)
        elif what == "fault":
            self.fault(f"{member}: {value}")
        elif what == "done":
            member.ended = value
            self.counts.update(value["counts"])
            for text in value["late"]:
                self.fault(f"{member}: {text} does not end\n{tail(member.log)}")
            for text in value["leaks"]:
                self.fault(f"{member}: given back all, and still has {text}")

    def serves(self, member: Member, where: dict[str, Any]) -> None:
        member.where = where
        for one in self.members:
            self.introduce(one)
        if self.over:
            self.bid_farewell(member)

    def introduce(self, member: Member) -> None:
        """Whom it can call."""
        if member.where and not member.ending:
            others = [one.where for one in self.members if one.where and one is not member]
            member.tell("peers", others)

    async def watch(self) -> None:
        """Who says nothing for so long, and is not stopped, hangs."""
        while True:
            await asyncio.sleep(0.2)
            for member in list(self.members):
                patience = LIMIT / 2 if member.where else BEGINS
                if member.alive and not member.stopped and time.monotonic() - member.heard > patience:
                    await self.stuck(member, f"has said nothing for {patience:g} s")

    # ------------------------------------------------------------ what happens to them

    async def mischief(self) -> None:
        acts: dict[Callable[[Member], None], int] = {
            self.kill: 4,
            self.stop: 6,
            self.fork: 3,
            self.exec: 2,
            self.collect: 3,
            self.descriptors: 3,
            self.memory: 2,
            self.processes: 2,
        }
        while True:
            await asyncio.sleep(self.dice.uniform(0.02, 0.4))
            ready = [one for one in self.members if one.alive and one.where and not one.ending]
            if ready:
                (act,) = self.dice.choices(list(acts), list(acts.values()))
                act(self.dice.choice(ready))

    def later(self, seconds: float, what: Callable[[Member], None], member: Member) -> None:
        asyncio.get_running_loop().call_later(seconds, what, member)

    def kill(self, member: Member) -> None:
        self.did["kills"] += 1
        member.killed = True
        member.signal(signal.SIGKILL)

    def stop(self, member: Member) -> None:
        self.did["stops"] += 1
        member.stopped = True
        member.signal(signal.SIGSTOP)
        self.later(self.dice.choice((0.05, 0.3, 1.5)), self.go_on, member)

    def go_on(self, member: Member) -> None:
        if member.alive and member.stopped:
            member.heard = time.monotonic()
            member.stopped = False
            member.signal(signal.SIGCONT)

    def fork(self, member: Member) -> None:
        self.did["forks"] += 1
        member.tell("fork", self.dice.choice((1, 3, 20)))

    def exec(self, member: Member) -> None:
        if member.settings.uid:
            return  # another user may not be allowed to begin this Python
        self.did["execs"] += 1
        member.where = {}
        member.tell("exec")

    def collect(self, member: Member) -> None:
        self.did["collections"] += 1
        member.tell("collect")

    def descriptors(self, member: Member) -> None:
        with suppress(OSError):
            used = len(os.listdir(f"/proc/{member.process.pid}/fd"))  # noqa: PTH208
            self.announce(member, resource.RLIMIT_NOFILE, used + self.dice.randint(-2, 30))

    def memory(self, member: Member) -> None:
        with suppress(OSError):
            statm = Path(f"/proc/{member.process.pid}/statm").read_text()
            used = int(statm.split()[0]) * resource.getpagesize()
            self.announce(member, resource.RLIMIT_AS, used + self.dice.randint(0, 64) * MIB)

    def processes(self, member: Member) -> None:
        """Threads, too; root has no such limit."""
        if member.settings.uid or os.geteuid():
            with suppress(OSError):
                used = len(list(Path(f"/proc/{member.process.pid}/task").iterdir()))
                self.announce(member, resource.RLIMIT_NPROC, used + self.dice.randint(0, 3))

    def announce(self, member: Member, what: int, value: int) -> None:
        """It is limited when it has said that it knows: what fails for want of something is no fault then."""
        member.tell("scarce", [what, max(value, 8)])

    def limit(self, member: Member, what: int, value: int) -> None:
        if member.ending or not member.alive:
            return
        self.did["limits"] += 1
        pid = member.process.pid
        with suppress(OSError):  # it may have died meanwhile
            before = resource.prlimit(pid, what)
            member.before.setdefault(what, before)
            resource.prlimit(pid, what, (value, before[1]))
        self.later(self.dice.uniform(0.1, 2.0), self.relieve, member)

    def relieve(self, member: Member) -> None:
        self.go_on(member)
        for what, value in member.before.items():
            with suppress(OSError):
                resource.prlimit(member.process.pid, what, value)

    async def noise(self) -> None:
        """Floods, one after the other, with pauses."""
        while True:
            await asyncio.sleep(self.dice.uniform(0.0, 1.0))
            kind = self.dice.choice(list(KINDS))
            uid = STRANGER if self.strangers and self.dice.random() < 0.5 else os.getuid()
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "chaos.flood",
                kind,
                str(self.dice.getrandbits(32)),
                str(uid),
                env={**os.environ, "PYTHONPATH": str(TESTS)},
            )
            self.did["floods"] += 1
            try:
                await asyncio.sleep(self.dice.uniform(0.5, 3.0))
                if process.returncode is not None:
                    self.fault(f"the flood of {kind} ended by itself")
            finally:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()

    # ------------------------------------------------------------ what is told

    def report(self) -> str:
        done = {name: n for name, n in sorted(self.counts.items()) if name.startswith("did ")}
        rest = {name: n for name, n in sorted(self.counts.items()) if not name.startswith("did ")}
        lines = [
            f"chaos: seed {self.plan.seed}, {self.plan.seconds:g} s, {self.made} processes,"
            f" {self.plan.members} at a time",
            f"did: {listed(self.did)}",
            f"verified: {sum(done.values()):,} operations: "
            + listed({name.removeprefix("did "): n for name, n in done.items()}),
            f"ended: {listed(take(rest, 'ended '))}",
            f"errors by status: {listed(take(rest, 'error '))}",
            f"beside that: {listed(rest)}",
        ]
        for text in self.faults[:5]:
            lines += ["", f"FOUND: {text}"]
        if self.faults:
            again = f"make chaos SEED={self.plan.seed} SECONDS={self.plan.seconds:g}"
            lines += ["", f"failed: {len(self.faults)} findings; again: {again}; logs: {self.place}"]
        else:
            lines.append("left behind: nothing; no wrong byte, no hang, no crash")
        return "\n".join(lines)


def take(counts: dict[str, int], prefix: str) -> dict[str, int]:
    """Those whose names begin so, out of the others."""
    return {name.removeprefix(prefix): counts.pop(name) for name in list(counts) if name.startswith(prefix)}


def listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{n:,} {name}" for name, n in counts.items()) or "none"


def tail(log: Path) -> str:
    return log.read_text(errors="replace")[-4000:]


def run(plan: Plan) -> tuple[bool, str]:
    """A run, in a network namespace of its own if there can be one: whether all was well, and the report."""
    left.adopt()
    place = Path(tempfile.mkdtemp(prefix="chaos-"))
    place.chmod(0o755)
    (place / "tmp").mkdir()
    (place / "tmp").chmod(0o1777)
    director = Director(plan, place)
    asyncio.run(director.run())
    if not director.faults:
        shutil.rmtree(place)
    return not director.faults, director.report()
