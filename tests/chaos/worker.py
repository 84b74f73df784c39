# SPDX-License-Identifier: Apache-2.0
"""One of the processes in traffic: `python -m chaos.worker SETTINGS`, led by lines of JSON.

It serves and calls in four ways (ways.py) until it is told to end, and says what it has done.
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread  # noqa: F401  another user may not be allowed to read it later
import errno
import faulthandler
import gc
import json
import os
import random
import signal
import sys
import threading
import time
import traceback
import warnings
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import rnic.aio  # noqa: F401  likewise
from chaos.ends import LIMIT, Hangs
from chaos.payload import WrongBytes
from chaos.plants import PLANTS
from chaos.talk import Tally
from chaos.ways import WAYS, Address, Way
from rnic.rdmacm.ibcm.manager import IbService
from rnic.rdmacm.registry import registry
from rnic.threads import Thread

BEAT = 0.25  # seconds from one sign of life to the next
SCARCE = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ENOBUFS}


@dataclass(frozen=True)
class Settings:
    """What a worker is."""

    who: int
    seed: int
    callers: int
    """Conversations that it holds at a time as a caller."""
    ways: tuple[str, ...]
    uid: int = 0
    """Another user than the director, 0: the same."""
    plant: str = ""
    """A fault of its own, which has to be found."""
    scarce: bool = False
    """It has been limited: calls may fail for want of something."""

    def text(self) -> str:
        return json.dumps(asdict(self))


def held() -> list[str]:
    """What descriptors of rnic this process has: memory files, sockets in abstract names, UDP 4791."""
    ours = {line.split()[6] for line in lines("unix") if "@rnic/" in line or "@life/rnic/" in line}
    ours |= {line.split()[9] for table in ("udp", "udp6") for line in lines(table) if ":12B7 " in line}
    found = []
    for fd in os.listdir("/proc/self/fd"):  # noqa: PTH208
        try:
            link = os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115
        except OSError:
            continue
        if "memfd:rnic" in link or (link.startswith("socket:[") and link[8:-1] in ours):
            found.append(f"{fd}: {link}")
    return found


def lines(table: str) -> list[str]:
    """Of a table of the network namespace."""
    return Path("/proc/self/net", table).read_text().splitlines()[1:]


def descriptors() -> dict[str, str]:
    """All that are open."""
    found = {}
    for fd in Path("/proc/self/fd").iterdir():
        try:
            found[fd.name] = str(fd.readlink())
        except OSError:
            continue
    return {fd: link for fd, link in found.items() if not link.startswith("/proc/")}  # the look itself


class Worker:
    """The process."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.who = settings.who
        self.tally = Tally()
        self.ending = threading.Event()
        self.scarce = settings.scarce
        self.peers: list[dict[str, Any]] = []
        self.dice = random.Random(settings.seed)
        self.seen: set[str] = set()  # errors of which the log has an example

    # ------------------------------------------------------------ what is told

    def say(self, what: str, value: object = None) -> None:
        """A line to the director, in one piece."""
        os.write(1, (json.dumps({what: value}) + "\n").encode())

    def fault(self, what: str, error: BaseException) -> None:
        """Something that must not happen."""
        text = "".join(traceback.format_exception(error))
        self.say("fault", f"{what}: {type(error).__name__}: {error}\n{text}"[-3000:])

    def ended(self, what: str, error: BaseException | None) -> None:
        """A conversation has ended; who dies, loses packets or is refused has an error for it."""
        if error is None:
            self.tally.add(f"ended {what}")
        elif isinstance(error, WrongBytes | Hangs) or what in SERVERS or type(error) is TimeoutError:
            self.fault(what, error)
        elif isinstance(error, OSError | EOFError) or (self.scarce and isinstance(error, SHORTAGE)):
            if name_of(error) not in self.seen:
                self.seen.add(name_of(error))
                print(f"the first {name_of(error)}, {what}:", file=sys.stderr)
                traceback.print_exception(error)
            self.tally.add(f"error {name_of(error)}")
            if isinstance(error, OSError) and error.errno in SCARCE and not self.scarce:
                self.fault(f"{what}, which nothing limits", error)
        else:
            self.fault(what, error)

    def unraisable(self, hook: Any) -> None:
        """An exception in a finaliser, or in a thread of rnic's."""
        error = hook.exc_value
        if isinstance(error, SystemExit) or error is None or (self.scarce and isinstance(error, SHORTAGE)):
            return
        self.fault(f"in {getattr(hook, 'object', None) or hook.thread!r}", error)

    # ------------------------------------------------------------ its life

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self.in_loop)
        commands: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        threading.Thread(target=self.listen, args=(loop, commands), daemon=True).start()
        before = descriptors()
        ways = [one(self) for one in WAYS if one.name in self.settings.ways]
        self.say("ready", {way.name: await self.started(way) for way in ways})
        tasks = [asyncio.create_task(self.caller(ways, one)) for one in range(self.settings.callers)]
        beat = asyncio.create_task(self.beat())
        if self.settings.plant:
            PLANTS[self.settings.plant](self)
        while not self.ending.is_set():
            await self.obey(await commands.get())
        for way in ways:
            way.close()
        done, late = await asyncio.wait(tasks, timeout=LIMIT)
        left = [f"caller {task}" for task in late]
        for way in ways:
            left += await way.finish()
        if left:
            self.look()
            faulthandler.dump_traceback(all_threads=True)
        beat.cancel()
        await asyncio.gather(beat, *done, return_exceptions=True)
        self.say("done", {"late": left, "leaks": self.leaks(before), "counts": self.tally.take()})

    async def started(self, way: Way) -> Address:
        """Where it serves: a stopped process of another user may have the port, and not answer just then."""
        by = time.monotonic() + LIMIT
        while True:
            try:
                return way.start()
            except OSError as error:
                if error.errno != errno.EADDRINUSE or time.monotonic() > by:
                    raise
                self.ended(f"{way.name} begins", error)
                await asyncio.sleep(0.1)

    def leaks(self, before: dict[str, str]) -> list[str]:
        """What is left when everything was closed."""
        gc.collect()

        def more() -> list[str]:
            now = descriptors().items()
            return [f"descriptor {fd}: {link}" for fd, link in now if before.get(fd) != link]

        def agents() -> list[str]:
            return [one.name for one in threading.enumerate() if one.name.startswith("rnic")]

        by = time.monotonic() + LIMIT / 4
        while (left := [*agents(), *more()]) and time.monotonic() < by:
            time.sleep(0.01)
        for agent in registry.agents():
            print(f"{agent} has {list(agent.ids)}", file=sys.stderr)
        return left

    def listen(self, loop: asyncio.AbstractEventLoop, commands: asyncio.Queue[dict[str, Any]]) -> None:
        for line in sys.stdin:
            command = json.loads(line)
            if "look" in command:
                self.look()  # here: the loop may be what hangs
            else:
                loop.call_soon_threadsafe(commands.put_nowait, command)
        os._exit(0)  # the director has gone

    def in_loop(self, _loop: object, context: dict[str, Any]) -> None:
        error = context.get("exception") or RuntimeError(context["message"])
        self.ended("in the loop", error)

    async def beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT)
            self.say("beat", self.tally.take())

    async def caller(self, ways: list[Way], number: int) -> None:
        """One conversation after the other, with whoever there is."""
        for turn in count():
            if self.ending.is_set():
                return
            dice = random.Random(f"{self.settings.seed} {number} {turn}")
            mine = [way for way in ways if any(way.name in peer for peer in self.peers)]
            if not mine:
                await asyncio.sleep(0.01)
                continue
            way = dice.choice(mine)
            peer = dice.choice([peer for peer in self.peers if way.name in peer])
            await way.call(peer[way.name], dice)
            await asyncio.sleep(0)

    # ------------------------------------------------------------ what is done to it

    async def obey(self, command: dict[str, Any]) -> None:
        ((what, value),) = command.items()
        if what == "peers":
            self.peers = value
        elif what == "scarce":
            self.scarce = True
            self.say("scarce", value)
        elif what == "fork":
            self.fork(value)
        elif what == "exec":
            self.exec()
        elif what == "collect":
            gc.collect()
        elif what == "end":
            self.ending.set()

    def look(self) -> None:
        """Into the log, for whoever wants to know why something hangs: what connection management knows."""
        now = time.monotonic_ns()
        for agent in registry.agents():
            print(f"{agent!r}, failed: {agent.failed}, {agent.service.statistics()}", file=sys.stderr)
            exchanges = agent.service.cm.table.exchanges() if isinstance(agent.service, IbService) else []
            for exchange in exchanges:
                due = (exchange.deadline() or now) - now
                more = f"peer {exchange.peer_id:#010x} {exchange.peer}, due in {due / 1e9:.1f} s"
                print(f"  {exchange!r} {more}, {exchange.context!r}", file=sys.stderr)
            counted = {name: n for name, n in agent.context.counters().items() if n}
            print(f"  {counted}", file=sys.stderr)
        sys.stderr.flush()

    def fork(self, seconds: float) -> None:
        """A child that has nothing of the device, and goes in its time."""
        try:
            pid = os.fork()
        except OSError as error:
            self.ended("fork", error)
            return
        if pid:
            self.say("forked", pid)
            return
        try:
            found = held()
            if found:
                self.say("fault", f"a forked child holds {found}")
            os.closerange(0, 2)  # the director's pipes are the parent's
            signal.alarm(round(seconds) or 1)
            if self.dice.random() < 0.5:
                os.execv("/bin/sleep", ["sleep", "1000"])
            while True:
                signal.pause()
        finally:
            os._exit(1)

    def exec(self) -> None:
        """Another program in the middle of everything: this one again, with the limits that it has."""
        self.say("beat", self.tally.take())
        settings = replace(self.settings, scarce=self.scarce)
        os.execv(sys.executable, [sys.executable, "-m", "chaos.worker", settings.text()])


SERVERS = ("connect server", "aio server")  # which nothing that peers or limits do may end
SHORTAGE = (MemoryError, RuntimeError)  # "can't start new thread" is a RuntimeError


def name_of(error: BaseException) -> str:
    """A status, if it names one; else its type, and its errno."""
    for word in str(error).replace(":", " ").replace(",", " ").split():
        if word.endswith("_ERR") or word in STATUSES:
            return f"{type(error).__name__} {word}"
    number = getattr(error, "errno", None) or 0
    return f"{type(error).__name__} {errno.errorcode.get(number, '')}".strip()


STATUSES = {"UNREACHABLE", "REJECTED", "DISCONNECTED", "CONNECT_ERROR", "died", "listens", "gone", "goodbye"}


def main() -> None:
    settings = Settings(**json.loads(sys.argv[1]))
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    threading.Thread = Thread  # type: ignore[misc] # whose start() ends also where memory is limited
    warnings.simplefilter("ignore")  # connections are dropped, and forks have threads: both on purpose
    worker = Worker(settings)
    if settings.uid and os.geteuid() == 0:
        os.setgroups([])
        os.setgid(settings.uid)
        os.setuid(settings.uid)
    if found := held():
        worker.say("fault", f"a program that was begun by exec() holds {found}")
    sys.unraisablehook = threading.excepthook = worker.unraisable
    asyncio.run(worker.run())


if __name__ == "__main__":
    main()
