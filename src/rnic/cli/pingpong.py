# SPDX-License-Identifier: Apache-2.0
"""`rnic pingpong rc`, `uc`, `ud`, `srq`, `xrc`: ibv_rc_pingpong and its kin; either end can be the original.

Each end posts rx_depth receives, and sends one message when it has received the other's and its own last SEND
has completed; the client begins.  An exchange is a message there and one back.
"""

from __future__ import annotations

import mmap
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

import click

import rnic
from rnic.cli import endpoint, exchange, params, pingpong_rc, pingpong_srq, pingpong_xrc
from rnic.cli.params import Failure

RECV_WRID, SEND_WRID = 1, 2
QKEY = 0x11111111  # of both ends of ibv_ud_pingpong
_F = TypeVar("_F", bound=Callable[..., Any])
FILL = 0x7B  # what ibv_rc_pingpong fills its buffer with
MTUS = {
    256: rnic.MTU.MTU_256,
    512: rnic.MTU.MTU_512,
    1024: rnic.MTU.MTU_1024,
    2048: rnic.MTU.MTU_2048,
    4096: rnic.MTU.MTU_4096,
}


@dataclass(frozen=True, slots=True)
class Options:
    """The command line of one end."""

    servername: str | None
    port: int
    ib_dev: str | None
    ib_port: int
    size: int
    rx_depth: int
    iters: int
    sl: int
    events: bool
    gid_idx: int | None
    chk: bool
    timeout: float
    mtu: rnic.MTU | None
    """Of the path; datagrams have none."""
    features: pingpong_rc.Features = field(default_factory=pingpong_rc.Features)

    @classmethod
    def of(cls, given: dict[str, Any], mtu: rnic.MTU | None) -> Options:
        """The options as click gives them."""
        index = given.pop("gid_idx")
        features = {name: given.pop(name) for name in _FEATURES if name in given}
        made = pingpong_rc.Features(**features)
        made.check()
        return cls(**given, gid_idx=None if index < 0 else index, mtu=mtu, features=made)


_FEATURES = [one.name for one in fields(pingpong_rc.Features)]


@click.group()
def pingpong() -> None:
    """Bounce messages between two queue pairs, as the ibv_*_pingpong programs do."""


def common(size: int, *without: str) -> Callable[[_F], _F]:
    """The options that the programs have, but for some; the default size of a message is each one's own."""
    options = {
        "servername": click.argument("servername", metavar="[HOST]", required=False),
        "port": click.option(
            "-p",
            "--port",
            type=params.number(0, 65535),
            default=18515,
            show_default=True,
            help="TCP port of the server.",
        ),
        "ib_dev": click.option(
            "-d", "--ib-dev", help="Device; without -d and -g, that of the TCP connection's local address."
        ),
        "ib_port": click.option(
            "-i",
            "--ib-port",
            type=params.number(1, 255),
            default=1,
            show_default=True,
            help="Port of the device.",
        ),
        "size": click.option(
            "-s",
            "--size",
            type=params.size((1 << 31) - 1),
            default=size,
            show_default=True,
            help="Bytes in a message.",
        ),
        "rx_depth": click.option(
            "-r",
            "--rx-depth",
            type=params.number(1),
            default=500,
            show_default=True,
            help="Receives to post at a time.",
        ),
        "iters": click.option(
            "-n", "--iters", type=params.number(1), default=1000, show_default=True, help="Exchanges."
        ),
        "sl": click.option(
            "-l", "--sl", type=params.number(0, 15), default=0, show_default=True, help="Service level."
        ),
        "events": click.option(
            "-e", "--events", is_flag=True, help="Sleep on completion events instead of polling."
        ),
        "gid_idx": click.option(
            "-g",
            "--gid-idx",
            type=params.number(-1),
            default=-1,
            help="Index of the local GID; -1: the local address.",
        ),
        "chk": click.option("-c", "--chk", is_flag=True, help="Validate the received buffer."),
        "timeout": click.option(
            "--timeout",
            type=click.FloatRange(0),
            default=60.0,
            show_default=True,
            help="Give up after this many seconds in which nothing completes (0: never).",
        ),
    }

    def add(command: _F) -> _F:
        for name in reversed(options):
            if name not in without:
                command = options[name](command)
        return command

    return add


path_mtu = click.option(
    "-m",
    "--mtu",
    type=click.Choice(list(map(str, MTUS))),
    default="1024",
    show_default=True,
    help="Path MTU.",
)


@pingpong.command()
@common(4096)
@path_mtu
@click.option("-o", "--odp", is_flag=True, help="On-demand paging.")
@click.option("-O", "--iodp", is_flag=True, help="Implicit on-demand paging: one region for all memory.")
@click.option("-P", "--prefetch", is_flag=True, help="Prefetch the on-demand region.")
@click.option("-t", "--ts", is_flag=True, help="Completions with timestamps.")
@click.option("-j", "--dm", is_flag=True, help="Device memory.")
@click.option("-N", "--new_send", "--new-send", is_flag=True, help="Post by the ibv_wr_* interface.")
def rc(mtu: str, **given: Any) -> None:
    """Bounce messages over a reliable connection: without HOST a server, with HOST its client.

    Options, TCP exchange and output are those of ibv_rc_pingpong; either end can be the original.

    \b
    rnic pingpong rc                       a server; then, on the other side, one of
    rnic pingpong rc HOST
    ibv_rc_pingpong -d rxe0 -g 1 HOST      the original needs -g on Ethernet
    """
    run(Options.of(given, MTUS[int(mtu)]), End)


@pingpong.command()
@common(4096)
@path_mtu
def uc(mtu: str, **given: Any) -> None:
    """Bounce messages over an unreliable connection: without HOST a server, with HOST its client.

    Options, TCP exchange and output are those of ibv_uc_pingpong; either end can be the original.  A
    message that loses a packet ends the run.
    """
    run(Options.of(given, MTUS[int(mtu)]), UnreliableEnd)


@pingpong.command()
@common(4096)
@path_mtu
@click.option(
    "-q",
    "--num-qp",
    type=params.number(1, pingpong_srq.ADDRESSES),
    default=16,
    show_default=True,
    help="Queue pairs.",
)
@click.option("-o", "--odp", is_flag=True, help="On-demand paging.")
def srq(mtu: str, num_qp: int, **given: Any) -> None:
    """Bounce messages over many connections, whose receives are of one shared queue.

    Options, TCP exchange and output are those of ibv_srq_pingpong; either end can be the original.  All
    queue pairs together do --iters exchanges.
    """
    options = Options.of(given, MTUS[int(mtu)])
    if num_qp > options.rx_depth:
        raise Failure(f"--rx-depth {options.rx_depth} is too few for {num_qp} queue pairs")
    run_shared(options, num_qp)


@pingpong.command()
@common(4096, "rx_depth", "chk", "iters")
@click.option(
    "-m",
    "--mtu",
    type=click.Choice(list(map(str, MTUS))),
    default="2048",
    show_default=True,
    help="Path MTU.",
)
@click.option(
    "-c", "--clients", type=params.number(1), default=1, show_default=True, help="Clients to wait for."
)
@click.option(
    "-n",
    "--num_tests",
    "--num-tests",
    type=params.number(1),
    default=5,
    show_default=True,
    help="Messages to each peer.",
)
def xrc(mtu: str, clients: int, num_tests: int, **given: Any) -> None:
    """Bounce messages over extended reliable connections: a server, and as many clients as it waits for.

    Options, TCP exchange and output are those of ibv_xsrq_pingpong; either end can be the original, but
    one that serves many clients sends through any one's connection to all of them, as an XRC domain that the
    processes of a host share allows: rnic's clients have a domain each.
    """
    given.update(rx_depth=0, chk=False, iters=num_tests)
    options = Options.of(given, MTUS[int(mtu)])
    run_extended(options, 1 if options.servername is not None else clients)


@pingpong.command()
@common(2048)
def ud(**given: Any) -> None:
    """Bounce datagrams: without HOST a server, with HOST its client.

    Options, TCP exchange and output are those of ibv_ud_pingpong; either end can be the original.  A
    message is one packet, so the port's MTU limits --size, and one that is lost ends the run.
    """
    run(Options.of(given, None), DatagramEnd)


def run(options: Options, kind: type[End]) -> None:
    """One end, from the TCP connection to the last line of output."""
    with ExitStack() as stack:
        sock = stack.enter_context(_meet(options))
        local_port = endpoint.open_port(options.ib_dev, options.ib_port, options.gid_idx, sock.getsockname())
        stack.enter_context(local_port.ctx)
        end = kind(options, local_port, stack)
        remote = _exchange(sock, options, end)
        sock.close()
        click.echo(f"  remote address: {remote}")
        seconds = end.run()
        click.echo(report(options.size, options.iters, seconds))
        if options.features.ts:
            click.echo(end.clock.report(local_port.ctx.query_device_ex().hca_core_clock))
        end.validate()


def run_shared(options: Options, num_qp: int) -> None:
    """The same with many queue pairs."""
    client = options.servername is not None
    with ExitStack() as stack:
        sock = stack.enter_context(_meet(options))
        local_port = endpoint.open_port(options.ib_dev, options.ib_port, options.gid_idx, sock.getsockname())
        stack.enter_context(local_port.ctx)
        end = pingpong_srq.SharedEnd(
            local_port,
            stack,
            qps=num_qp,
            size=options.size,
            rx_depth=options.rx_depth,
            iters=options.iters,
            sleeps=options.events,
            timeout=options.timeout,
            fill=lambda buf: _fill(buf, options),
            access=options.features.access(),
        )
        mtu = options.mtu
        assert mtu is not None
        pingpong_srq.swap(sock, end, client, lambda peers: end.connect(peers, mtu, options.sl))
        sock.close()
        seconds = end.run(begins=client)
        click.echo(report(options.size, options.iters, seconds))
        if options.chk and not client:
            _validate(end.buf, options.size)


def run_extended(options: Options, peers: int) -> None:
    """The same with an XRC connection each way to each peer."""
    client = options.servername is not None
    mtu = options.mtu
    assert mtu is not None
    with ExitStack() as stack:
        socks = _meet_all(options, peers, stack)
        sock = next(socks)
        local_port = endpoint.open_port(options.ib_dev, options.ib_port, options.gid_idx, sock.getsockname())
        stack.enter_context(local_port.ctx)
        end = pingpong_xrc.ExtendedEnd(
            local_port, stack, size=options.size, peers=peers, tests=options.iters, sleeps=options.events
        )
        for couple in end.couples:
            end.connect(couple, pingpong_xrc.swap(sock, couple, client), mtu, options.sl)
            sock = next(socks, sock)
        if not client:
            end.begin()
        end.run(options.timeout)
        pingpong_xrc.part(end, client)
        click.echo("success")


def _meet_all(options: Options, peers: int, stack: ExitStack) -> Iterator[socket.socket]:
    """The TCP connections, one after the other, each when it is wanted."""
    timeout = options.timeout or None
    if options.servername is not None:
        yield stack.enter_context(exchange.connect(options.servername, options.port, timeout))
        return
    with exchange.listen(options.port) as listener:
        if options.port == 0:
            click.echo(f"listening on port {listener.getsockname()[1]}", err=True)
        for _ in range(peers):
            yield stack.enter_context(exchange.accept(listener, timeout))


def _fill(buf: mmap.mmap, options: Options) -> None:
    """What is sent; with -c the client's pages begin otherwise."""
    buf.write(bytes([FILL]) * len(buf))
    if options.chk and options.servername is not None:
        for offset in range(0, options.size, mmap.PAGESIZE):
            buf[offset] = 0


def _validate(buf: mmap.mmap | bytes, size: int, start: int = 0) -> None:
    bad = bad_pages(buf, size, start)
    for page in bad:
        click.echo(f"invalid data in page {page}")
    if bad:
        raise Failure(f"{len(bad)} pages arrived wrong")


def _meet(options: Options) -> socket.socket:
    """The TCP connection: to the server, or the first client's."""
    timeout = options.timeout or None
    if options.servername is not None:
        return exchange.connect(options.servername, options.port, timeout)
    with exchange.listen(options.port) as listener:
        if options.port == 0:
            click.echo(f"listening on port {listener.getsockname()[1]}", err=True)
        return exchange.accept(listener, timeout)


def _exchange(sock: socket.socket, options: Options, end: End) -> exchange.PeerAddress:
    """Tells each end the other's address and connects the queue pair; the server's before it answers."""
    click.echo(f"  local address:  {end.local}")
    if options.servername is not None:
        exchange.send_address(sock, end.local)
        remote = exchange.receive_address(sock)
        exchange.send_done(sock)
        end.connect(remote)
    else:
        remote = exchange.receive_address(sock)
        end.connect(remote)
        exchange.send_address(sock, end.local)
        exchange.receive_done(sock)
    return remote


def report(size: int, iters: int, seconds: float) -> str:
    """The two lines that ibv_rc_pingpong ends with."""
    usec = max(seconds * 1e6, 1e-3)
    total = size * iters * 2
    return (
        f"{total} bytes in {usec / 1e6:.2f} seconds = {total * 8 / usec:.2f} Mbit/sec\n"
        f"{iters} iters in {usec / 1e6:.2f} seconds = {usec / iters:.2f} usec/iter"
    )


def bad_pages(buffer: memoryview | mmap.mmap | bytes, size: int, start: int = 0) -> list[int]:
    """Pages that do not begin with what the client of a validated run writes (page % sizeof(char), so 0)."""
    offsets = range(0, size, mmap.PAGESIZE)
    return [offset // mmap.PAGESIZE for offset in offsets if buffer[start + offset] != 0]


def _counted(counters: rnic.Counters) -> str:
    """The counters that have counted something."""
    return "; ".join(f"{name} {value}" for name, value in counters.items() if value)


class End:
    """One end: its queue pair, its buffer, and the loop that answers each message with one."""

    qp_type = rnic.QPType.RC
    header = 0  # bytes that a receive has ahead of the message

    def __init__(self, options: Options, port: endpoint.LocalPort, stack: ExitStack) -> None:
        self.options = options
        self.port = port
        ctx = port.ctx
        self.channel = stack.enter_context(ctx.create_comp_channel()) if options.events else None
        self.patience = endpoint.Patience(options.timeout)
        self.events = 0  # taken from the channel, not yet acknowledged
        self.stack = stack
        self.pd = pd = stack.enter_context(ctx.alloc_pd())
        nbytes = max(self.header + options.size, 1)
        self.memory = pingpong_rc.Memory(options.features, ctx, pd, nbytes, stack)
        self.memory.write(bytes([FILL]) * nbytes)
        self.clock = pingpong_rc.Clock(RECV_WRID)
        self.cq = stack.enter_context(self.make_cq())
        stack.callback(self.acknowledge)
        cap = rnic.QPCap(max_send_wr=1, max_recv_wr=options.rx_depth, max_send_sge=1, max_recv_sge=1)
        init = rnic.QPInitAttr(send_cq=self.cq, recv_cq=self.cq, qp_type=self.qp_type, cap=cap)
        self.qp = stack.enter_context(self.make_qp(init))
        self.to_init()

        message = [self.memory.sge(self.header, options.size)] if options.size else []
        room = [self.memory.sge(0, nbytes)] if self.header + options.size else []
        flags = rnic.SendFlags.SIGNALED
        if self.qp.cap.max_inline_data >= options.size and not options.features.dm:
            flags |= rnic.SendFlags.INLINE
        self.send_wr = rnic.SendWR(
            wr_id=SEND_WRID, opcode=rnic.WROpcode.SEND, send_flags=flags, sg_list=message
        )
        self.recv_wrs = [rnic.RecvWR(wr_id=RECV_WRID, sg_list=room) for _ in range(options.rx_depth)]
        self.qp.post_recv(self.recv_wrs)
        if self.channel:
            self.cq.req_notify()
        self.local = port.address(self.qp)

    def make_cq(self) -> rnic.CQ:
        """The completion queue: with timestamps an extended one."""
        cqe = self.options.rx_depth + 1
        if not self.options.features.ts:
            return self.port.ctx.create_cq(cqe, channel=self.channel)
        flags = rnic.CreateCQWCFlags.WITH_COMPLETION_TIMESTAMP
        return self.port.ctx.create_cq_ex(
            rnic.CQInitAttrEx(cqe=cqe, channel=self.channel, wc_flags=rnic.WC_STANDARD_FLAGS | flags)
        )

    def make_qp(self, init: rnic.QPInitAttr) -> rnic.QP:
        """The queue pair: with the ibv_wr_* interface an extended one."""
        if not self.options.features.new_send:
            return self.pd.create_qp(init)
        given = {one.name: getattr(init, one.name) for one in fields(init)}
        ops = rnic.SendOpsFlags.SEND
        return self.port.ctx.create_qp_ex(rnic.QPInitAttrEx(**given, pd=self.pd, send_ops_flags=ops))

    def poll(self) -> Sequence[rnic.WC | pingpong_rc.Timed]:
        """Completions that are there."""
        return self.clock.poll(self.cq, 16) if isinstance(self.cq, rnic.CQEX) else self.cq.poll(16)

    def to_init(self) -> None:
        """From now on receives can be posted."""
        endpoint.to_init(self.qp, self.options.ib_port, rnic.AccessFlags(0))

    def connect(self, remote: exchange.PeerAddress) -> None:
        """From now on messages can be sent to the peer."""
        assert self.options.mtu is not None
        endpoint.connect(self.qp, self.port, self.local, remote, mtu=self.options.mtu, sl=self.options.sl)

    def run(self) -> float:
        """All exchanges; how many seconds they took."""
        client = self.options.servername is not None
        if client and self.options.chk:
            data = bytearray(self.memory.read(self.header + self.options.size))
            for offset in range(0, self.options.size, mmap.PAGESIZE):
                data[self.header + offset] = 0
            self.memory.write(bytes(data))
        # What must complete before the next SEND: the peer's message and our own last one.
        pending = RECV_WRID
        if client:
            pingpong_rc.post(self.qp, self.send_wr)
            pending |= SEND_WRID
        start = time.perf_counter()
        try:
            self._loop(pending)
        except Failure:
            click.echo(f"  queue pair:     {self._account()}")
            click.echo(
                f"  device:         {_counted(rnic.Counters.from_values(self.qp.context.raw_counters()))}"
            )
            raise
        return time.perf_counter() - start

    def _account(self) -> str:
        """Where the queue pair stands, for who looks for the reason of a failure."""
        attr, _ = self.qp.query()
        state = attr.qp_state.name if attr.qp_state is not None else "?"
        stats = self.qp.statistics()
        waiting = f"{stats.sq_depth} sends and {stats.rq_depth} receives outstanding"
        psns = f"PSN {stats.snd_psn} next, {stats.snd_una} unacknowledged, {stats.rcv_psn} expected"
        return "; ".join([state, waiting, psns, _counted(stats.counters)])

    def _loop(self, pending: int) -> None:
        iters, rx_depth = self.options.iters, self.options.rx_depth
        qp, send_wr, recv_wrs = self.qp, self.send_wr, self.recv_wrs
        completions = self._after_event if self.channel else self._polled
        received = sent = 0
        posted = rx_depth
        while received < iters or sent < iters:
            for wc in completions(received):
                if not wc.ok:
                    raise Failure(f"after {received} of {iters} exchanges: {wc.explain()}")
                if wc.wr_id == RECV_WRID:
                    received += 1
                    posted -= 1
                    if posted <= 1:
                        qp.post_recv(recv_wrs[posted:])
                        posted = rx_depth
                else:
                    sent += 1
                pending &= ~wc.wr_id
                if not pending and sent < iters:
                    pingpong_rc.post(qp, send_wr)
                    pending = RECV_WRID | SEND_WRID

    def _polled(self, received: int) -> Sequence[rnic.WC | pingpong_rc.Timed]:
        """Completions, by polling until there are some."""
        poll = self.poll
        found = poll()
        if found:
            return found
        doing, wait = f"after {received} of {self.options.iters} exchanges", self.patience.wait
        self.patience.begin()
        while not found:
            wait(doing)
            found = poll()
        return found

    def _after_event(self, received: int) -> Sequence[rnic.WC | pingpong_rc.Timed]:
        """Completions that an event announced; none when an earlier call has taken them already."""
        assert self.channel is not None
        try:
            self.channel.get_cq_event(timeout=self.options.timeout or None)
        except TimeoutError:
            self.patience.look(self.options.timeout, f"after {received} of {self.options.iters} exchanges")
        self.events += 1
        self.cq.req_notify()
        return self.poll()

    def acknowledge(self) -> None:
        """A completion queue with unacknowledged events is in use."""
        if self.events:
            self.cq.ack_events(self.events)
            self.events = 0

    def validate(self) -> None:
        """The server's last act with -c; the original prints the same lines, but ends with exit code 0."""
        if self.options.servername is not None or not self.options.chk:
            return
        _validate(self.memory.read(self.header + self.options.size), self.options.size, self.header)


class UnreliableEnd(End):
    """The same over an unreliable connection: no retries, and so nothing to say of them."""

    qp_type = rnic.QPType.UC

    def connect(self, remote: exchange.PeerAddress) -> None:
        """From now on messages can be sent to the peer."""
        self.qp.modify(
            rnic.QPAttr(
                qp_state=rnic.QPState.RTR,
                path_mtu=self.options.mtu,
                dest_qp_num=remote.qp_num,
                rq_psn=remote.psn,
                ah_attr=endpoint.path_to(self.port, remote, self.options.sl),
            )
        )
        self.qp.modify(rnic.QPAttr(qp_state=rnic.QPState.RTS, sq_psn=self.local.psn))


class DatagramEnd(End):
    """The same with datagrams: an address handle in place of a connection."""

    qp_type = rnic.QPType.UD
    header = 40

    def to_init(self) -> None:
        """From now on receives can be posted; refuses messages of more than one packet."""
        mtu = self.port.ctx.query_port(self.options.ib_port).active_mtu.nbytes
        if self.options.size > mtu:
            raise Failure(
                f"--size {self.options.size}: a datagram is one packet, and the port's MTU is {mtu}"
            )
        self.qp.modify(
            rnic.QPAttr(qp_state=rnic.QPState.INIT, pkey_index=0, port_num=self.options.ib_port, qkey=QKEY)
        )

    def connect(self, remote: exchange.PeerAddress) -> None:
        """From now on messages can be sent to the peer."""
        path = endpoint.path_to(self.port, remote, self.options.sl)
        self.qp.modify(rnic.QPAttr(qp_state=rnic.QPState.RTR))
        self.qp.modify(rnic.QPAttr(qp_state=rnic.QPState.RTS, sq_psn=self.local.psn))
        self.send_wr.ah = self.stack.enter_context(self.pd.create_ah(path))
        self.send_wr.remote_qpn, self.send_wr.remote_qkey = remote.qp_num, QKEY
