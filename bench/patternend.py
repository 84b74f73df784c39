# SPDX-License-Identifier: Apache-2.0
"""One end of a pattern of rnic.patterns, or of a peer that does the same.

    patternend.py FD take|give WHAT       a stream of records: ring, ring-many, channel, many, pubsub
    patternend.py FD take|give WHAT       WRITEs: signaled, every64, chained
    patternend.py FD take|give WHAT       messages of `size` into a buffer, one at a time: announced, eager
    patternend.py FD take|give write      the same by a bare WRITE
    patternend.py FD take|give wait-HOW   messages to and fro; HOW: poll, event, adaptive

Options: seconds=0.4 size=64 outstanding=1 think=0 (microseconds that the other end waits before it answers).
FD is a line to the other end.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

import batches
import numpy as np

import rnic
from rnic.patterns.chain import SendQueue
from rnic.patterns.credits import Channel
from rnic.patterns.many import ManyReader, ManyWriter
from rnic.patterns.ports import QueuePairPort, Window
from rnic.patterns.pubsub import MissedError, Publisher, Subscriber
from rnic.patterns.rendezvous import Rendezvous
from rnic.patterns.ring import RingReader, RingWriter
from rnic.patterns.wait import How, Waiter
from rnic.testing import ALL_ACCESS, Address, complete, prepare
from rnic.testing import Options as Connection

HOST = "127.0.0.1"
CONNECTION = Connection(path_mtu=rnic.MTU.MTU_4096, min_rnr_timer=1, address=HOST)
DEFAULTS = {"seconds": 0.4, "size": 64.0, "outstanding": 1.0, "think": 0.0}
RING = 1 << 20
MANY = 64  # records in one put_many(), requests in one chain
LOOK_EVERY = 64  # records between two looks at the clock
Options = dict[str, float]
Figures = dict[str, float]


class Line:
    """To the other process."""

    def __init__(self, fd: int) -> None:
        self._sock = socket.socket(fileno=fd)
        self._heard = self._sock.makefile("r")

    def say(self, *words: object) -> None:
        self._sock.sendall((" ".join(map(str, words)) + "\n").encode())

    def hear(self) -> list[str]:
        return self._heard.readline().split()

    def is_over(self) -> bool:
        """Whether the other end has said something."""
        return bool(select.select([self._sock], [], [], 0)[0])

    def swap(self, *numbers: int) -> list[int]:
        """Both ends tell numbers."""
        self.say(*numbers)
        return [int(word) for word in self.hear()]


@contextmanager
def queue_pair(line: Line) -> Iterator[rnic.QP]:
    """Connected with the other process, with a completion channel for each of its queues."""
    with ExitStack() as stack:
        enter = stack.enter_context
        ctx = enter(rnic.open_device("roce_lo"))
        pd = enter(ctx.alloc_pd())
        cqs = [enter(ctx.create_cq(4096, enter(ctx.create_comp_channel()))) for _ in range(2)]
        cap = rnic.QPCap(max_send_wr=256, max_recv_wr=512, max_inline_data=64)
        qp = enter(pd.create_qp(rnic.QPInitAttr(send_cq=cqs[0], recv_cq=cqs[1], cap=cap)))
        own = prepare(qp, CONNECTION)
        qpn, psn = line.swap(qp.qp_num, own.psn)
        complete(qp, own, Address(own.gid, qpn, psn, own.mtu), CONNECTION)
        yield qp


@contextmanager
def connection(line: Line, gives: bool) -> Iterator[rnic.Connection]:
    if gives:
        with rnic.connect(HOST, int(line.hear()[0])) as conn:
            yield conn
    else:
        with rnic.listen(HOST, 0) as listener:
            line.say(listener.port)
            with listener.accept() as conn:
                yield conn


# ------------------------------------------------------------------ streams of records


def stream(line: Line, put: Callable[[], int], end: Callable[[], None], options: Options) -> Figures:
    """Gives for so long; the figures count what the other end has taken, to the last."""
    began, given = time.perf_counter(), 0
    while time.perf_counter() < began + options["seconds"]:
        for _ in range(LOOK_EVERY):
            given += put()
    end()
    taken = int(line.hear()[0])
    took = time.perf_counter() - began
    if taken != given:
        raise SystemExit(f"{taken} records of {given} came")
    return {"messages_per_s": given / took, "gbytes_per_s": given * options["size"] / took / 1e9}


def give_ring(line: Line, options: Options, *, many: bool) -> Figures:
    record = bytes(int(options["size"]))
    records = [record] * MANY

    def put_many() -> int:
        writer.put_many(records)
        return MANY

    def put() -> int:
        writer.put(record)
        return 1

    with queue_pair(line) as qp:
        port = QueuePairPort(qp)
        writer = RingWriter(port, Window(*(int(word) for word in line.hear())))
        line.say(writer.mr.addr, writer.mr.length, writer.mr.rkey)
        line.hear()
        found = stream(line, put_many if many else put, writer.end, options)
        port.close()
    return found


def take_ring(line: Line, _: Options) -> None:
    with queue_pair(line) as qp:
        port = QueuePairPort(qp)
        reader = RingReader(port, RING)
        line.say(reader.mr.addr, reader.mr.length, reader.mr.rkey)
        reader.begin(Window(*(int(word) for word in line.hear())))
        line.say("begin")
        line.say(sum(1 for _ in reader))
        line.hear()
        port.close()


def give_channel(line: Line, options: Options) -> Figures:
    record = bytes(int(options["size"]))
    with queue_pair(line) as qp, Channel(qp) as channel:

        def put() -> int:
            channel.send(record)
            return 1

        return stream(line, put, lambda: channel.send(b""), options)


def take_channel(line: Line, _: Options) -> None:
    with queue_pair(line) as qp, Channel(qp) as channel:
        count = 0
        while channel.recv():
            count += 1
        line.say(count)


def give_many(line: Line, options: Options) -> Figures:
    """A single writer: what the claim of a slot costs."""
    record = bytes(int(options["size"]))
    with connection(line, True) as conn:
        writer = ManyWriter.over(conn)

        def put() -> int:
            writer.put(record)
            return 1

        return stream(line, put, lambda: writer.put(b""), options)


def take_many(line: Line, options: Options) -> None:
    with rnic.listen(HOST, 0) as listener:
        reader = ManyReader(listener, slots=256, size=int(options["size"]))
        serving = threading.Thread(target=listener.serve, args=(reader.serve,))
        serving.start()
        line.say(listener.port)
        count = 0
        while reader.get():
            count += 1
        line.say(count)
        listener.close()
        serving.join()


def give_pubsub(line: Line, options: Options) -> Figures:
    """Published as fast as it goes; the figures count what one subscriber has heard."""
    record = bytes(int(options["size"]))
    with rnic.listen(HOST, 0) as listener, Publisher(listener, slots=4096, size=len(record)) as publisher:
        serving = threading.Thread(target=listener.serve, args=(publisher.serve,))
        serving.start()
        line.say(listener.port)
        line.hear()
        began = time.perf_counter()
        while time.perf_counter() < began + options["seconds"]:
            for _ in range(LOOK_EVERY):
                publisher.publish(record)
        publisher.end()
        heard = int(line.hear()[0])
        took = time.perf_counter() - began
        listener.close()
        serving.join()
    return {"messages_per_s": heard / took}


def take_pubsub(line: Line, _: Options) -> None:
    with connection(line, True) as conn, Subscriber.over(conn) as subscriber:
        line.say("joined")
        heard = 0
        with suppress(EOFError):
            while True:
                with suppress(MissedError):
                    subscriber.get()
                    heard += 1
        line.say(heard)


# ------------------------------------------------------------------ a send queue


def give_writes(line: Line, options: Options, *, every: int, chain: int) -> Figures:
    """WRITEs of `size` bytes, of which every nth asks for a completion, in chains of so many."""
    with queue_pair(line) as qp, qp.pd.alloc_mr(RING, ALL_ACCESS) as mr:  # type: ignore[union-attr]
        addr, rkey = line.swap(mr.addr, mr.rkey)
        queue, sge = SendQueue(qp, How.POLL, every=every), rnic.SGE(mr, 0, int(options["size"]))

        def run(count: int) -> None:
            for _ in range(count):
                with queue.chain() as one:
                    for _ in range(chain):
                        one.write(sge, addr, rkey)
            queue.flush()

        found = batches.measure(run, lambda _: None, options["seconds"])
        line.say("end")
        line.hear()
    return {"us_per_operation": found["median_us"] / chain, "messages_per_s": chain / found["mean_us"] * 1e6}


def take_writes(line: Line, _: Options) -> None:
    with queue_pair(line) as qp, qp.pd.alloc_mr(RING, ALL_ACCESS) as mr:  # type: ignore[union-attr]
        line.swap(mr.addr, mr.rkey)
        line.hear()
        line.say("end")


# ------------------------------------------------------------------ long messages


def bandwidth(found: Figures, options: Options) -> Figures:
    return {"gbytes_per_s": options["size"] / found["median_us"] / 1e3, "median_us": found["median_us"]}


def give_message(line: Line, options: Options, *, announced: bool) -> Figures:
    """Until this end knows that the peer has it: of an announced message send() tells, of an eager one an
    answer. The arrays come again, so their registrations are kept.
    """
    message = np.ones(int(options["size"]), np.uint8)
    threshold = 1 if announced else len(message) + 1
    with queue_pair(line) as qp, Rendezvous(Channel(qp), threshold=threshold) as end:
        line.swap(int(not announced))

        def run(count: int) -> None:
            for _ in range(count):
                end.send(message)
                if not announced:
                    end.recv()

        return bandwidth(batches.measure(run, lambda _: None, options["seconds"]), options)


def take_message(line: Line, options: Options) -> None:
    buffer = np.ones(int(options["size"]), np.uint8)
    with queue_pair(line) as qp, Rendezvous(Channel(qp)) as end:
        (answers,) = line.swap(0)
        with suppress(EOFError):
            while True:
                end.recv_into(buffer)
                if answers:
                    end.send(b"")


def give_write(line: Line, options: Options) -> Figures:
    message = np.ones(int(options["size"]), np.uint8)
    with queue_pair(line) as qp, qp.pd.reg_mr(message, ALL_ACCESS) as mr:  # type: ignore[union-attr]
        addr, rkey = line.swap(mr.addr, mr.rkey)
        queue = SendQueue(qp)

        def run(count: int) -> None:
            for _ in range(count):
                with queue.chain(signaled=True) as one:
                    one.write(rnic.SGE(mr), addr, rkey)
                queue.wait(one.ticket)

        found = bandwidth(batches.measure(run, lambda _: None, options["seconds"]), options)
        line.say("end")
        line.hear()
    return found


def take_write(line: Line, options: Options) -> None:
    buffer = np.ones(int(options["size"]), np.uint8)
    with queue_pair(line) as qp, qp.pd.reg_mr(buffer, ALL_ACCESS) as mr:  # type: ignore[union-attr]
        line.swap(mr.addr, mr.rkey)
        line.hear()
        line.say("end")


# ------------------------------------------------------------------ waits


class Ball:
    """Messages of no bytes, to and fro."""

    def __init__(self, qp: rnic.QP, how: How) -> None:
        self._qp = qp
        self._sends, self._waiter = SendQueue(qp, How.POLL), Waiter(qp.recv_cq, how)  # type: ignore[arg-type]
        self._receive = rnic.RecvWR()
        for _ in range(8):
            qp.post_recv(self._receive)

    def throw(self) -> None:
        with self._sends.chain() as chain:
            chain.write_imm(0)

    def catch(self) -> None:
        self._waiter.wait(1)
        self._qp.post_recv(self._receive)


def processor_time(began: float, used: float) -> float:
    return (time.process_time() - used) / (time.perf_counter() - began) * 1e3


def give_wait(line: Line, options: Options, *, how: How) -> Figures:
    """Half of a round trip, less the time that the other end waits; the processor time of this process."""
    with queue_pair(line) as qp:
        ball, took = Ball(qp, how), list[float]()
        line.swap()
        began, used = time.perf_counter(), time.process_time()
        while (now := time.perf_counter()) < began + options["seconds"]:
            ball.throw()
            ball.catch()
            took.append(time.perf_counter() - now)
        cpu = processor_time(began, used)
        line.say("end")
        ball.throw()
        line.hear()
    return {
        "median_us": (sorted(took)[len(took) // 2] * 1e6 - options["think"]) / 2,
        "cpu_ms_per_s": cpu,
        "messages_per_s": len(took) / options["seconds"],
    }


def take_wait(line: Line, options: Options, *, how: How) -> None:
    think = options["think"] / 1e6
    with queue_pair(line) as qp:
        ball = Ball(qp, How.POLL if think else how)
        line.swap()
        over = False
        while not over:
            ball.catch()
            until = time.perf_counter() + think
            while time.perf_counter() < until:
                pass
            ball.throw()
            over = line.is_over()
        line.say("end")


# ------------------------------------------------------------------ which

Take, Give = Callable[[Line, Options], None], Callable[[Line, Options], Figures]
ENDS: dict[str, tuple[Take, Give]] = {
    "ring": (take_ring, partial(give_ring, many=False)),
    "ring-many": (take_ring, partial(give_ring, many=True)),
    "channel": (take_channel, give_channel),
    "many": (take_many, give_many),
    "pubsub": (take_pubsub, give_pubsub),
    "signaled": (take_writes, partial(give_writes, every=1, chain=1)),
    "every64": (take_writes, partial(give_writes, every=64, chain=1)),
    "chained": (take_writes, partial(give_writes, every=64, chain=MANY)),
    "announced": (take_message, partial(give_message, announced=True)),
    "eager": (take_message, partial(give_message, announced=False)),
    "write": (take_write, give_write),
} | {f"wait-{how.value}": (partial(take_wait, how=how), partial(give_wait, how=how)) for how in How}


def main(ends: dict[str, tuple[Take, Give]]) -> None:
    fd, role, what, *rest = sys.argv[1:]
    given = dict(word.split("=") for word in rest)
    options = DEFAULTS | {name: float(value) for name, value in given.items()}
    line, (take, give) = Line(int(fd)), ends[what]
    if role == "take":
        take(line, options)
    else:
        print(json.dumps(give(line, options)), flush=True)


if __name__ == "__main__":
    main(ENDS)
