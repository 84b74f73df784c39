# SPDX-License-Identifier: Apache-2.0
"""`rnic pingpong rc`, `uc`, `ud`, `srq`, `xrc`: ibv_rc_pingpong and its kin, which can be the peer."""

from __future__ import annotations

import mmap
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, TypeVar

import click

import rnic
from rnic.cli import completion, endpoint, exchange, network, params, pingpong_srq, pingpong_xrc
from rnic.cli.command import group
from rnic.cli.endpoint import MTUS
from rnic.cli.params import Failure
from rnic.cli.pingpong_end import FILL, DatagramEnd, End, Options, UnreliableEnd, validate

_F = TypeVar("_F", bound=Callable[..., Any])
SHARED = ("size", "iters", "mtu", "sl", "chk", "num_qp", "num_tests")  # what both ends need alike


@group()
def pingpong() -> None:
    """Bounce messages between two queue pairs, as the ibv_*_pingpong programs do.

    Without HOST each command is a server, with HOST its client.
    """


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
            "-d",
            "--ib-dev",
            shell_complete=completion.devices,
            help="Device  [the one with the TCP connection's local address]",
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


@pingpong.command(short_help="Over a reliable connection.")
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


@pingpong.command(short_help="Over an unreliable connection.")
@common(4096)
@path_mtu
def uc(mtu: str, **given: Any) -> None:
    """Bounce messages over an unreliable connection: without HOST a server, with HOST its client.

    Options, TCP exchange and output are those of ibv_uc_pingpong; either end can be the original.  A
    lost packet ends the run.
    """
    run(Options.of(given, MTUS[int(mtu)]), UnreliableEnd)


@pingpong.command(short_help="Over many connections with one shared receive queue.")
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
    """Bounce messages over many connections, with one shared receive queue.

    Without HOST it is a server, with HOST its client.  Options, TCP exchange and output are those of
    ibv_srq_pingpong; either end can be the original.  All queue pairs together do --iters exchanges.
    """
    options = Options.of(given, MTUS[int(mtu)])
    if num_qp > options.rx_depth:
        raise Failure(f"--rx-depth {options.rx_depth} is too few for {num_qp} queue pairs")
    run_shared(options, num_qp)


@pingpong.command(short_help="Over extended reliable connections (XRC).")
@common(4096, "rx_depth", "chk", "iters")
@click.option(
    "-m",
    "--mtu",
    type=click.Choice(list(map(str, MTUS))),
    show_default="2048, or the port's if that is less",
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
def xrc(mtu: str | None, clients: int, num_tests: int, **given: Any) -> None:
    """Bounce messages over extended reliable connections: a server, and as many clients as it waits for.

    Options, TCP exchange and output are those of ibv_xsrq_pingpong; either end can be the original.  But an
    original server with many clients needs clients that share an XRC domain; clients of rnic do not.
    """
    given.update(rx_depth=0, chk=False, iters=num_tests)
    options = Options.of(given, MTUS[int(mtu)] if mtu else None)
    run_extended(options, 1 if options.servername is not None else clients)


@pingpong.command(short_help="With datagrams.")
@common(2048)
def ud(**given: Any) -> None:
    """Bounce datagrams: without HOST a server, with HOST its client.

    Options, TCP exchange and output are those of ibv_ud_pingpong; either end can be the original.  A
    message is one packet, so the port's MTU limits --size.  A lost datagram ends the run.
    """
    run(Options.of(given, None), DatagramEnd)


def _refuse_iwarp(device: rnic.Device, qp_type: rnic.QPType) -> None:
    """Failure for a device whose queue pairs this exchange cannot connect."""
    if not endpoint.is_iwarp(device):
        return
    if qp_type is not rnic.QPType.RC:
        kind = qp_type.name.partition("_")[0]
        why = f"has RC queue pairs alone, no {kind}: choose a RoCE device (`rnic devices` lists them)"
        raise Failure(f"{device.name} is an iWARP device and {why}")
    raise Failure(
        f"{device.name} is an iWARP device, whose queue pairs need a TCP connection each: RDMA-CM makes it, "
        "and an exchange of numbers like this one does not: bounce messages with "
        f"`rnic perf send lat -d {device.name}` or `rnic rping`"
    )


def _open(options: Options, sock: socket.socket, qp_type: rnic.QPType) -> endpoint.LocalPort:
    """The device, which can be connected by this exchange alone."""
    port = endpoint.open_port(options.ib_dev, options.ib_port, options.gid_idx, sock.getsockname())
    try:
        _refuse_iwarp(port.ctx.device, qp_type)
    except Failure:
        port.ctx.close()
        raise
    return port


def run(options: Options, kind: type[End]) -> None:
    """One end, from the TCP connection to the last line of output."""
    with ExitStack() as stack:
        (sock,) = _meet(options, kind.qp_type, 1, stack)
        local_port = _open(options, sock, kind.qp_type)
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
        (sock,) = _meet(options, rnic.QPType.RC, 1, stack)
        local_port = _open(options, sock, rnic.QPType.RC)
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
            validate(end.buf, options.size)


def run_extended(options: Options, peers: int) -> None:
    """The same with an XRC connection each way to each peer."""
    client = options.servername is not None
    with ExitStack() as stack:
        socks = _meet(options, rnic.QPType.XRC_SEND, peers, stack)
        sock = next(socks)
        local_port = _open(options, sock, rnic.QPType.XRC_SEND)
        stack.enter_context(local_port.ctx)
        mtu = options.mtu or endpoint.usual_mtu(local_port)
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


def _meet(options: Options, qp_type: rnic.QPType, peers: int, stack: ExitStack) -> Iterator[socket.socket]:
    """The TCP connections, one after the other, each when it is wanted."""
    timeout = options.timeout or None
    device = endpoint.look(options.ib_dev, options.ib_port, options.gid_idx)
    if options.ib_dev is not None:
        _refuse_iwarp(device, qp_type)
    if options.servername is not None:
        yield stack.enter_context(exchange.connect(options.servername, options.port, timeout))
        return
    with exchange.listen(options.port) as listener:
        port = listener.getsockname()[1]
        path = click.get_current_context().command_path.split()
        network.announce(
            "", port, lambda host: [*path, host, *network.given(*SHARED), *network.port_words(port)]
        )
        for _ in range(peers):
            yield stack.enter_context(exchange.accept(listener, timeout))


def _fill(buf: mmap.mmap, options: Options) -> None:
    """What is sent; with -c the client's pages begin otherwise."""
    buf.write(bytes([FILL]) * len(buf))
    if options.chk and options.servername is not None:
        for offset in range(0, options.size, mmap.PAGESIZE):
            buf[offset] = 0


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
