# SPDX-License-Identifier: Apache-2.0
"""`rnic pingpong xrc`: ibv_xsrq_pingpong, one server and many clients, each with a shared receive queue.

Between server and client there is an XRC connection each way.  They tell each other over TCP, the client
first, in 66 bytes of text with its final NUL:

    LID : QPN of XRC_RECV : QPN of XRC_SEND : PSN of both : number of the queue : GID

Then the server sends to each client; whoever receives answers, until each has sent what it has to, and at
last they tell each other so ("END" and NUL), the client first.  The original server sends its messages to the
clients in turn through every one of its connections, since processes of one host share an XRC domain there;
here each client is sent to through its own.
"""

from __future__ import annotations

import mmap
import re
import secrets
import socket
from contextlib import ExitStack

import click

import rnic
from rnic.cli import endpoint, exchange
from rnic.cli.params import Failure
from rnic.records import MutableRecord, Record, replace

RECV_WRID, SEND_WRID = 1, 2
MESSAGE = re.compile(rb"([0-9a-f]{4}):" + rb"([0-9a-f]{6}):" * 4 + rb"([0-9a-f]{32})\0", re.IGNORECASE)
MESSAGE_BYTES = 66
END = b"END\0"


class Address(Record):
    """The address of a pair of queue pairs."""

    lid: int
    recv_qpn: int
    send_qpn: int
    psn: int
    srqn: int
    gid: bytes

    def encode(self) -> bytes:
        """The 66 bytes of the exchange."""
        numbers = (self.recv_qpn, self.send_qpn, self.psn, self.srqn)
        text = ":".join([f"{self.lid:04x}", *(f"{number:06x}" for number in numbers), self.gid.hex()])
        return f"{text}\0".encode()

    @classmethod
    def parse(cls, message: bytes) -> Address:
        """The address in a message of the exchange; ValueError when it is none."""
        match = MESSAGE.fullmatch(message)
        if match is None:
            raise ValueError(f"{message!r} is not the address of an XRC connection")
        lid, recv_qpn, send_qpn, psn, srqn = (int(field, 16) for field in match.groups()[:5])
        return cls(lid, recv_qpn, send_qpn, psn, srqn, bytes.fromhex(match[6].decode()))

    def __str__(self) -> str:
        """As ibv_xsrq_pingpong prints it."""
        gid = socket.inet_ntop(socket.AF_INET6, self.gid)
        qpns = f"QPN RECV {self.recv_qpn:06x} SEND {self.send_qpn:06x}"
        return f"LID {self.lid:04x}, {qpns}, PSN {self.psn:06x}, SRQN {self.srqn:06x}, GID {gid}"

    def of(self, qp_num: int) -> exchange.PeerAddress:
        """As the address of one of its queue pairs."""
        return exchange.PeerAddress(self.lid, qp_num, self.psn, self.gid)


class Couple(MutableRecord):
    """The queue pairs of one connection, and how far it has come."""

    recv: rnic.QP
    send: rnic.QP
    local: Address
    message: rnic.SendWR
    sock: socket.socket | None = None
    owed: int = 0  # messages to answer
    left: int = 0  # messages to send
    busy: bool = False  # our last one may not have arrived yet


class ExtendedEnd:
    """One end: a domain with one shared receive queue, and a couple of queue pairs for each peer."""

    def __init__(
        self, port: endpoint.LocalPort, stack: ExitStack, *, size: int, peers: int, tests: int, sleeps: bool
    ) -> None:
        ctx = port.ctx
        self.port, self.tests = port, tests
        self.channel = stack.enter_context(ctx.create_comp_channel()) if sleeps else None
        self.pd = stack.enter_context(ctx.alloc_pd())
        mr = stack.enter_context(self.pd.reg_mr(mmap.mmap(-1, max(size, 1)), rnic.AccessFlags.LOCAL_WRITE))
        self.cq = stack.enter_context(ctx.create_cq(4 * peers, channel=self.channel))
        stack.callback(self._acknowledge)
        self._events = 0
        xrcd = stack.enter_context(ctx.open_xrcd())
        attr = rnic.SRQAttr(max_wr=2 * peers, max_sge=1)
        init = rnic.SRQInitAttrEx(self.pd, rnic.SRQType.XRC, xrcd, self.cq, attr)
        self.srq = stack.enter_context(ctx.create_srq_ex(init))
        sges = [rnic.SGE(mr, 0, size)] if size else []
        self.room = rnic.RecvWR(RECV_WRID, sges)
        self.couples = [self._couple(stack, xrcd, sges) for _ in range(peers)]
        for _ in range(2 * peers):
            self.srq.post_recv(self.room)
        if self.channel:
            self.cq.req_notify()

    def _couple(self, stack: ExitStack, xrcd: rnic.XRCD, sges: list[rnic.SGE]) -> Couple:
        recv = stack.enter_context(xrcd.create_qp())
        cap = rnic.QPCap(max_send_wr=1, max_send_sge=1)
        init = rnic.QPInitAttr(self.cq, qp_type=rnic.QPType.XRC_SEND, cap=cap)
        send = stack.enter_context(self.pd.create_qp(init))
        for qp in (recv, send):
            endpoint.to_init(qp, self.port.port_num, rnic.AccessFlags(0))
        local = Address(
            self.port.lid,
            recv.qp_num,
            send.qp_num,
            secrets.randbits(24),
            self.srq.get_srq_num(),
            self.port.gid,
        )
        message = rnic.SendWR(SEND_WRID, rnic.WROpcode.SEND, rnic.SendFlags.SIGNALED, sges)
        return Couple(recv, send, local, message, left=self.tests)

    def connect(self, couple: Couple, peer: Address, mtu: rnic.MTU, sl: int) -> None:
        """From now on messages can go both ways."""
        couple.message.remote_srqn = peer.srqn
        path = endpoint.path_to(self.port, peer.of(peer.recv_qpn), sl)
        there = rnic.QPAttr(qp_state=rnic.QPState.RTR, path_mtu=mtu, rq_psn=peer.psn, ah_attr=path)
        ready = rnic.QPAttr(qp_state=rnic.QPState.RTS, timeout=16, sq_psn=couple.local.psn)
        couple.recv.modify(replace(there, dest_qp_num=peer.send_qpn, max_dest_rd_atomic=1, min_rnr_timer=12))
        couple.recv.modify(ready)
        couple.send.modify(replace(there, dest_qp_num=peer.recv_qpn))
        couple.send.modify(replace(ready, retry_cnt=7, rnr_retry=7, max_rd_atomic=1))

    def begin(self) -> None:
        """Send the first message to each peer."""
        for couple in self.couples:
            couple.owed += 1
            self._send(couple)

    def _send(self, couple: Couple) -> None:
        """Answers, when the last answer has arrived and all were not given yet."""
        if couple.busy or not couple.owed or not couple.left:
            return
        couple.send.post_send(couple.message)
        couple.busy = True
        couple.owed -= 1
        couple.left -= 1

    def run(self, timeout: float) -> None:
        """Answers messages until all have come and all of our own are there."""
        by_number = {qp.qp_num: couple for couple in self.couples for qp in (couple.recv, couple.send)}
        patience = endpoint.Patience(timeout)
        total = self.tests * len(self.couples)
        received = done = 0
        while received < total or done < total:
            doing = f"after {received} of {total} messages"
            for wc in self._completions(patience, timeout, doing):
                if not wc.ok:
                    raise Failure(f"{doing}: {wc.explain()}")
                couple = by_number[wc.qp_num]
                if wc.wr_id == SEND_WRID:
                    done += 1
                    couple.busy = False
                else:
                    received += 1
                    self.srq.post_recv(self.room)
                    couple.owed += 1
                self._send(couple)

    def _completions(self, patience: endpoint.Patience, timeout: float, doing: str) -> list[rnic.WC]:
        if self.channel is None:
            patience.begin()
            while not (found := self.cq.poll(16)):
                patience.wait(doing)
            return found
        try:
            self.channel.get_cq_event(timeout=timeout or None)
        except TimeoutError:
            patience.look(timeout, doing)
        self._events += 1
        self.cq.req_notify()
        return self.cq.poll(self.cq.cqe)  # what is left now makes no event

    def _acknowledge(self) -> None:
        if self._events:
            self.cq.ack_events(self._events)
            self._events = 0


def swap(sock: socket.socket, couple: Couple, client: bool) -> Address:
    """Tells each other the addresses, the client first; the peer's."""
    couple.sock = sock
    if client:
        _tell(sock, couple)
    try:
        peer = Address.parse(exchange.hear(sock, MESSAGE_BYTES, "waiting for the peer's address"))
    except ValueError as error:
        raise Failure(f"the peer does not speak the exchange of ibv_xsrq_pingpong: {error}") from None
    click.echo(f"  remote: {peer}")
    if not client:
        _tell(sock, couple)
    return peer


def _tell(sock: socket.socket, couple: Couple) -> None:
    click.echo(f"   local: {couple.local}")
    exchange.tell(sock, couple.local.encode(), "sending the local address")


def part(end: ExtendedEnd, client: bool) -> None:
    """Exchange the last messages, the clients' first: only then the queues may be closed."""
    socks = [couple.sock for couple in end.couples if couple.sock is not None]
    steps = (_say_end, _hear_end) if client else (_hear_end, _say_end)
    for step in steps:
        for sock in socks:
            step(sock)


def _say_end(sock: socket.socket) -> None:
    exchange.tell(sock, END, "ending the exchange")


def _hear_end(sock: socket.socket) -> None:
    word = exchange.hear(sock, len(END), "waiting for the peer to end the exchange")
    if word != END:
        raise Failure(f'the peer ended the exchange with {word!r} instead of "END"')
