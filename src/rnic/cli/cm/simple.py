# SPDX-License-Identifier: Apache-2.0
"""`rnic rdma-server` and `rnic rdma-client`: rdma_server(1) and rdma_client(1), with synchronous ids.

The client sends 16 bytes. The server sends 16 bytes back and disconnects.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

import rnic
from rnic.cli.cm import options
from rnic.cli.command import command
from rnic.cli.endpoint import check
from rnic.cli.params import Failure
from rnic.rdmacm import AddrInfo, CmId, create_ep, getaddrinfo

LENGTH = 16
CAP = rnic.QPCap(max_send_wr=1, max_recv_wr=1, max_send_sge=1, max_recv_sge=1, max_inline_data=LENGTH)


@command("rdma-server")
@click.option(
    "-s", "server", metavar="ADDRESS", default=options.EVERY, show_default=True, help="Where to listen."
)
@options.port(7471, "-p", "--port")
@options.timeout
def rdma_server(server: str, port: int, timeout: float) -> None:
    """Take one connection, receive a message and send one.

    The default, ::, is all addresses, those of IPv4 too.

    \b
    rnic rdma-server                 then, on the other side, one of
    rnic rdma-client -s ADDRESS
    rdma_client -s ADDRESS
    """
    info = getaddrinfo(server, port, AddrInfo(passive=True))[0]
    with create_ep(info, cap=CAP) as listener:
        listener.listen()
        options.announce(listener, "rdma-client", "-s")
        with listener.get_request() as cm_id, ready(cm_id) as memory:
            cm_id.accept()
            receive(cm_id, timeout)
            send(cm_id, memory, timeout)
            cm_id.disconnect()


@command("rdma-client")
@click.option("-s", "server", metavar="ADDRESS", default="127.0.0.1", show_default=True, help="The server.")
@options.port(7471, "-p", "--port")
@options.timeout
def rdma_client(server: str, port: int, timeout: float) -> None:
    """Connect, send a message and receive one.

    \b
    rnic rdma-client -s ADDRESS      the server is `rnic rdma-server`, or the original, rdma_server
    """
    if port == 0:
        raise click.UsageError("a client needs the server's port, which cannot be 0")
    with create_ep(getaddrinfo(server, port)[0], cap=CAP) as cm_id, ready(cm_id) as memory:
        cm_id.connect()
        send(cm_id, memory, timeout)
        receive(cm_id, timeout)
        cm_id.disconnect()


@contextmanager
def ready(cm_id: CmId) -> Iterator[rnic.MR]:
    """The memory of a message, with a receive posted into it; what is sent is taken at once."""
    with cm_id.reg_msgs(bytearray(LENGTH)) as memory:
        cm_id.post_recv(memory)
        yield memory
        cm_id.destroy_qp()


def send(cm_id: CmId, memory: rnic.MR, timeout: float) -> None:
    """Send a message, and wait until the peer has it."""
    cm_id.post_send(memory, flags=rnic.SendFlags.SIGNALED | rnic.SendFlags.INLINE)
    try:
        check(cm_id.get_send_comp(timeout or None))
    except TimeoutError:
        raise Failure(f"the message was not acknowledged within {timeout:g} s") from None


def receive(cm_id: CmId, timeout: float) -> None:
    """Wait for the message."""
    try:
        wc = check(cm_id.get_recv_comp(timeout or None))
    except TimeoutError:
        raise Failure(f"no message within {timeout:g} s: is the peer still there?") from None
    click.echo(f"received {wc.byte_len} bytes")
