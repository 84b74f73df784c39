# SPDX-License-Identifier: Apache-2.0
"""A queue pair in another process: what is to be done to it becomes an order, which somebody takes there."""

from __future__ import annotations

import contextlib
import socket
import struct
from errno import EMFILE
from select import EPOLLIN, EPOLLRDHUP
from typing import TYPE_CHECKING

from rnic.enums import QPState, StreamEnd
from rnic.errors import VerbsError
from rnic.rdmacm.service import Order
from rnic.verbs.qp import QPAttr
from rnic.verbs.stream import StreamAttr, StreamEvent

if TYPE_CHECKING:
    from rnic.rdmacm.iwcm.manager import IwService

_EVENT = struct.Struct("=IBBBBi")
"""struct rnic_stream_event."""
_ENDS = frozenset(StreamEnd) - {StreamEnd.READY}


class AwayQP:
    """In place of the queue pair of a connection. Its stream's end comes by a line, which hangs up if the
    process dies or the queue pair goes.
    """

    def __init__(self, service: IwService, orders: list[Order], qp_num: int) -> None:
        self._service, self._orders, self.qp_num = service, orders, qp_num
        self.state = QPState.INIT
        self.closed = False
        self.sock: socket.socket | None = None
        self._stream: tuple[socket.socket, socket.socket, StreamAttr] | None = None
        self._end: StreamEvent | None = None

    def attach_stream(self, sock: socket.socket, attr: StreamAttr) -> None:
        """The connection is to be the queue pair's. A second call, as memory was short, does the rest."""
        if self._stream is None:
            try:
                self.sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            except OSError as error:
                text = "no descriptors for a connection"
                raise VerbsError(error.errno or EMFILE, text, "connect") from None
            self._stream = sock, theirs, attr
        self._service.watch(self, EPOLLIN | EPOLLRDHUP)

    def modify(self, attr: QPAttr) -> None:
        """It is to go to another state; to RTR it has gone already."""
        assert attr.qp_state is not None
        if attr.qp_state is QPState.ERR:
            self._take_back()
            self._drop()
        if attr.qp_state is not QPState.RTR:
            guid = self._service.agent.context.device.guid
            self._orders.append(Order(guid, self.qp_num, attr, self._stream))
            self._stream = None
        self.state = attr.qp_state

    def _take_back(self) -> None:
        """What nobody has fetched yet is not done any more."""
        for order in [each for each in self._orders if each.qp_num == self.qp_num]:
            self._orders.remove(order)
            order.close()

    # ------------------------------------------------------------------ its end

    def fileno(self) -> int:
        """The line's descriptor."""
        return -1 if self.sock is None else self.sock.fileno()

    def ready(self, _events: int) -> None:
        """The stream has ended, or the queue pair has gone."""
        if self._end is None:
            self._end = self._read()
        self._drop()
        self.state = QPState.ERR
        self._service.ended(self._end)

    def _read(self) -> StreamEvent:
        """What the device says. A program can write there, too: nonsense means no more than the end."""
        data = b""
        with contextlib.suppress(ConnectionError):
            data = self.sock.recv(_EVENT.size) if self.sock is not None else b""
        if len(data) == _EVENT.size:
            _, end, *what = _EVENT.unpack(data)
            if end in _ENDS:
                return StreamEvent(self.qp_num, StreamEnd(end), *what)
        return StreamEvent(self.qp_num, StreamEnd.CLOSED, 0, 0, 0, 0)

    def _drop(self) -> None:
        if self.sock is not None:
            self._service.unwatch(self)
            self.sock.close()
            self.sock = None
