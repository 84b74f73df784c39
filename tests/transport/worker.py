# SPDX-License-Identifier: Apache-2.0
"""What a transport.node.Node can be asked to do.  Run as `python -m transport.worker FD`."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import random
import signal
import socket
import struct
import sys
import traceback
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from time import monotonic
from typing import Any

import namespaces
from rnic import SGE, Faults, QPAttr, QPState, RecvWR, SendFlags, SendWR, WROpcode
from rnic._nic.nic import MR, WC
from rnic.testing import Address, End, Options, complete, prepare
from transport.datagrams import DatagramWorker
from transport.scene import arrive
from transport.stranger import Stranger, knock
from waiting import until

ROCE_PORT = 4791
WORD = 8
PATIENCE = 120.0

Remote = tuple[int, int]  # address and rkey of the peer's memory


@dataclass
class Held:
    """An end, its memory, and what connects it."""

    end: End
    memory: MR
    options: Options
    own: Address | None = None


class Worker(DatagramWorker):
    """The methods of a node.  An end is known by the name that open() gave it."""

    def __init__(self, way: Connection) -> None:
        self.way = way
        self.ends: dict[str, Held] = {}
        self.strangers: list[Stranger] = []
        self.datagrams = {}

    # -- the process itself

    def setup(self, netns: str | None, uid: int | None) -> None:
        if netns == "new":
            namespaces.unshare()
            namespaces.loopback_up()
        elif netns:
            fd = os.open(netns, os.O_RDONLY | os.O_CLOEXEC)
            namespaces.enter(fd)
            os.close(fd)
        if uid is not None:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)

    def hide(self) -> None:
        """Other processes of this user may not look into it any more (PR_SET_DUMPABLE)."""
        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)

    def fork(self) -> int:
        """Fork; the child lives and does nothing.  Its pid, once it has run what runs first in a child."""
        begun, begins = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(begins, b"!")
            while True:
                signal.pause()
        os.read(begun, 1)
        os.close(begun)
        os.close(begins)
        return pid

    def held_by_rnic(self) -> list[str]:
        """Names of rnic's sockets in this network namespace, and UDP 4791 when it cannot be bound."""
        with Path("/proc/self/net/unix").open() as table:
            names = [line.split()[-1] for line in table if "@rnic/" in line]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.bind(("127.0.0.1", ROCE_PORT))
            except OSError as error:
                names.append(f"UDP 4791: {errno.errorcode[error.errno or 0]}")
        return names

    def udp_drops(self) -> int:
        """Datagrams that full socket buffers of this network namespace have dropped."""
        with Path("/proc/self/net/snmp").open() as table:
            names, values = (line.split() for line in table if line.startswith("Udp:"))
        return int(dict(zip(names, values, strict=True))["RcvbufErrors"])

    def stranger_open(self, to: int, more: tuple[int, ...] = ()) -> bool:
        """A lane to the owner of a slot, with a claim to `more` slots: is it welcome?"""
        self.strangers.append(Stranger(to, more=more))
        return self.strangers[-1].welcome

    def knock(self, to: int, times: int) -> tuple[int, float]:
        return knock(to, times)

    def stranger_says_who(self, times: int) -> bool:
        """Whether the device has had enough of it then."""
        with suppress(ConnectionError):
            self.strangers[-1].say_who(times)
        return until(self.strangers[-1].hung_up, "the device hangs up")

    def stranger_give_up(self) -> int:
        """It has its slot no more, and keeps the lane; which it was."""
        for one in self.strangers[-1].sockets:
            one.close()
        return self.strangers[-1].slot

    def stranger_got(self) -> int:
        return self.strangers[-1].got()

    def stranger_mark(self, value: int) -> None:
        self.strangers[-1].mark(value)

    # -- ends

    def open(self, name: str, nbytes: int, options: Options | None = None, **more: Any) -> Remote:
        """An end with memory, not connected.  What the peer needs for RDMA."""
        end = End(**more)
        memory = end.memory(nbytes)
        self.ends[name] = Held(end, memory, options or Options())
        return memory.addr, memory.rkey

    def prepare(self, name: str) -> Address:
        held = self.ends[name]
        held.own = prepare(held.end.qp, held.options)
        return held.own

    def complete(self, name: str, peer: Address) -> None:
        held = self.ends[name]
        assert held.own
        complete(held.end.qp, held.own, peer, held.options)

    def reset(self, name: str) -> None:
        """Ready to be connected again; what was posted is forgotten, and what had completed, too."""
        held = self.ends[name]
        held.end.qp.modify(QPAttr(qp_state=QPState.RESET))
        while held.end.cq.poll(64):
            pass

    def close(self, name: str) -> None:
        self.ends.pop(name).end.close()

    def close_all(self) -> None:
        for name in list(self.ends):
            self.close(name)

    def close_qp(self, name: str) -> None:
        self.ends[name].end.qp.close()

    def state(self, name: str) -> str:
        return str(self.ends[name].end.qp.state.name)

    def faults(self, name: str, faults: Faults | None) -> None:
        self.ends[name].end.ctx.set_faults(faults)

    def counters(self, name: str) -> dict[str, int]:
        return self.ends[name].end.ctx.counters().as_dict()

    # -- memory

    def fill(self, name: str, seed: int) -> str:
        """Random bytes into all of the memory; their digest."""
        memory = self.ends[name].memory
        memory.buf[:] = random.Random(seed).randbytes(memory.length)
        return self.digest(name)

    def zero(self, name: str) -> None:
        memory = self.ends[name].memory
        memory.buf[:] = bytes(memory.length)

    def digest(self, name: str) -> str:
        return hashlib.blake2b(self.ends[name].memory.buf).hexdigest()

    def word(self, name: str, offset: int = 0) -> int:
        return word_at(self.ends[name].memory, offset)

    # -- work

    def one(self, name: str, opcode: WROpcode, remote: Remote, nbytes: int = WORD) -> tuple[str, str, float]:
        """One request: its status, its words, and how long it took."""
        held, began = self.ends[name], monotonic()
        wr = SendWR(1, opcode, SendFlags.SIGNALED, [SGE(held.memory, 0, nbytes)], *remote)
        held.end.qp.post_send(wr)
        (wc,) = held.end.wait()
        return wc.status.name, wc.explain(), monotonic() - began

    def write_on(self, name: str, remote: Remote) -> str:
        """All of the memory to the peer's, again and again until a WRITE fails: its status."""
        status = "SUCCESS"
        while status == "SUCCESS":
            status, _, _ = self.one(name, WROpcode.RDMA_WRITE, remote, self.ends[name].memory.length)
        return status

    def post_recv(self, name: str, at: int, nbytes: int) -> None:
        """A receive into the memory from `at` on."""
        held = self.ends[name]
        held.end.qp.post_recv(RecvWR(at, [SGE(held.memory, at, nbytes)]))

    def completion(self, name: str, timeout: float = PATIENCE) -> tuple[str, int, bytes]:
        """Of the oldest receive: status, length of the message, what bytes are in it; or "nothing"."""
        held = self.ends[name]
        try:
            (wc,) = held.end.wait(timeout=timeout)
        except TimeoutError:
            return "nothing", 0, b""
        content = held.memory.buf[wc.wr_id : wc.wr_id + wc.byte_len]
        return wc.status.name, wc.byte_len, bytes(sorted(set(content)))

    def move(
        self, name: str, opcode: WROpcode, remote: Remote, chunk: int, first: int = 0, depth: int = 16
    ) -> tuple[int, str, float]:
        """The memory from `first` on to, or from, the peer's, chunk by chunk, depth of them posted.

        How far it came, the last status, and the seconds; a request that fails ends it.
        """
        held, began, done = self.ends[name], monotonic(), first
        starts = range(first, held.memory.length, chunk)
        todo = [
            SendWR(
                at,
                opcode,
                SendFlags.SIGNALED,
                [SGE(held.memory, at, min(chunk, held.memory.length - at))],
                remote[0] + at,
                remote[1],
            )
            for at in starts
        ]
        held.end.qp.post_send(todo[:depth])
        for i, at in enumerate(starts):
            (wc,) = held.end.wait(timeout=PATIENCE)
            assert wc.wr_id == at, f"{wc} out of order"
            if not wc.ok:
                return done, wc.status.name, monotonic() - began
            done += todo[i].sg_list[0].length
            if i + depth < len(todo):
                held.end.qp.post_send(todo[i + depth])
        if opcode is WROpcode.RDMA_WRITE and done:
            arrive(held.end)
        return done, "SUCCESS", monotonic() - began

    def receive(self, name: str, chunk: int, first: int = 0, depth: int = 16) -> int:
        """Messages of one chunk each into the memory from `first` on, until it is full or the test says stop.

        Says "ready" when the first receives are posted; returns how far it came.
        """
        held, done = self.ends[name], first
        todo = [RecvWR(at, [SGE(held.memory, at, chunk)]) for at in range(first, held.memory.length, chunk)]
        held.end.qp.post_recv(todo[:depth])
        self.way.send((True, "ready"))
        for i, wr in enumerate(todo):
            wc = self._next(held)
            if wc is None:
                return done
            assert (wc.ok, wc.wr_id, wc.byte_len) == (True, wr.wr_id, chunk), wc.explain()
            done += chunk
            if i + depth < len(todo):
                held.end.qp.post_recv(todo[i + depth])
        self.way.recv()
        return done

    def _next(self, held: Held) -> WC | None:
        """The next completion; None when the test says something first."""
        while True:
            if found := held.end.cq.poll(1):
                return found[0]
            held.end.cq.req_notify()
            if found := held.end.cq.poll(1):
                return found[0]
            ready = wait([held.end.channel.fileno(), self.way])
            if held.end.channel.fileno() not in ready:
                self.way.recv()
                return None
            held.end.channel.get_cq_event()
            held.end.cq.ack_events()

    def fetch_add(self, name: str, remote: Remote, count: int, add: int, depth: int = 16) -> list[int]:
        """count times FETCH_AND_ADD to the word at the peer; what each found there."""
        held, found = self.ends[name], []
        for base in range(0, count, depth):
            n = min(depth, count - base)
            held.end.qp.post_send(
                [
                    SendWR(
                        i,
                        WROpcode.ATOMIC_FETCH_AND_ADD,
                        SendFlags.SIGNALED,
                        [SGE(held.memory, WORD * i, WORD)],
                        *remote,
                        compare_add=add,
                    )
                    for i in range(n)
                ]
            )
            held.end.wait_ok(n, timeout=PATIENCE)
            found += [word_at(held.memory, WORD * i) for i in range(n)]
        return found

    def swap_chain(self, name: str, remote: Remote, first: int, count: int, depth: int = 16) -> list[int]:
        """CMP_AND_SWP of the word at the peer from first to first + 1, and so on; what each found there."""
        held, found = self.ends[name], []
        for base in range(0, count, depth):
            n = min(depth, count - base)
            held.end.qp.post_send(
                [
                    SendWR(
                        i,
                        WROpcode.ATOMIC_CMP_AND_SWP,
                        SendFlags.SIGNALED,
                        [SGE(held.memory, WORD * i, WORD)],
                        *remote,
                        compare_add=first + base + i,
                        swap=first + base + i + 1,
                    )
                    for i in range(n)
                ]
            )
            held.end.wait_ok(n, timeout=PATIENCE)
            found += [word_at(held.memory, WORD * i) for i in range(n)]
        return found

    def pump(self, name: str, remote: Remote) -> dict[str, Any]:
        """WRITE changing bytes to the peer, READ them back and compare, until told to stop or one fails.

        The first half of the memory is the source, the second what is read back.  Says "running" after the
        first round.
        """
        held = self.ends[name]
        half, rng = held.memory.length // 2, random.Random(os.getpid())
        rounds, longest, status, why = 0, 0.0, "SUCCESS", ""
        while status == "SUCCESS" and not self.way.poll(0):
            held.memory.buf[:half] = rng.randbytes(half)
            began = monotonic()
            status, why = self._write_and_read(held, half, remote)
            longest = max(longest, monotonic() - began)
            if status == "SUCCESS":
                assert held.memory.buf[:half] == held.memory.buf[half:], "other bytes came back"
                rounds += 1
                if rounds == 1:
                    self.way.send((True, "running"))
        if status == "SUCCESS":
            self.way.recv()
        return {"rounds": rounds, "longest": longest, "status": status, "why": why}

    def _write_and_read(self, held: Held, half: int, remote: Remote) -> tuple[str, str]:
        for opcode, at in ((WROpcode.RDMA_WRITE, 0), (WROpcode.RDMA_READ, half)):
            held.end.qp.post_send(
                SendWR(1, opcode, SendFlags.SIGNALED, [SGE(held.memory, at, half)], *remote)
            )
            (wc,) = held.end.wait(timeout=PATIENCE)
            if not wc.ok:
                return wc.status.name, wc.explain()
        return "SUCCESS", ""

    # -- busy with something else

    def busy_python(self, name: str) -> int:
        """Pure Python, without a pause, until the last byte of the memory is not 0.  Says "busy" first."""
        memory = self.ends[name].memory
        buf, last = memory.buf, memory.length - 1
        self.way.send((True, "busy"))
        turns, limit = 0, monotonic() + PATIENCE
        while buf[last] == 0:
            turns += 1
            if turns % 1_000_000 == 0 and monotonic() > limit:
                raise TimeoutError("the peer never wrote the last byte")
        return turns

    def busy_c(self) -> None:
        """One C call that holds the GIL until the test tells something.  Says "busy" first."""
        recv = ctypes.PyDLL(None).recv  # PyDLL: the GIL is kept, no other Python thread can run
        peek = ctypes.create_string_buffer(1)
        self.way.send((True, "busy"))
        recv(self.way.fileno(), peek, 1, socket.MSG_PEEK)
        self.way.recv()


def word_at(memory: MR, offset: int) -> int:
    return int(struct.unpack_from("=Q", memory.buf, offset)[0])


def serve(way: Connection, worker: object) -> None:
    """Answers calls until the test is gone."""
    while True:
        try:
            method, args, kwargs = way.recv()
        except EOFError:
            return
        try:
            answer = True, getattr(worker, method)(*args, **kwargs)
        except Exception:
            answer = False, traceback.format_exc()
        way.send(answer)


if __name__ == "__main__":
    connection = Connection(int(sys.argv[1]))
    serve(connection, Worker(connection))
