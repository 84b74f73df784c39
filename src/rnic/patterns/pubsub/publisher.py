# SPDX-License-Identifier: Apache-2.0
"""The publisher: its ring, and the group to which it sends."""

from __future__ import annotations

import secrets
from contextlib import ExitStack, contextmanager
from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING, Self, cast

from rnic import GID, AHAttr
from rnic._nic.nic import SGE, SendWR
from rnic.endpoint.buffers import flat
from rnic.enums import AccessFlags, WROpcode
from rnic.errors import VerbsError
from rnic.patterns.chain import SendQueue
from rnic.patterns.pubsub.datagrams import check_device, queue_pair
from rnic.patterns.pubsub.wire import (
    HEAD,
    HEADER,
    MOST,
    MOST_SLOTS,
    NOTICE,
    SLOTS,
    Welcome,
    stride,
    write_notice,
    write_slot,
)
from rnic.patterns.turn import Turn
from rnic.patterns.wait import left
from rnic.records import Record
from rnic.times import after

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import rnic
    from rnic import PD, Context, aio
    from rnic.endpoint.buffers import AnyBuffer

__all__ = ["Publisher", "PublisherStatistics"]

_EVERYBODY = 0xFFFFFF  # the number of all queue pairs of a group
_DEPTH = 128
_LEAST = 8


class PublisherStatistics(Record):
    """What a publisher has done so far."""

    published: int
    """Messages."""
    announced: int
    """Those that were too long for a datagram, so that each subscriber READs them."""
    subscribers: int
    """How many there are now."""


def _group(given: str | GID | None, source: GID) -> GID:
    """The group that is meant, or one of our own."""
    if given is None:
        chance = secrets.randbits(32)
        if source.ip.version == 4:
            return GID(IPv4Address(0xEFC00000 | chance & 0x3FFFF))
        return GID(IPv6Address(0xFF18 << 112 | chance))
    group = GID(given)
    if not group.ip.is_multicast or group.ip.version != source.ip.version:
        cure = f"give a multicast address of IPv{source.ip.version}, as the listener is at {source.ip}"
        raise ValueError(f"group {group.ip}: {cure}")
    return group


class Publisher:
    """Sends messages to a group, and keeps the last ones in a ring for those who have lost some.

        with rnic.listen(host, port) as listener, Publisher(listener) as publisher:
            ...                                    # a thread: listener.serve(publisher.serve)
            publisher.publish(b"news")

    listener: of rnic.listen() or rnic.aio.listen(), at one address of a RoCE device. group: an IP multicast
    address of the same family; None: a random one of those that belong to an organization (239.192.0.0/14,
    ff18::). slots: messages that the ring has. size: the longest message, in bytes. hop_limit: how many
    networks a datagram may pass, less one.

    Threads may publish at the same time. publish() waits for the own device alone, so tasks of asyncio call
    it, too. A datagram has as many bytes as the port's MTU allows; a longer message is announced, and each
    subscriber READs it.

    Raises VerbsError: EOPNOTSUPP for an iWARP device; EINVAL for a listener at all addresses.
    """

    def __init__(
        self,
        listener: rnic.Listener | aio.Listener,
        group: str | GID | None = None,
        *,
        slots: int = 1024,
        size: int = 1024,
        hop_limit: int = 1,
    ) -> None:
        if not _LEAST <= slots <= MOST_SLOTS:
            raise ValueError(f"{slots} slots: give {_LEAST} to {MOST_SLOTS}")
        if not 1 <= size <= MOST:
            raise ValueError(
                f"messages of {size} bytes: give 1 to {MOST}, and send the address of longer ones"
            )
        source = GID(str(listener.address[0]).partition("%")[0])
        self.group = _group(group, source)
        """The group's address, as a GID."""
        self._slots, self._size, self._stride = slots, size, stride(size)
        self._epoch, self._qkey = secrets.randbits(64), secrets.randbits(31)
        self.mr = listener.alloc(SLOTS + slots * self._stride)
        """The ring, which subscribers READ."""
        self._turn = Turn("publisher")
        self._head = self._announced = self._subscribers = 0
        self._ended = self._closed = False
        with ExitStack() as stack:
            stack.callback(self.mr.__exit__, VerbsError, None, None)  # now, or when nobody uses it any more
            pd = cast("PD", self.mr.pd)
            self.context = context = cast("Context", pd.context)
            """The listener's device, which it has open; set_faults() makes it lose datagrams."""
            check_device(context)
            depth = min(_DEPTH, slots)
            qp = queue_pair(stack, context, pd, self._qkey, sends=depth)
            self._sends = SendQueue(qp, every=depth // 4)
            index = next(entry.gid_index for entry in context.query_gid_table() if entry.gid == source)
            self._to = stack.enter_context(
                pd.create_ah(AHAttr(self.group, index, port_num=1, hop_limit=hop_limit))
            )
            self.most = context.query_port(1).active_mtu.nbytes - HEADER.size
            """The longest message that goes as a datagram, in bytes."""
            self._welcome = Welcome(
                self._epoch, slots, size, self._qkey, qp.qp_num, self.group, source
            ).pack()
            self._stack = stack.pop_all()

    def __repr__(self) -> str:
        return f"<Publisher to {self.group.ip}, {self._head} published, {self._subscribers} subscribers>"

    def statistics(self) -> PublisherStatistics:
        """What it has done so far."""
        return PublisherStatistics(self._head, self._announced, self._subscribers)

    # ------------------------------------------------------------ messages

    def publish(self, message: AnyBuffer, timeout: float | None = None) -> None:
        """Publish one message; when it returns, the message may be changed.

        Raises ValueError for one that is longer than `size`; TimeoutError if the device sends nothing, when
        nothing was published.
        """
        self.publish_many((message,), timeout)

    def publish_many(self, messages: Iterable[AnyBuffer], timeout: float | None = None) -> None:
        """Publish many messages, with few calls of the device; raises as publish().

        After TimeoutError the first of them were published; the subscribers know which.
        """
        parts = [flat(message, "publish()") for message in messages]
        if long := next((len(part) for part in parts if len(part) > self._size), None):
            raise ValueError(
                f"a message of {long} bytes: this publisher's size is {self._size}; make it with size={long}"
            )
        until = after(timeout)
        self._turn.run(lambda: self._publish(parts, until))

    def _publish(self, parts: list[memoryview], until: float | None) -> None:
        self._check_open()
        for begin in range(0, len(parts), self._sends.every):
            self._send(parts[begin : begin + self._sends.every], until)

    def _send(self, parts: list[memoryview], until: float | None) -> None:
        """As many as one chain takes. A slot's datagram has left when the ticket as many slots before is
        reached, and a ticket is the number of a message.
        """
        self._make_room(len(parts), until)
        buf = self.mr.buf
        words = buf.cast("Q")
        wrs = []
        for part in parts:
            at = SLOTS + self._head % self._slots * self._stride
            write_slot(buf, at, self._epoch, self._head, part)
            self._head += 1
            words[HEAD // 8] = self._head  # before the next slot changes, and before a datagram tells of it
            fits = len(part) <= self.most
            self._announced += not fits
            wrs.append(self._datagram(at, HEADER.size + fits * len(part)))
        self._sends.post(wrs)

    def _make_room(self, places: int, until: float | None) -> None:
        self._sends.wait(self._sends.posted + places - self._sends.depth, left(until))

    def _datagram(self, at: int, length: int) -> SendWR:
        wr = SendWR(opcode=WROpcode.SEND, sg_list=(SGE(self.mr, at, length),))
        wr.ah, wr.remote_qpn, wr.remote_qkey = self._to, _EVERYBODY, self._qkey
        return wr

    def _check_open(self) -> None:
        if self._closed or self._ended:
            raise ValueError("the publisher has ended, or was closed")

    # ------------------------------------------------------------ subscribers

    def serve(self, conn: rnic.Connection) -> None:
        """Let one subscriber in, and wait until its connection has ended; for rnic.Listener.serve().

        What the subscriber says is not heard. Raises what the connection raises when the subscriber dies.
        """
        conn.share(self.mr.buf, AccessFlags.REMOTE_READ)
        with self._counted():
            conn.send(self._welcome)
            for _ in conn:
                pass

    async def serve_async(self, conn: aio.Connection) -> None:
        """The same for rnic.aio.Listener.serve()."""
        await conn.share(self.mr.buf, AccessFlags.REMOTE_READ)
        with self._counted():
            await conn.send(self._welcome)
            async for _ in conn:
                pass

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self._turn.run(lambda: self._count(1))
        try:
            yield
        finally:
            self._turn.run(lambda: self._count(-1))

    def _count(self, more: int) -> None:
        self._subscribers += more

    # ------------------------------------------------------------ the end

    def end(self, timeout: float | None = None) -> None:
        """Say that no message follows; subscribers get EOFError when they have all of them. A second call
        does nothing.
        """
        until = after(timeout)
        self._turn.run(lambda: self._end(until))

    def _end(self, until: float | None) -> None:
        if self._ended:
            return
        self._check_open()
        self._make_room(1, until)
        write_notice(self.mr, self._epoch, self._head)
        self._ended = True
        self._sends.post([self._datagram(NOTICE, HEADER.size)])

    def close(self) -> None:
        """Give back the queue pair, and the ring when nobody is connected any more."""
        self._turn.run(self._close)

    def _close(self) -> None:
        self._closed = True
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
