# SPDX-License-Identifier: Apache-2.0
"""The process that holds a machine: its namespaces, tap device, QEMU and console. Clients come by a socket.

    python -m rnic.vm.keeper PLAN FD      FD: a socket of the one who starts it, the owner

What it says to a client, beside what the agent says of that client's jobs (agent.py):

    {"state": STATE, "why": text, "facts": {...}}    when that changes, and at the start: starting, booting,
                                                     setup (the owner's turn), up, silent, dead
    {"failed": text}                                 to the owner: there is no machine

What clients say to it: {"do": "keep"} (it outlives its owner), {"do": "ready", "facts": {...}} (the owner has
set the machine up), {"do": "interrupt"}, {"do": "end"}. All else goes to the agent, with a number of the
keeper's own for the job.

Above it is a second process, the warden, that removes the machine's folder when a keeper was killed. A keeper
whose warden has gone ends itself; QEMU is killed with the keeper.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import signal
import socket
import sys
import time

from rnic.vm import namespace, tap
from rnic.vm.console import Console, panic_in
from rnic.vm.lines import BrokenLineError, Lines, Message
from rnic.vm.network import Turn
from rnic.vm.paths import Folder, useless
from rnic.vm.qemu import Plan, Qemu

PING = 2.0  # seconds between questions whether the agent lives
UNANSWERED = 5  # of these until clients are told; the clock may go on while all processes are stopped
POWER_OFF = 3.0  # seconds that the machine has to power itself off


class Client:
    """Somebody at the socket."""

    def __init__(self, lines: Lines, *, owner: bool = False) -> None:
        self.lines, self.owner = lines, owner
        self.jobs: dict[int, int] = {}  # the client's number of a job, and the keeper's


class Keeper:
    """One machine, and whoever wants something of it."""

    def __init__(self, plan: Plan, folder: Folder, owner: Lines) -> None:
        self.plan, self.folder = plan, folder
        self.owned = True  # until the owner says {"do": "keep"}
        self.clients = [Client(owner, owner=True)]
        self.jobs: dict[int, tuple[Client | None, int]] = {}  # None: the client has gone
        self.numbers = itertools.count()
        self.ended = False
        self.facts: Message = {}
        self.state, self.why = "starting", ""
        self.console = Console(folder.console)
        self.server = _listen(folder)
        turn = Turn(lambda why: self._set_state("starting", why), owner.receive)  # EOFError: it has gone
        self.tap: tap.Tap | None = tap.make(plan.mtu, plan.network, folder, turn)
        self.accelerators = list(plan.accelerators)
        self.failures: list[str] = []
        self.qemu: Qemu | None = None
        self.since = self.next_ping = self.deadline = time.monotonic()
        self.unanswered = 0
        self.facts = {
            "name": plan.name,
            "network": plan.network,
            "netdev": self.tap.netdev,
            "ip": self.tap.guest_ip,
            "ip6": self.tap.guest_ip6,
            "host_ip": self.tap.host_ip,
            "host_ip6": self.tap.host_ip6,
            "mtu": plan.mtu,
            "cpus": plan.cpus,
            "keeper": os.getpid(),
            "warden": os.getppid(),
            "console": str(folder.console),
            "devices": [],
        }
        self._boot()

    # ------------------------------------------------------------ the loop

    def run(self) -> None:
        """Until somebody wants the end."""
        while not self.ended:
            self._look(self._timeout())
            self._tick(time.monotonic())

    def _look(self, timeout: float) -> None:
        """Wait for something, and serve it."""
        poll = select.poll()
        poll.register(self.server, select.POLLIN)
        lines: list[tuple[Lines, Client | None]] = [(client.lines, client) for client in self.clients]
        if self.qemu:
            poll.register(self.qemu.console, select.POLLIN)
            lines.append((self.qemu.agent, None))
        for one, _ in lines:
            poll.register(one, select.POLLIN | (select.POLLOUT if one.waits else 0))
        ready = dict(poll.poll(timeout * 1000))
        for one, client in lines:
            events = ready.get(one.fileno(), 0)
            if events & select.POLLOUT:
                one.flush()
            if events & ~select.POLLOUT:
                self._hear_agent() if client is None else self._hear_client(client)
        if self.qemu and self.qemu.console.fileno() in ready:
            self._hear_console()
        if self.server.fileno() in ready:
            self._accept()

    def _timeout(self) -> float:
        until = {"booting": self.deadline, "dead": float("inf")}.get(self.state, self.next_ping)
        return min(max(0.0, until - time.monotonic()), 3600)

    def _tick(self, now: float) -> None:
        if self.state == "booting" and now > self.deadline:
            self._lost(f"the machine has not booted in {self.accelerator.patience:g} s")
        elif self.state in ("setup", "up", "silent") and now > self.next_ping:
            assert self.qemu is not None
            self.next_ping = now + PING
            if self.state == "up" and self.unanswered >= UNANSWERED:
                self._set_state("silent", f"the machine has not answered for {UNANSWERED * PING:g} s")
            self.qemu.agent.send({"ping": 0})
            self.unanswered += 1

    # ------------------------------------------------------------ the machine

    def _boot(self) -> None:
        """With the first accelerator that has not failed."""
        assert self.tap is not None
        self.accelerator = self.accelerators.pop(0)
        self.facts["accelerator"] = self.accelerator.name
        self.qemu = Qemu(self.plan, self.accelerator, self.tap)
        self.facts["qemu"] = self.qemu.pid
        self.next_ping = time.monotonic()
        self.deadline = self.next_ping + self.accelerator.patience
        self._set_state("booting", "")

    def _hear_agent(self) -> None:
        assert self.qemu is not None
        try:
            messages = self.qemu.agent.receive()
        except EOFError:
            self._lost("")
            return
        except BrokenLineError as error:
            self._lost(f"what the agent says is broken: {error}")
            return
        self.unanswered = 0
        if self.state == "silent":
            self._set_state("up", "the machine answers again")
        for message in messages:
            if message.get("up"):
                self.facts["boot_seconds"] = round(time.monotonic() - self.since, 2)
                self._set_state("setup", "")
            elif isinstance(message.get("job"), int):
                self._pass_down(message)

    def _pass_down(self, message: Message) -> None:
        """What the agent says of a job, to the client whose job it is."""
        client, number = self.jobs.get(message["job"], (None, 0))
        if "rc" in message:
            self.jobs.pop(message["job"], None)
            if client:
                client.jobs.pop(number, None)
        if client:
            client.lines.send(message | {"job": number})

    def _hear_console(self) -> None:
        assert self.qemu is not None
        with contextlib.suppress(BlockingIOError):  # it was another QEMU's
            data = os.read(self.qemu.console.fileno(), 65536)
            self.console.write(data)
            if not data:
                self._lost("")

    def _lost(self, why: str) -> None:
        """QEMU has ended, or is to be: try the next accelerator, or all is over."""
        assert self.qemu is not None
        qemu, self.qemu = self.qemu, None
        if why:
            qemu.kill()
        ended = qemu.end(POWER_OFF)
        with contextlib.suppress(BlockingIOError):
            self.console.write(os.read(qemu.console.fileno(), 1 << 20))
        qemu.console.close()
        why = why or panic_in(self.folder.console) or ended
        self.failures.append(f"{self.accelerator.name}: {why}")
        if self.state == "booting" and self.accelerators:
            self._boot()
            return
        assert self.tap is not None
        self.tap.close()
        self.tap = None
        self.jobs.clear()
        self._set_state("dead", "; ".join(self.failures) if self.state == "booting" else why)

    def _to_agent(self, message: Message) -> None:
        if self.qemu:
            self.qemu.agent.send(message)

    # ------------------------------------------------------------ clients

    def _set_state(self, state: str, why: str) -> None:
        self.state, self.why = state, why
        for client in self.clients:
            self._tell(client)

    def _tell(self, client: Client) -> None:
        client.lines.send({"state": self.state, "why": self.why, "facts": self.facts})

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it has gone, or there is no descriptor left
            sock, _ = self.server.accept()
            client = Client(Lines(sock))
            self.clients.append(client)
            self._tell(client)

    def _hear_client(self, client: Client) -> None:
        try:
            messages = client.lines.receive()
        except (EOFError, BrokenLineError):
            self._gone(client)
            return
        for message in messages:
            self._obey(client, message)

    def _gone(self, client: Client) -> None:
        """Its jobs are killed, and the owner's machine ends."""
        self.clients.remove(client)
        client.lines.close()
        for number in client.jobs.values():
            self.jobs[number] = (None, 0)
            self._to_agent({"job": number, "signal": int(signal.SIGKILL)})
            self._to_agent({"job": number, "ack": 1 << 40})  # whatever it still says is taken, and dropped
        if client.owner and self.owned:
            self.ended = True

    def _obey(self, client: Client, message: Message) -> None:
        match message.get("do"):
            case "keep":
                self.owned = False
            case "ready":
                self.facts |= message["facts"]
                self._set_state("up", "")
            case "interrupt" if self.qemu:
                self.qemu.interrupt()
            case "end":
                self.ended = True
            case _ if "job" in message:
                self._pass_up(client, message)

    def _pass_up(self, client: Client, message: Message) -> None:
        """What a client says of a job, to the agent."""
        number = message["job"]
        if "run" in message:
            client.jobs[number] = next(self.numbers)
            self.jobs[client.jobs[number]] = (client, number)
        if number in client.jobs:  # else it has just ended
            self._to_agent(message | {"job": client.jobs[number]})

    def close(self) -> None:
        """End the machine. Nobody new comes meanwhile; clients are told when all is gone."""
        self.server.close()
        self.folder.socket.unlink(missing_ok=True)
        if self.qemu:
            self.qemu.end(POWER_OFF if self.state == "up" else 0)
        if self.tap:
            self.tap.close()
        if self.state != "dead":
            self._set_state("dead", "it was ended")
        for client in self.clients:
            client.lines.close()


def _listen(folder: Folder) -> socket.socket:
    server = socket.socket(socket.AF_UNIX)
    with folder.address() as address:
        server.bind(f"{address}.new")
    server.listen(16)
    server.setblocking(False)
    folder.socket.with_suffix(".new").rename(folder.socket)  # whoever sees it can connect
    return server


def _serve(plan: Plan, owner: socket.socket, folder: Folder) -> None:
    """Be the keeper, until the end."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        keeper = Keeper(plan, folder, Lines(owner))
    except Exception as error:
        Lines(owner).send({"failed": str(error)})
        return
    try:
        keeper.run()
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        keeper.close()


def _claim(folder: Folder) -> int | None:
    """The lock. A keeper that ends, without a socket, gives it back; so does whoever looks at it."""
    limit = time.monotonic() + POWER_OFF + 1
    while (lock := folder.claim()) is None and not folder.socket.exists() and time.monotonic() < limit:
        time.sleep(0.05)
    return lock


def main(plan: Plan, owner: socket.socket) -> None:
    """Be the warden, and have a keeper."""
    try:
        folder = Folder.of(plan.name)
        lock = _claim(folder)
    except OSError as error:
        why = useless(error, "XDG_RUNTIME_DIR")
        Lines(owner).send({"failed": f"no place for the files of a machine: {why}"})
        return
    if lock is None:
        Lines(owner).send({"failed": f"a machine named {plan.name} runs already"})
        return
    for name in folder.path.iterdir():  # of a keeper that was killed
        if name != folder.lock:
            name.unlink()
    log = os.open(folder.console, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 2)  # what Python itself has to say
    os.close(log)
    warden = os.getpid()
    child = os.fork()
    if child:
        owner.close()
        os.waitpid(child, 0)
        folder.remove()
        return
    namespace.die_with_parent(signal.SIGTERM)
    if os.getppid() == warden:
        try:
            _serve(plan, owner, folder)
        finally:
            folder.remove()


if __name__ == "__main__":
    main(Plan.from_json(sys.argv[1]), socket.socket(fileno=int(sys.argv[2])))
