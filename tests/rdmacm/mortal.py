# SPDX-License-Identifier: Apache-2.0
"""One end of a conversation that a test leads step by step, in this process or in one that will be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection as Way
from pathlib import Path
from typing import Any

import namespaces
import rnic
from forked import FORKS
from rdmacm.ends import FAST, WAIT, exchange_of
from rnic import MR, SGE, AccessFlags, QPState, RecvWR, SendFlags, SendWR, WROpcode
from rnic.cm import Connection
from rnic.rdmacm import CmId, ConnParam, EventChannel, EventType, Option, PortSpace, Timing, create_id
from rnic.verbs.qp import QPCap
from waiting import until

DEPTH = 64  # pieces of a transfer
PIECE = 1 << 20
_ALL = AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_READ


class End:
    """A channel, and the id that matters."""

    def __init__(self, timing: Timing = FAST, device: str | None = None) -> None:
        self.timing, self.device = timing, device
        self.channel = EventChannel()
        self.ids: list[CmId] = []
        self.options: dict[Option, int] = {}
        self.memory: bytearray = bytearray()
        self.mr: MR | None = None

    @property
    def id(self) -> CmId:
        return self.ids[-1]

    def _new(self, ps: PortSpace) -> CmId:
        self.ids.append(create_id(self.channel, ps, timing=self.timing, device=self.device))
        for option, value in self.options.items():
            self.id.set_option(option, value)
        return self.id

    def listen(self, address: str = "127.0.0.1", ps: PortSpace = PortSpace.TCP) -> int:
        one = self._new(ps)
        one.bind_addr((address, 0))
        one.listen()
        return one.get_src_port()

    def ask(
        self, port: int, address: str = "127.0.0.1", ps: PortSpace = PortSpace.TCP, bare: bool = False
    ) -> None:
        """Call; bare: with a queue pair that is not the id's own, so that the program has to confirm."""
        self.resolve(port, address, ps)
        if not bare:
            self._create_qp()
        self.id.connect(ConnParam(qp_num=0x123456 if bare else 0))

    def resolve(self, port: int, address: str, ps: PortSpace = PortSpace.TCP) -> None:
        one = self._new(ps)
        one.resolve_addr(None, (address, port))
        self.expect(EventType.ADDR_RESOLVED)
        one.resolve_route()
        self.expect(EventType.ROUTE_RESOLVED)

    def _create_qp(self) -> None:
        self.id.create_qp(cap=QPCap(max_send_wr=DEPTH, max_recv_wr=DEPTH))

    def take(self) -> None:
        """The request that has come."""
        with self.channel.get_cm_event(WAIT) as event:
            assert event.event is EventType.CONNECT_REQUEST, event
            self.ids.append(event.id)
        self._create_qp()

    def accept(self) -> None:
        self.id.accept()

    def port(self) -> int:
        return self.id.get_src_port()

    def mra(self) -> None:
        """What the library does not say of itself: that the answer to a REP will take its time."""
        conn = exchange_of(self.id)
        assert isinstance(conn, Connection)
        conn.send_mra(20, time.monotonic_ns())
        self.id.need_agent("mra").flush()

    def disconnect(self) -> None:
        self.id.disconnect()

    def expect(self, kind: EventType) -> int:
        """The status of the next event."""
        with self.channel.get_cm_event(WAIT) as event:
            assert event.event is kind, event
            return event.status

    def path_mtu(self) -> str:
        assert self.id.qp
        mtu = self.id.qp.query()[0].path_mtu
        assert mtu
        return mtu.name

    def state(self) -> str:
        exchange = exchange_of(self.id)
        assert exchange
        return exchange.state.name

    def is_in_error(self) -> bool:
        assert self.id.qp
        return self.id.qp.state is QPState.ERR

    def reach(self, state: str) -> None:
        until(lambda: self.state() == state, f"{state} instead of {self.state()}")

    # ------------------------------------------------------------------ transfers

    def register(self) -> tuple[int, int]:
        """Memory for a piece; its address and key."""
        self.memory = bytearray(PIECE)
        assert self.id.pd
        self.mr = self.id.pd.reg_mr(self.memory, _ALL)
        return self.mr.addr, self.mr.rkey

    def receives(self) -> None:
        assert self.mr
        assert self.id.qp
        self.id.qp.post_recv([RecvWR(i, [SGE(self.mr)]) for i in range(DEPTH)])

    def begin(self, opcode: WROpcode, where: tuple[int, int]) -> None:
        """Post all pieces, and return when the first is through."""
        assert self.mr
        assert self.id.qp
        self.memory[0] = 1
        wr = [SendWR(i, opcode, SendFlags.SIGNALED, [SGE(self.mr)], *where) for i in range(DEPTH)]
        self.id.qp.post_send(wr)
        assert self.id.get_send_comp(WAIT).ok

    def rest(self) -> list[bool]:
        """How the other pieces end."""
        return [self.id.get_send_comp(WAIT).ok for _ in range(DEPTH - 1)]

    def received(self) -> list[bool]:
        return [self.id.get_recv_comp(WAIT).ok for _ in range(DEPTH)]

    def serve_endpoint(self, address: str = "127.0.0.1") -> int:
        """Take one connection of rnic.connect() and echo its messages; the port."""
        server = rnic.listen(address, 0, device=self.device)
        threading.Thread(target=_echo, args=(server,), daemon=True).start()
        return server.port

    def fork(self) -> None:
        """A child that lives on when this process does not."""
        begun, begins = os.pipe()
        if os.fork() == 0:
            os.write(begins, b"!")
            time.sleep(20)
            os._exit(0)
        os.read(begun, 1)

    def close(self) -> None:
        for one in reversed(self.ids):
            one.destroy()
        if self.mr is not None:
            self.mr.close()
        self.channel.close()


def _echo(server: rnic.Listener) -> None:
    with server, server.accept(WAIT) as conn:
        conn.share(bytearray(PIECE))
        for message in conn:
            conn.send(message)


def _serve(way: Way, timing: Timing, netns: str | None, uid: int, device: str | None) -> None:
    if netns:
        namespaces.enter(os.open(netns, os.O_RDONLY))
    if uid != os.getuid():
        os.setuid(uid)
    end = End(timing, device)
    while True:
        name, args = way.recv()
        try:
            way.send((True, getattr(end, name)(*args)))
        except Exception as error:
            way.send((False, repr(error)))


class Mortal:
    """An End in a process of its own."""

    def __init__(self, timing: Timing, netns: str | None, uid: int, device: str | None) -> None:
        self.way, there = FORKS.Pipe()
        args = there, timing, netns, uid, device
        self.process = FORKS.Process(target=_serve, args=args, daemon=True)
        self.process.start()
        there.close()

    def do(self, name: str, *args: object) -> Any:
        self.way.send((name, args))
        assert self.way.poll(2 * WAIT), f"{name}: no answer"
        good, answer = self.way.recv()
        assert good, f"{name}: {answer}"
        return answer

    def stop(self) -> None:
        """It is not dead, and does nothing."""
        assert self.process.pid
        os.kill(self.process.pid, signal.SIGSTOP)
        status = Path(f"/proc/{self.process.pid}/stat")
        until(lambda: status.read_text().rpartition(")")[2].split()[0] == "T", "it has stopped")

    def go_on(self) -> None:
        assert self.process.pid
        os.kill(self.process.pid, signal.SIGCONT)

    def kill(self) -> float:
        """The time of its death."""
        self.process.kill()
        at = time.monotonic()
        self.process.join()
        return at


@contextmanager
def mortal(
    timing: Timing = FAST, netns: str | None = None, uid: int | None = None, device: str | None = None
) -> Iterator[Mortal]:
    """As another user, with `uid`; `device` is the one that its ids use."""
    one = Mortal(timing, netns, os.getuid() if uid is None else uid, device)
    try:
        yield one
    finally:
        one.kill()
        one.process.close()
        one.way.close()


@contextmanager
def end(timing: Timing = FAST, device: str | None = None) -> Iterator[End]:
    one = End(timing, device)
    try:
        yield one
    finally:
        one.close()


@dataclass(frozen=True)
class Wire:
    """A network namespace at the other end of a cable."""

    netns: str
    here: str = "10.76.0.1"
    there: str = "10.76.0.2"


@contextmanager
def cable(here_mtu: int = 1500, there_mtu: int = 1500) -> Iterator[Wire]:
    command = ["unshare", "--net", "sh", "-c", "echo; cat"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as keeper:
        try:
            assert keeper.stdout
            keeper.stdout.readline()  # it is there
            run("ip", "link", "add", "rcd0", "type", "veth", "peer", "name", "rcd1", "netns", str(keeper.pid))
            inside = ["nsenter", "-t", str(keeper.pid), "-n"]
            run("ip", "addr", "add", "10.76.0.1/24", "dev", "rcd0")
            run(*inside, "ip", "addr", "add", "10.76.0.2/24", "dev", "rcd1")
            run("ip", "link", "set", "rcd0", "mtu", str(here_mtu), "up")
            run(*inside, "ip", "link", "set", "rcd1", "mtu", str(there_mtu), "up")
            yield Wire(f"/proc/{keeper.pid}/ns/net")
        finally:
            # The kernel takes away what is in a namespace only some time after its last process.
            subprocess.run(["ip", "link", "del", "rcd0"], check=False)
            keeper.kill()


def run(*command: str) -> None:
    subprocess.run(command, check=True)
