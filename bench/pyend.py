# SPDX-License-Identifier: Apache-2.0
"""One end of a connection in a Python process: what a program on rnic does.

    pyend.py FD target sleep|hold      serves READs while it sleeps, or while a pure Python loop holds the GIL
    pyend.py FD post                   8-byte WRITEs in chains of reusable work requests, many outstanding
    pyend.py FD put                    WRITEs in chains, one chain at a time, to its completion
    pyend.py FD pingpong               messages, each answered by
    pyend.py FD echo                   the other end

and options: seconds=0.4 size=8 chain=32 depth=512 local=0 iwarp=0.  FD and what is said over it are those of
native.c.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack

import batches

import rnic
from rnic.testing import ALL_ACCESS, Address, complete, prepare
from rnic.testing import Options as Connection

SIZE = 4 << 20
CONNECTION = Connection(path_mtu=rnic.MTU.MTU_4096, min_rnr_timer=1, address="127.0.0.1")
INLINE = 64
RECEIVES = 64
SIGNAL_EVERY = 32
DEFAULTS = {"seconds": 0.4, "size": 8, "chain": 32, "depth": 512, "local": 0, "iwarp": 0}
Options = dict[str, float]


class End:
    """A connected queue pair with one region, and the line to the other process."""

    def __init__(self, stack: ExitStack, fd: int, *, local: bool, serves: bool, iwarp: bool) -> None:
        self.line = stack.enter_context(socket.socket(fileno=fd))
        self.heard = self.line.makefile("r")
        name = "iwarp_lo" if iwarp else "roce_lo"
        ctx = stack.enter_context(rnic.open_device(name, local=local))
        pd = stack.enter_context(ctx.alloc_pd())
        self.mr = stack.enter_context(pd.alloc_mr(SIZE, ALL_ACCESS))
        self.cq = stack.enter_context(ctx.create_cq(4096))
        self.receives = stack.enter_context(ctx.create_cq(4096))
        cap = rnic.QPCap(
            max_send_wr=1024,
            max_recv_wr=RECEIVES,
            max_send_sge=1,
            max_recv_sge=1,
            max_inline_data=INLINE,
        )
        init = rnic.QPInitAttr(send_cq=self.cq, recv_cq=self.receives, qp_type=rnic.QPType.RC, cap=cap)
        self.qp = stack.enter_context(pd.create_qp(init))
        if iwarp:
            self._join(serves)
            return
        own = prepare(self.qp, CONNECTION)
        qpn, psn = self._tell(own.psn)[:2]
        complete(self.qp, own, Address(own.gid, qpn, psn, own.mtu), CONNECTION)

    def _tell(self, psn: int, port: int = 0) -> tuple[int, int, int]:
        """Queue pair, PSN and TCP port of the other end, which learns this one's."""
        self.say(f"{self.qp.qp_num:x} {psn:x} {self.mr.addr:x} {self.mr.rkey:x} {port:x}")
        qpn, psn, self.addr, self.rkey, port = (int(word, 16) for word in self.hear().split())
        return qpn, psn, port

    def _join(self, serves: bool) -> None:
        """Over TCP: the end that serves listens."""
        state, most = rnic.QPState, 16
        self.qp.modify(rnic.QPAttr(qp_state=state.INIT, port_num=1, qp_access_flags=ALL_ACCESS))
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = self._tell(0, listener.getsockname()[1])[2]
            sock = listener.accept()[0] if serves else socket.create_connection(("127.0.0.1", port))
        with sock:
            self.qp.modify(rnic.QPAttr(qp_state=state.RTR, max_dest_rd_atomic=most))
            self.qp.attach_stream(sock, rnic.StreamAttr(initiator=not serves, rtr=rnic.StreamRTR.NONE))
        self.qp.modify(rnic.QPAttr(qp_state=state.RTS, max_rd_atomic=most))

    def say(self, text: str) -> None:
        self.line.sendall(f"{text}\n".encode())

    def hear(self) -> str:
        return self.heard.readline().strip()

    def meet(self) -> None:
        self.say("ready")
        self.hear()

    def over(self) -> bool:
        return bool(select.select([self.line], [], [], 0)[0])


def serve(end: End, how: str) -> None:
    end.meet()
    began, own = time.process_time(), time.thread_time()
    while not end.over():
        if how == "sleep":
            time.sleep(0.05)
        else:
            for _ in range(1_000_000):
                pass
    end.hear()
    own = time.thread_time() - own
    every = time.process_time() - began
    end.say(json.dumps({"main_cpu_s": round(own, 4), "engine_cpu_s": round(max(0.0, every - own), 4)}))


def stream(end: End, chain: tuple[rnic.SendWR, ...], chains: int, seconds: float) -> tuple[int, float]:
    """Posts and polls for so long, with so many chains outstanding; (operations, seconds)."""
    post, poll, clock = end.qp.post_send, end.cq.poll, time.perf_counter
    posted = done = 0
    began = last = clock()
    until = began + seconds
    more = True
    while more or done < posted:
        while more and posted - done < chains:
            post(chain)
            posted += 1
        found = poll(16)
        if found:
            for wc in found:
                if not wc.ok:
                    raise SystemExit(wc.explain())
            done += len(found)
            last = clock()
            more = last < until
    return posted * len(chain), last - began


def writes(end: End, size: int, length: int) -> tuple[rnic.SendWR, ...]:
    """A chain, the last of which is signaled."""
    flags = rnic.SendFlags.INLINE if size <= INLINE else rnic.SendFlags(0)
    sge = [rnic.SGE(end.mr, offset=0, length=size)]
    return tuple(
        rnic.SendWR(
            wr_id=i,
            opcode=rnic.WROpcode.RDMA_WRITE,
            send_flags=flags | (rnic.SendFlags.SIGNALED if i == length - 1 else flags),
            sg_list=sge,
            remote_addr=end.addr,
            rkey=end.rkey,
        )
        for i in range(length)
    )


def post(end: End, options: Options) -> None:
    length, seconds = options["chain"], options["seconds"]
    chain, chains = writes(end, options["size"], int(length)), int(options["depth"] // length)
    end.meet()
    stream(end, chain, chains, seconds / 8)
    own = time.thread_time()
    count, took = stream(end, chain, chains, seconds)
    own = time.thread_time() - own
    end.say("end")
    server = json.loads(end.hear())
    print(
        json.dumps(
            {
                "operations": count,
                "messages_per_s": count / took,
                "us_per_operation": took / count * 1e6,
                "main_cpu_us_per_operation": own / count * 1e6,
                "server": server,
            }
        )
    )


def take(cq: rnic.CQ) -> None:
    """Waits for a completion, which must be good."""
    while not (found := cq.poll(1)):
        pass
    if not found[0].ok:
        raise SystemExit(found[0].explain())


def putter(end: End, size: int, length: int) -> Callable[[int], None]:
    chain = writes(end, size, length)
    request = chain if length > 1 else chain[0]
    post, poll = end.qp.post_send, end.cq.poll

    def run(count: int) -> None:
        for _ in range(count):
            post(request)
            while not (found := poll(1)):
                pass
            if not found[0].ok:
                raise SystemExit(found[0].explain())

    return run


def put(end: End, options: Options) -> None:
    size, length = int(options["size"]), int(options["chain"])
    end.meet()
    found = batches.measure(putter(end, size, length), lambda _: None, options["seconds"])
    end.say("end")
    end.hear()
    batches.show({k: v / length if k.endswith("_us") else v for k, v in found.items()}, size)


class Talk:
    """Messages to and fro, with a receive posted for each that comes."""

    def __init__(self, end: End, size: int) -> None:
        self.end = end
        self.receive = rnic.RecvWR(sg_list=[rnic.SGE(end.mr, offset=SIZE // 2, length=size)])
        sge = [rnic.SGE(end.mr, offset=0, length=size)]
        flags = rnic.SendFlags.INLINE if size <= INLINE else rnic.SendFlags(0)
        self.plain = rnic.SendWR(opcode=rnic.WROpcode.SEND, send_flags=flags, sg_list=sge)
        flags |= rnic.SendFlags.SIGNALED
        self.signaled = rnic.SendWR(opcode=rnic.WROpcode.SEND, send_flags=flags, sg_list=sge)
        for _ in range(RECEIVES):
            end.qp.post_recv(self.receive)

    def run(self, count: int) -> None:
        """So many times: a message there, then one back."""
        send, poll, repost = self.end.qp.post_send, self.end.receives.poll, self.end.qp.post_recv
        plain, receive = self.plain, self.receive
        for i in range(count):
            if i % SIGNAL_EVERY:
                send(plain)
            else:
                self.say()
            while not (found := poll(1)):
                pass
            if not found[0].ok:
                raise SystemExit(found[0].explain())
            repost(receive)

    def say(self) -> None:
        """A message that completes, so that those before it make room in the queue."""
        self.end.qp.post_send(self.signaled)
        take(self.end.cq)

    def answer(self, count: int) -> None:
        """The other end of run(count)."""
        take(self.end.receives)
        self.end.qp.post_recv(self.receive)
        self.run(count - 1)
        self.say()


def pingpong(end: End, options: Options) -> None:
    talk = Talk(end, int(options["size"]))
    end.meet()
    found = batches.measure(talk.run, lambda count: end.say(str(count)), options["seconds"])
    batches.show(found, int(options["size"]))


def echo(end: End, options: Options) -> None:
    talk = Talk(end, int(options["size"]))
    end.meet()
    while count := int(end.hear()):
        talk.answer(count)


ROLES = {"post": post, "put": put, "pingpong": pingpong, "echo": echo}


def main() -> None:
    fd, role, *rest = sys.argv[1:]
    given = dict(word.split("=") for word in rest if "=" in word)
    options = DEFAULTS | {name: float(value) for name, value in given.items()}
    with ExitStack() as stack:
        serves, iwarp = role in ("target", "echo"), bool(options["iwarp"])
        end = End(stack, int(fd), local=bool(options["local"]), serves=serves, iwarp=iwarp)
        if role == "target":
            serve(end, rest[0])
        else:
            ROLES[role](end, options)


if __name__ == "__main__":
    main()
