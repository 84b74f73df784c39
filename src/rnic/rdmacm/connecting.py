# SPDX-License-Identifier: Apache-2.0
"""The calls of an id that find a peer and part from it: connections, datagram services, multicast groups."""

from __future__ import annotations

import contextlib
from errno import EINVAL
from typing import TYPE_CHECKING, cast

from rnic.enums import EventType as AsyncEventType
from rnic.enums import QPState
from rnic.errors import VerbsError
from rnic.rdmacm import addresses, calls, multicast
from rnic.rdmacm.admission import HANDSHAKE_TIMEOUT, MAX_HALF_OPEN, Admission
from rnic.rdmacm.id_base import NOWHERE, IdBase
from rnic.rdmacm.names import NOTHING_SAID, ConnParam, EventType, IdState, JoinFlags, UDParam
from rnic.rdmacm.registry import registry
from rnic.rdmacm.service import Connection, Phase, Reason
from rnic.rdmacm.sockaddr import SockAddr

if TYPE_CHECKING:
    from rnic.rdmacm.cm_id import CmId

DEFAULT_BACKLOG = 1024
_CAN_JOIN = (IdState.ADDR_BOUND, IdState.ADDR_RESOLVED, IdState.ROUTE_RESOLVED, IdState.CONNECT)
_FATAL = (
    AsyncEventType.QP_FATAL,
    AsyncEventType.QP_REQ_ERR,
    AsyncEventType.QP_ACCESS_ERR,
    AsyncEventType.DEVICE_FATAL,
)


class Connecting(IdBase):
    """Calls of a CmId for its peer."""

    # ------------------------------------------------------------------ connections

    def listen(
        self,
        backlog: int = 0,
        *,
        max_connections: int | None = None,
        max_half_open: int = MAX_HALF_OPEN,
        handshake_timeout: float = HANDSHAKE_TIMEOUT,
    ) -> None:
        """Listen for requests (rdma_listen(3)); each one makes an event CONNECT_REQUEST with a new id.

        `backlog` is the number of requests that may wait for the program, 0: 1024. Further ones are refused,
        as the kernel does. An id that is not bound gets a free port of every device.

        `max_connections` limits the ids of requests that are not destroyed yet, None: no limit. Further
        requests are refused with reason 3, no resources. `max_half_open` limits the accepted ids that wait
        for the peer's last message. One more makes the one that has waited longest UNREACHABLE.
        `handshake_timeout` (seconds) limits the time from a request to accept(), and from accept() to
        ESTABLISHED. After it the id is UNREACHABLE, with status ETIMEDOUT.
        """
        admission = Admission(max_connections, max_half_open, handshake_timeout)
        with registry.lock:
            self._expect("listen", IdState.IDLE, IdState.ADDR_BOUND)
            if self.state is IdState.IDLE:
                addresses.bind(self.as_id, NOWHERE, "listen")
            if not self.claims:
                raise VerbsError(EINVAL, "resolve_addr() has begun something else", "listen")
            self.admission = admission
            self.backlog = backlog if backlog > 0 else DEFAULT_BACKLOG
            for agent in self._agents:
                agent.service.listen(self.as_id)
            self.state = IdState.LISTEN

    def get_request(self) -> CmId:
        """Wait for a request to an id without a channel, and return its new id (rdma_get_request(3)).

        The new id has no channel either. Its `event` is the request, with the peer's private data. If there
        is no descriptor or memory for the new id, the request is refused (reason 3, no resources), and
        VerbsError names the limit.
        """
        if not self.sync:
            raise VerbsError(EINVAL, "the id has an event channel: call get_cm_event()", "get_request")
        self._expect("get_request", IdState.LISTEN)
        self._drop_event()
        event = self.channel.get_cm_event()
        if event.event is not EventType.CONNECT_REQUEST:
            event.ack()
            raise VerbsError(abs(event.status) or EINVAL, event.event.name, "get_request")
        event.ack()
        child = event.id
        try:
            child.migrate_id(None)
            child.event = event
            if self.ep_cap is not None:
                child.create_qp(self.pd, cap=self.ep_cap)
        except (
            BaseException
        ):  # no descriptors, or no memory: this request is refused, and the next one may do
            with contextlib.suppress(VerbsError):
                child.reject_busy()
            child.destroy()
            raise
        return child

    def connect(self, param: ConnParam | UDParam | None = None) -> None:
        """Request a connection from the peer, or look up its datagram service (rdma_connect(3)).

        Event: ESTABLISHED, or CONNECT_RESPONSE if the queue pair is not the id's own; on failure REJECTED,
        UNREACHABLE or CONNECT_ERROR. Private data has at most 56 bytes, 180 for a datagram service.
        """
        with registry.lock:
            self._expect("connect", IdState.ROUTE_RESOLVED)
            if self.is_datagram:
                calls.look_up(self, param or ConnParam())
            else:
                calls.connect(self, cast("ConnParam", param or ConnParam()))
            self.state = IdState.CONNECT
        self._complete("connect")

    def accept(self, param: ConnParam | UDParam | None = None) -> None:
        """Accept a request (rdma_accept(3)); the event ESTABLISHED follows. Private data has at most 196
        bytes.

        None as `param` accepts what the peer asked for, as far as the device can do it.
        """
        with registry.lock:
            self._expect("accept", IdState.CONNECT)
            if self.is_datagram:
                calls.serve(self, param)
                return
            calls.accept(self, cast("ConnParam | None", param))
        self._complete("accept")

    def reject(self, private_data: bytes = b"") -> None:
        """Refuse a request or a response (rdma_reject(3)). Private data has at most 148 bytes."""
        with registry.lock:
            self._expect("reject", IdState.CONNECT)
            calls.reject(self, private_data, Reason.PROGRAM)

    def reject_busy(self) -> None:
        """Refuse a request because descriptors, memory or threads are missing: reason 3, no resources.

        librdmacm has no such call. A datagram service answers "no queue pair".
        """
        with registry.lock:
            self._expect("reject_busy", IdState.CONNECT)
            calls.reject(self, b"", Reason.SHORTAGE)

    def reject_ece(self, private_data: bytes = b"") -> None:
        """Refuse a connection because of the peer's vendor options (rdma_reject_ece(3)): reason 35."""
        with registry.lock:
            self._expect("reject_ece", IdState.CONNECT)
            if self.is_datagram:
                text = "a SIDR_REP has no such reason: use reject()"
                raise VerbsError(EINVAL, text, "reject_ece")
            calls.reject(self, private_data, Reason.ECE)

    def establish(self) -> None:
        """Complete a connection after CONNECT_RESPONSE (rdma_establish(3)); no event follows at this end."""
        with registry.lock:
            self._expect("establish", IdState.CONNECT)
            self.need_connection("establish").establish()
            self.need_agent("establish").flush()

    def notify(self, event: AsyncEventType) -> None:
        """Report an event of the queue pair to RDMA-CM (rdma_notify(3)).

        COMM_EST completes a connection whose last message was lost; EISCONN means that it is complete
        already. An error of the queue pair ends the connection (the kernel's RDMA-CM does not accept these
        events). Raises VerbsError: EINVAL for other events, and for a connection that cannot be completed or
        ended.
        """
        with registry.lock:
            self._expect("notify", IdState.CONNECT, IdState.DISCONNECT)
            if event == AsyncEventType.COMM_EST:
                self.need_connection("notify").data_came()
                self.need_agent("notify").flush()
            elif event in _FATAL and self._is_connected:
                self._broke_down()
            else:
                raise VerbsError(EINVAL, f"{self!r}: {event!r} changes nothing", "notify")

    @property
    def _is_connected(self) -> bool:
        is_up = self.conversation is not None and self.conversation.phase is Phase.UP
        return self.state is IdState.CONNECT and is_up

    def watch(self, now: int) -> bool:
        """Check whether an error of the queue pair has ended the connection. Returns False if there is
        nothing to check.
        """
        if self.state is not IdState.CONNECT or self.qp is None or self.qp.closed:
            return False
        if not self._is_connected:
            self._watch_handshake(now)
        elif self.qp.state is QPState.ERR and not self.need_agent("watch").service.hears_ends:
            self._broke_down()
        else:
            self.is_settled = True
        return True

    def _watch_handshake(self, now: int) -> None:
        if not self.is_datagram and self.conversation is not None:
            cast("Connection", self.conversation).watch(now)

    def _broke_down(self) -> None:
        """The queue pair is in the error state: tell the peer and the application."""
        if not self.is_datagram:
            self.state = IdState.DISCONNECT
            self.put(EventType.DISCONNECTED, param=NOTHING_SAID)
            calls.hang_up(self)

    def disconnect(self, private_data: bytes = b"") -> None:
        """End a connection, or confirm the peer's disconnect (rdma_disconnect(3)); the queue pair moves to
        ERR.

        The event DISCONNECTED follows once, and TIMEWAIT_EXIT when the queue pair may be used again. During
        the handshake, DISCONNECTED follows when the handshake has succeeded; if the handshake fails, another
        event reports that. No event follows for a connection that has failed, for an id that listens, or for
        a datagram service, which has no connection. Without an event channel this call returns when the
        connection has ended, however it has: `event.status` tells.
        Private data has at most 220 bytes, and goes with the DREQ; librdmacm does not have it here.

        Over iWARP what was posted goes out first. There is no limit for a peer that takes it, however slowly:
        who does not want to wait moves the queue pair to ERR. One that takes nothing for as long as `timing`
        repeats a message, 69 s unless it is told otherwise, is left: the status is -ETIMEDOUT.
        """
        with registry.lock:
            if self.state is IdState.LISTEN:
                return
            self._expect("disconnect", IdState.CONNECT, IdState.DISCONNECT)
            follows = calls.hang_up(self, private_data)
            follows = follows or (self.state is IdState.DISCONNECT and self.channel.has(self.as_id))
        if follows:
            self._complete("disconnect", EventType.DISCONNECTED)

    # ------------------------------------------------------------------ multicast groups

    def join_multicast(self, addr: SockAddr, context: object = None) -> None:
        """Join a multicast group as a full member (rdma_join_multicast(3)): the id's queue pair receives its
        datagrams.

        Event: MULTICAST_JOIN with the path to the group, queue pair number and Q_Key; or MULTICAST_ERROR.
        """
        self.join_multicast_ex(addr, JoinFlags.FULLMEMBER, context)

    def join_multicast_ex(self, addr: SockAddr, flags: JoinFlags, context: object = None) -> None:
        """Join a multicast group, to receive and send or to send only (rdma_join_multicast_ex(3))."""
        group = multicast.group_of(addr, "join_multicast")
        with registry.lock:
            self._expect("join_multicast", *_CAN_JOIN)
            if not self.is_datagram:
                raise VerbsError(EINVAL, f"{self!r} is not for datagrams", "join_multicast")
            multicast.join(self.as_id, group, JoinFlags(flags), context)
        self._complete("join_multicast")

    def leave_multicast(self, addr: SockAddr) -> None:
        """Leave a multicast group (rdma_leave_multicast(3))."""
        group = multicast.group_of(addr, "leave_multicast")
        with registry.lock:
            multicast.leave(self.as_id, group)
