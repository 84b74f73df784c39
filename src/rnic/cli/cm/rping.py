# SPDX-License-Identifier: Apache-2.0
"""`rnic rping`: rping(1).

A ping has two steps. The client advertises its text (address, rkey, length; 16 bytes in network order), and
the server READs it and answers. Then the client advertises room of the same size, and the server WRITEs the
text there and answers. An answer has 16 bytes, too, whose contents mean nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import struct
import threading
from contextlib import ExitStack

import click

import rnic
from rnic.cli import params
from rnic.cli.cm import options
from rnic.cli.cm.waiting import Waiter
from rnic.cli.command import command
from rnic.cli.endpoint import check
from rnic.cli.params import Failure
from rnic.rdmacm import CmId, ConnParam, Event, EventChannel, EventType, PortSpace, create_id
from rnic.records import Record, replace

ADVERT = struct.Struct("!QII")  # address, rkey, length
MIN_SIZE, MAX_SIZE = 23, 65535  # the original's
FIRST, LETTERS = ord("A"), ord("z") - ord("A") + 1  # what the text is filled with
BACKLOG = 3
SIGNALED = rnic.SendFlags.SIGNALED
CAP = rnic.QPCap(max_send_wr=2, max_recv_wr=2, max_send_sge=1, max_recv_sge=1)
LOCAL = rnic.AccessFlags.LOCAL_WRITE
REMOTE = rnic.AccessFlags.LOCAL_WRITE | rnic.AccessFlags.REMOTE_READ | rnic.AccessFlags.REMOTE_WRITE
PARAM = ConnParam(responder_resources=1, initiator_depth=1)


def text_of(number: int, size: int) -> bytes:
    """The text of a ping: its number, then letters that begin one letter later each time; it ends with a
    NUL.
    """
    head = f"rdma-ping-{number}: ".encode()
    start = number % LETTERS
    letters = bytes(FIRST + (start + i) % LETTERS for i in range(LETTERS))
    return (head + letters * (size // LETTERS + 1))[: size - 1] + b"\0"


def shown(text: bytes | bytearray) -> str:
    """The text as C prints it."""
    return bytes(text).partition(b"\0")[0].decode("latin-1")


class Gone(Failure):
    """The peer has disconnected, and no more messages come."""


class Asked(Record):
    """The command line."""

    where: options.Where
    count: int
    size: int
    verbose: bool
    validate: bool
    debug: bool
    own_qp: bool
    timeout: float


@command()
@click.option("-s", "is_server", is_flag=True, help="Be the server.")
@click.option("-c", "is_client", is_flag=True, help="Be the client.")
@click.option(
    "-a",
    "address",
    metavar="ADDRESS",
    help="The server's address; a server's default is ::, IPv6 and IPv4.",
)
@click.option("-I", "source", metavar="ADDRESS", help="Client: the local address to use.")
@options.port(7174, "-p", "--port")
@click.option(
    "-C", "count", type=params.number(0), default=0, help="Pings; 0: no limit. A server checks the number."
)
@click.option(
    "-S",
    "size",
    type=params.number(MIN_SIZE, MAX_SIZE),
    default=64,
    show_default=True,
    help="Bytes in a ping; for a server, the most.",
)
@click.option("-v", "verbose", is_flag=True, help="Print the pings.")
@click.option("-V", "validate", is_flag=True, help="Compare each ping with what was sent.")
@click.option("-d", "debug", is_flag=True, help="Print the events of RDMA-CM.")
@click.option("-P", "persistent", is_flag=True, help="Server: serve many clients at once, until interrupted.")
@click.option("-q", "own_qp", is_flag=True, help="Change the queue pair's states in this program.")
@options.timeout
def rping(
    is_server: bool,
    is_client: bool,
    address: str | None,
    source: str | None,
    port: int,
    count: int,
    size: int,
    verbose: bool,
    validate: bool,
    debug: bool,
    persistent: bool,
    own_qp: bool,
    timeout: float,
) -> None:
    """Ping-pong by RDMA READ and RDMA WRITE over a connection of RDMA-CM.

    Options, output and messages are those of rping; either end can be the original.

    \b
    rnic rping -s -v                                a server; then, on the other side, one of
    rnic rping -c -a ADDRESS -C 10 -v -V
    rping -c -a ADDRESS -C 10 -v -V
    """
    if is_server == is_client:
        raise click.UsageError("give one of the two: -s (server) or -c (client)")
    if is_client and address is None:
        raise click.UsageError("a client needs the server's address: -a ADDRESS")
    if is_server and source is not None:
        raise click.UsageError("-I is for the client: a server listens at -a")
    if is_client and persistent:
        raise click.UsageError("-P is the server's")
    where = (
        options.look_up(address, source, port, ps=PortSpace.TCP)
        if is_client
        else options.look_up(None, address, port, ps=PortSpace.TCP)
    )
    asked = Asked(where, count, size, verbose, validate, debug, own_qp, timeout)
    if is_client:
        call(asked)
    else:
        serve(asked, persistent)


class End:
    """One end of a connection: its queue pair, and the adverts each way, with a receive always posted."""

    def __init__(self, cm_id: CmId, channel: EventChannel, asked: Asked) -> None:
        self.asked = asked
        self.id = cm_id
        self.gone = False  # the peer has disconnected
        self.happened: set[EventType] = set()
        self._posted = False  # a SEND, READ or WRITE whose completion nobody has taken
        self.waiter = Waiter(channel, self._handle, asked.timeout)
        self.stack = ExitStack()

    def _handle(self, event: Event) -> None:
        if self.asked.debug:
            click.echo(repr(event), err=True)
        self.happened.add(event.event)
        self.gone |= event.event is EventType.DISCONNECTED

    def until(self, *kinds: EventType) -> None:
        """Wait for one of these events."""
        doing = f"waiting for {kinds[0].name}"
        self.waiter.events(lambda: not self.happened.isdisjoint(kinds), doing)

    # ------------------------------------------------------------------ the queue pair

    def prepare(self) -> None:
        """Queue pair, memory, and the first receive."""
        self.qp, self.pd = self._own_qp() if self.asked.own_qp else self._qp_of_the_id()
        self.stack.callback(self.id.destroy_qp)
        self._out, self._in = bytearray(ADVERT.size), bytearray(ADVERT.size)
        self._out_wr = rnic.SendWR(sg_list=[rnic.SGE(self.region(self._out))], send_flags=SIGNALED)
        self._in_wr = rnic.RecvWR(sg_list=[rnic.SGE(self.region(self._in))])
        self.qp.post_recv(self._in_wr)

    def _qp_of_the_id(self) -> tuple[rnic.QP, rnic.PD]:
        """A queue pair that the id leads from state to state."""
        qp = self.id.create_qp(cap=CAP)
        assert self.id.send_cq is not None
        assert self.id.recv_cq is not None
        assert self.id.pd is not None
        self.send_cq, self.recv_cq = self.id.send_cq, self.id.recv_cq
        return qp, self.id.pd

    def _own_qp(self) -> tuple[rnic.QP, rnic.PD]:
        """A queue pair that the id knows by its number alone."""
        context = self.id.verbs
        assert context is not None
        pd = self.stack.enter_context(context.alloc_pd())
        channels = [self.stack.enter_context(context.create_comp_channel()) for _ in range(2)]
        cqs = [self.stack.enter_context(context.create_cq(CAP.max_send_wr, channel)) for channel in channels]
        self.send_cq, self.recv_cq = cqs
        init = rnic.QPInitAttr(send_cq=self.send_cq, recv_cq=self.recv_cq, qp_type=rnic.QPType.RC, cap=CAP)
        qp = self.stack.enter_context(pd.create_qp(init))
        qp.modify(self.id.init_qp_attr(rnic.QPState.INIT))
        return qp, pd

    def lead(self) -> None:
        """With -q: move the queue pair to RTS, now that the peer is known."""
        for state in (rnic.QPState.RTR, rnic.QPState.RTS):
            self.qp.modify(self.id.init_qp_attr(state))

    def param(self) -> ConnParam:
        """The parameters of the original for a connection."""
        return replace(PARAM, qp_num=self.qp.qp_num) if self.asked.own_qp else PARAM

    def region(self, buffer: bytearray, access: rnic.AccessFlags = LOCAL) -> rnic.MR:
        """Registered memory, until the end."""
        return self.stack.enter_context(self.pd.reg_mr(buffer, access))

    def disconnect(self) -> None:
        """End the connection, or confirm its end."""
        if self.asked.own_qp:
            self.qp.modify(rnic.QPAttr(qp_state=rnic.QPState.ERR))
        self.id.disconnect()

    # ------------------------------------------------------------------ work

    def say(self, advert: tuple[int, int, int] = (0, 0, 0)) -> None:
        """Send an advert; the next work does not wait for its completion."""
        self._finish()
        ADVERT.pack_into(self._out, 0, *advert)
        self.qp.post_send(self._out_wr)
        self._posted = True

    def move(self, opcode: rnic.WROpcode, memory: rnic.SGE, addr: int, rkey: int) -> None:
        """READ or WRITE, and wait for the completion."""
        self._finish()
        wr = rnic.SendWR(opcode=opcode, sg_list=[memory], send_flags=SIGNALED, remote_addr=addr, rkey=rkey)
        self.qp.post_send(wr)
        self._posted = True
        self._finish()

    def _finish(self) -> None:
        """Wait for the posted work."""
        if self._posted:
            check(self._found(self.send_cq, "waiting for a completion"))
            self._posted = False

    def hear(self) -> tuple[int, int, int]:
        """Wait for the peer's next advert."""
        wc = check(self._found(self.recv_cq, "waiting for the peer"))
        if wc.byte_len != ADVERT.size:
            raise Failure(f"the peer sent {wc.byte_len} bytes where {ADVERT.size} belong: is it rping?")
        addr, rkey, length = ADVERT.unpack(self._in)
        self.qp.post_recv(self._in_wr)
        return addr, rkey, length

    def _found(self, cq: rnic.CQ, doing: str) -> rnic.WC:
        wc = self.waiter.completion(cq, doing, lambda: self.gone)
        if wc is None:
            raise Gone("the peer disconnected in the middle of a ping")
        return wc


# ---------------------------------------------------------------------- client


def call(asked: Asked) -> None:
    """Connect, ping, disconnect."""
    assert asked.where.server is not None
    with ExitStack() as stack:
        channel = stack.enter_context(EventChannel())
        end = End(stack.enter_context(create_id(channel)), channel, asked)
        end.id.resolve_addr(asked.where.source, asked.where.server, options.RESOLVE_MS)
        end.until(EventType.ADDR_RESOLVED)
        end.id.resolve_route(options.RESOLVE_MS)
        end.until(EventType.ROUTE_RESOLVED)
        stack.enter_context(end.stack)
        end.prepare()
        end.id.connect(end.param())
        end.until(EventType.ESTABLISHED, EventType.CONNECT_RESPONSE)
        if EventType.CONNECT_RESPONSE in end.happened:  # -q; of iWARP, the connection is there already
            end.lead()
            end.id.establish()
        ping(end)
        end.disconnect()


def ping(end: End) -> None:
    """All pings."""
    asked = end.asked
    text, echo = bytearray(asked.size), bytearray(asked.size)
    adverts = [(mr.addr, mr.rkey, asked.size) for mr in (end.region(text, REMOTE), end.region(echo, REMOTE))]
    for number in itertools.count():
        if asked.count and number == asked.count:
            return
        text[:] = text_of(number, asked.size)
        for advert in adverts:
            end.say(advert)
            end.hear()
        if asked.validate and echo != text:
            raise Failure(f"ping {number} came back changed")
        if asked.verbose:
            click.echo(f"ping data: {shown(echo)}")


# ---------------------------------------------------------------------- server


def serve(asked: Asked, persistent: bool) -> None:
    """Serve one client, or one after the other for ever, each by an agent of its own."""
    assert asked.where.source is not None
    with EventChannel() as channel, create_id(channel) as listener:
        listener.bind_addr(asked.where.source)
        listener.listen(BACKLOG)
        options.announce(listener, "rping", "-c", "-a")
        while True:
            with channel.get_cm_event() as event:
                if event.event is not EventType.CONNECT_REQUEST:
                    if (
                        persistent and event.id is not listener
                    ):  # a client that gave up before its agent began
                        continue
                    raise Failure(event.explain())
                if not persistent:
                    break
            begin(event.id, asked)
        answer(event.id, asked)


def begin(cm_id: CmId, asked: Asked) -> None:
    """Serve a client by an agent of its own; if there is no thread for it, this client is refused."""
    try:
        threading.Thread(target=agent, args=(cm_id, asked), daemon=True).start()
    except RuntimeError as error:
        click.echo(f"rnic: client {cm_id.get_peer_addr()}: {error}", err=True)
        refuse(cm_id)


def refuse(cm_id: CmId) -> None:
    """Refuse a client because something is missing; a client that was already accepted loses its
    connection.
    """
    with contextlib.suppress(OSError):
        cm_id.reject_busy()
    cm_id.destroy()


def agent(cm_id: CmId, asked: Asked) -> None:
    """Serve a client; a failure ends only its own connection."""
    peer = cm_id.get_peer_addr()
    try:
        answer(cm_id, asked)
    except (Failure, OSError) as error:
        click.echo(f"rnic: client {peer}: {error}", err=True)
        refuse(cm_id)


def answer(cm_id: CmId, asked: Asked) -> None:
    """Accept a client, and answer its pings until it disconnects."""
    with EventChannel() as channel, cm_id:
        cm_id.migrate_id(channel)
        end = End(cm_id, channel, asked)
        with end.stack:
            end.prepare()
            memory = bytearray(asked.size)
            mr = end.region(memory)
            if asked.own_qp:
                end.lead()
            cm_id.accept(end.param())
            count = 0
            while pong(end, mr, memory, count):
                count += 1
            end.disconnect()
    if asked.count and count != asked.count:
        raise Failure(f"the client disconnected after {count} pings, not {asked.count}")


def pong(end: End, mr: rnic.MR, memory: bytearray, number: int) -> bool:
    """Answer a ping. Returns False if there is no more."""
    asked = end.asked
    try:
        addr, rkey, length = end.hear()
    except Gone:
        return False
    if length > asked.size:
        raise Failure(f"ping {number} has {length} bytes: start the server with -S {length}")
    end.move(rnic.WROpcode.RDMA_READ, rnic.SGE(mr, 0, length), addr, rkey)
    if asked.validate and memory[:length] != text_of(number, length):
        raise Failure(f"ping {number} is not what a client sends")
    if asked.verbose:
        click.echo(f"server ping data: {shown(memory[:length])}")
    end.say()
    addr, rkey, room = end.hear()
    used = memory.find(0, 0, length) + 1 or length
    if used > room:
        raise Failure(f"ping {number} has {used} bytes, and the client has room for {room}")
    end.move(rnic.WROpcode.RDMA_WRITE, rnic.SGE(mr, 0, used), addr, rkey)
    end.say()
    return True
