# SPDX-License-Identifier: Apache-2.0
"""What the two processes of `rnic demo` say to each other, and the receiver.

There are two reliable connections: "control" carries messages (JSON in SENDs) and the file (RDMA WRITE),
"data" carries what is measured.  The sender speaks, the receiver answers:

    offer    name, length, sha256      region   addr, rkey: write there
    written  all bytes are there       verdict  good, sha256
    bench    bytes                     region   addr, rkey
    echo     count                     ready    then each message on "data" is sent back
    sink     count, size               ready    then count messages on "data" are received
    bye                                         the receiver ends

Neither waits for ever: a wait ends when the other process is gone, or when nothing happens for QUIET seconds.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import rnic
from rnic.cli import endpoint, exchange
from rnic.cli.params import Failure, show_size

QUIET = 30.0  # seconds
SLICE = 0.25  # seconds of sleep after which a waiting end looks whether the other is still there
CHUNK = 1 << 20  # bytes of one RDMA WRITE
WINDOW = 16  # RDMA WRITEs of the file on their way at a time
MESSAGES = 8  # receives that wait for messages
MESSAGE_BYTES = 4096
RECEIVES = 1024  # posted at a time for them: more messages than that need a peer that can make them wait
BENCH_DEPTH = 64  # messages on their way at a time while bandwidth is measured
SEND_WRID, WRITE_WRID = 1 << 32, 1 << 33  # or'ed with a slot's index; below that: a receive's slot
RD_ATOMIC = 16  # READs and atomics on their way at a time

Message = dict[str, Any]
REMOTE_ALL = (
    rnic.AccessFlags.LOCAL_WRITE
    | rnic.AccessFlags.REMOTE_WRITE
    | rnic.AccessFlags.REMOTE_READ
    | rnic.AccessFlags.REMOTE_ATOMIC
)


class Lane:
    """One reliable connection on its own completion queue."""

    def __init__(self, link: Link, stack: ExitStack, depth: int, receives: int) -> None:
        ctx, pd = link.port.ctx, link.pd
        self.channel = stack.enter_context(ctx.create_comp_channel())
        self.cq = stack.enter_context(ctx.create_cq(depth + receives, channel=self.channel))
        cap = rnic.QPCap(
            max_send_wr=depth, max_recv_wr=receives, max_send_sge=1, max_recv_sge=1, max_inline_data=64
        )
        init = rnic.QPInitAttr(send_cq=self.cq, recv_cq=self.cq, qp_type=rnic.QPType.RC, cap=cap)
        self.qp = stack.enter_context(pd.create_qp(init))
        endpoint.to_init(self.qp, link.port.port_num, REMOTE_ALL & ~rnic.AccessFlags.LOCAL_WRITE)
        self.local = link.port.address(self.qp)
        self.patience = endpoint.Patience(QUIET, link.gone)
        self.parting = False  # the last message is on its way

    def spin(self, doing: str) -> list[rnic.WC]:
        """Good completions, at least one, by polling."""
        found = self.cq.poll(BENCH_DEPTH)
        self.patience.begin()
        while not found:
            self.patience.wait(doing)
            found = self.cq.poll(BENCH_DEPTH)
        return [endpoint.check(wc) for wc in found]

    def sleep(self, doing: str, quiet: float = QUIET) -> list[rnic.WC]:
        """Good completions, at least one, asleep until then; Failure after quiet seconds (0: never)."""
        began = time.monotonic()
        patience = endpoint.Patience(quiet, self.patience.gone)
        while True:
            self.cq.req_notify()
            found = self.cq.poll(BENCH_DEPTH)
            if found:
                return [endpoint.check(wc) for wc in found if not self._is_farewell(wc)]
            try:
                self.channel.get_cq_event(timeout=SLICE)
                self.cq.ack_events(1)
            except TimeoutError:
                patience.look(time.monotonic() - began, doing)

    def _is_farewell(self, wc: rnic.WC) -> bool:
        """Whether it is a receive that the other end leaves unused: who has heard the last message closes."""
        return self.parting and wc.status is rnic.WCStatus.WR_FLUSH_ERR and not wc.wr_id & SEND_WRID


class Control(Lane):
    """The lane of messages and of the file."""

    def __init__(self, link: Link, stack: ExitStack) -> None:
        super().__init__(link, stack, MESSAGES + WINDOW, MESSAGES + WINDOW)
        # One slot for what is sent, the others for what is received.
        self.mr = stack.enter_context(
            link.pd.reg_mr(bytearray((MESSAGES + 1) * MESSAGE_BYTES), rnic.AccessFlags.LOCAL_WRITE)
        )
        self.view = memoryview(self.mr.buf).cast("B")
        self.receives = [
            rnic.RecvWR(
                wr_id=slot, sg_list=[rnic.SGE(self.mr, offset=slot * MESSAGE_BYTES, length=MESSAGE_BYTES)]
            )
            for slot in range(MESSAGES)
        ]
        self.qp.post_recv(self.receives)
        self.inbox: deque[Message] = deque()
        self.written: deque[int] = deque()  # slots of the RDMA WRITEs that have completed
        self.sending = False

    def send(self, kind: str, **fields: object) -> None:
        """Sends a message and waits until the other end has it."""
        data = json.dumps({"kind": kind, **fields}).encode()
        if len(data) > MESSAGE_BYTES:
            raise Failure(f"a message of {len(data)} bytes does not fit: the file's name is too long")
        start = MESSAGES * MESSAGE_BYTES
        self.view[start : start + len(data)] = data
        self.qp.post_send(
            rnic.SendWR(
                wr_id=SEND_WRID,
                opcode=rnic.WROpcode.SEND,
                send_flags=rnic.SendFlags.SIGNALED,
                sg_list=[rnic.SGE(self.mr, offset=start, length=len(data))],
            )
        )
        self.sending, self.parting = True, kind == "bye"
        while self.sending:
            self.progress(f"sending {kind!r}")

    def receive(self, *kinds: str, quiet: float = QUIET) -> Message:
        """The next message, which must be of one of the kinds."""
        while not self.inbox:
            self.progress(f"waiting for {' or '.join(map(repr, kinds))}", quiet)
        message = self.inbox.popleft()
        if message.get("kind") not in kinds:
            raise Failure(f"the other process said {message}, not {' or '.join(map(repr, kinds))}")
        return message

    def progress(self, doing: str, quiet: float = QUIET) -> None:
        """Sleeps until something completes, and files it."""
        for wc in self.sleep(doing, quiet):
            if wc.wr_id & WRITE_WRID:
                self.written.append(wc.wr_id & ~WRITE_WRID)
            elif wc.wr_id & SEND_WRID:
                self.sending = False
            else:
                start = wc.wr_id * MESSAGE_BYTES
                self.inbox.append(json.loads(bytes(self.view[start : start + wc.byte_len])))
                self.qp.post_recv(self.receives[wc.wr_id])


class Link:
    """Both lanes, connected to the process at the other end of a TCP connection."""

    def __init__(
        self,
        sock: socket.socket,
        stack: ExitStack,
        gone: Callable[[], str | None],
        device: str | None = None,
    ) -> None:
        self.gone = gone  # why the other process will never answer, or None
        self.port = endpoint.open_port(device, 1, None, sock.getsockname())
        stack.enter_context(self.port.ctx)
        self.pd = stack.enter_context(self.port.ctx.alloc_pd())
        self.control = Control(self, stack)
        self.data = Lane(self, stack, BENCH_DEPTH, RECEIVES)
        self._connect(sock)

    def _connect(self, sock: socket.socket) -> None:
        """Tells the addresses, hears the other end's, and waits until both are connected."""
        attr = self.port.ctx.query_device()
        rd_atomic = max(1, min(RD_ATOMIC, attr.max_qp_rd_atom, attr.max_qp_init_rd_atom))
        mtu = self.port.ctx.query_port(self.port.port_num).active_mtu
        lanes = (self.control, self.data)
        for lane in lanes:
            exchange.send_address(sock, lane.local)
        for lane in lanes:
            remote = exchange.receive_address(sock)
            endpoint.connect(lane.qp, self.port, lane.local, remote, mtu=rnic.MTU(mtu), rd_atomic=rd_atomic)
        exchange.send_done(sock)
        exchange.receive_done(sock)


def available_memory() -> int | None:
    """Bytes that a process may still get without swapping; None when the system does not say."""
    try:
        with Path("/proc/meminfo").open(encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def receiver(sock: socket.socket, device: str | None) -> None:
    """The other process: serves what the sender asks for until it says bye or is gone."""

    def gone() -> str | None:
        try:
            return None if sock.recv(1, socket.MSG_PEEK) else "the sender is gone"
        except (BlockingIOError, TimeoutError):
            return None
        except OSError:
            return "the sender is gone"

    with ExitStack() as stack:
        link = Link(sock, stack, gone, device)
        sock.setblocking(False)  # from now on it only tells whether the sender lives
        try:
            serve(link, stack)
        except Failure:
            if gone() is None:
                raise
            # The sender has said why it left; nobody needs to hear that it is gone.


def serve(link: Link, stack: ExitStack) -> None:
    """Answers messages, one after the other."""
    control = link.control
    while True:
        message = control.receive("offer", "bench", "bye", quiet=0)
        if message["kind"] == "bye":
            return
        if message["kind"] == "offer":
            receive_file(link, message)
        else:
            Bench(link, stack, message["bytes"]).serve()


def receive_file(link: Link, offer: Message) -> None:
    """Makes room, lets the sender write into it, and says whether all is there."""
    length, room = offer["length"], available_memory()
    if room is not None and length > room:
        raise Failure(f"{offer['name']} has {length} bytes, the receiver's memory has room for {room}")
    access = rnic.AccessFlags.LOCAL_WRITE | rnic.AccessFlags.REMOTE_WRITE
    with link.pd.alloc_mr(max(length, 1), access) as region:
        touch(region)
        link.control.send("region", addr=region.addr, rkey=region.rkey)
        link.control.receive("written", quiet=0)
        with memoryview(region.buf) as view:
            digest = hashlib.sha256(view[:length]).hexdigest()
        link.control.send("verdict", good=digest == offer["sha256"], sha256=digest)


def touch(region: rnic.MR) -> None:
    """Makes the system give the region its pages now, as registration does for hardware, which pins them."""
    with memoryview(region.buf) as view, view[:: mmap.PAGESIZE] as first_bytes:
        first_bytes[:] = bytes(len(first_bytes))


class Bench:
    """A region that the sender reads, writes and counts in, and messages that come back or are swallowed."""

    def __init__(self, link: Link, stack: ExitStack, size: int) -> None:
        self.link, self.lane = link, link.data
        self.mr = stack.enter_context(link.pd.alloc_mr(size, REMOTE_ALL))

    def serve(self) -> None:
        """Until the sender has measured enough."""
        control = self.link.control
        control.send("region", addr=self.mr.addr, rkey=self.mr.rkey)
        while (message := control.receive("echo", "sink", "end", quiet=0))["kind"] != "end":
            if message["kind"] == "echo":
                self.echo(message["count"])
            else:
                self.sink(message["count"], message["size"])

    def receives(self, size: int) -> list[rnic.RecvWR]:
        """As many receives as fit the queue, all into the same bytes."""
        sg_list = [rnic.SGE(self.mr, offset=0, length=size)]
        return [rnic.RecvWR(wr_id=0, sg_list=sg_list) for _ in range(RECEIVES)]

    def echo(self, count: int) -> None:
        """Sends back count messages of 8 bytes, each as soon as it is there."""
        lane, wrs = self.lane, self.receives(8)
        reply = rnic.SendWR(
            wr_id=SEND_WRID,
            opcode=rnic.WROpcode.SEND,
            send_flags=rnic.SendFlags.SIGNALED | rnic.SendFlags.INLINE,
            sg_list=wrs[0].sg_list,
        )
        lane.qp.post_recv(wrs[:count])
        posted, received, sent = min(count, RECEIVES), 0, 0
        self.link.control.send("ready")
        while received < count or sent < count:
            for wc in lane.spin(f"echoing message {received + 1} of {count}"):
                if wc.wr_id == SEND_WRID:
                    sent += 1
                    continue
                received += 1
                lane.qp.post_send(reply)
                if posted < count:
                    lane.qp.post_recv(wrs[0])
                    posted += 1

    def sink(self, count: int, size: int) -> None:
        """Receives count messages."""
        lane, wrs = self.lane, self.receives(size)
        lane.qp.post_recv(wrs[:count])
        posted, received = min(count, RECEIVES), 0
        self.link.control.send("ready")
        while received < count:
            got = len(lane.spin(f"receiving message {received + 1} of {count}"))
            received += got
            more = min(got, count - posted)
            if more:
                lane.qp.post_recv(wrs[:more])
                posted += more


def describe(length: int) -> str:
    """How the file was sent, for the line under the progress bar."""
    writes = -(-length // CHUNK)
    return f"{writes} RDMA WRITEs of {show_size(CHUNK)}" if writes != 1 else "1 RDMA WRITE"
