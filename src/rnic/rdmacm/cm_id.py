# SPDX-License-Identifier: Apache-2.0
"""Communication identifiers: RDMA-CM's sockets (rdma_create_id(3)).

A CmId is put together of parts that share IdBase: this module has its addresses, options and life,
connecting.py its peers, queue_pair.py, shared.py and messages.py what it sends with.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from errno import EBUSY, EINVAL
from typing import TYPE_CHECKING, Self

from rnic.enums import QPType
from rnic.errors import VerbsError
from rnic.rdmacm import addresses, reach
from rnic.rdmacm.agent import Loop
from rnic.rdmacm.channel import EventChannel, check_timeout
from rnic.rdmacm.connecting import Connecting
from rnic.rdmacm.id_base import NOWHERE
from rnic.rdmacm.messages import Messages
from rnic.rdmacm.names import EventType, IdState, Option, Path, Timing
from rnic.rdmacm.queue_pair import QueuePair
from rnic.rdmacm.registry import registry
from rnic.rdmacm.shared import SharedReceives
from rnic.rdmacm.sockaddr import SockAddr, parse
from rnic.verbs.context import Context
from rnic.verbs.device import Device, find_device
from rnic.verbs.ece import ECE
from rnic.wire import PortSpace

if TYPE_CHECKING:
    from rnic.cm import Statistics

_QP_TYPES = {PortSpace.TCP: QPType.RC, PortSpace.UDP: QPType.UD, PortSpace.IPOIB: QPType.UD}

_MAY_REUSE = tuple(state for state in IdState if state is not IdState.LISTEN)
_ACKNOWLEDGED = (QPType.RC, QPType.XRC_SEND)
_KINDS = (QPType.RC, QPType.UD, QPType.XRC_SEND, QPType.XRC_RECV)


class CmId(Connecting, QueuePair, SharedReceives, Messages):
    """A communication identifier: one end of a connection or datagram service; create_id() makes it,
    destroy() ends it.

    With an event channel, calls return at once, and an event reports the result. Without a channel, every
    call waits for its event, which is then in `event`. If the event reports a failure, the call raises
    VerbsError with the event's errno; for REJECTED that is ECONNREFUSED. An id is a context manager.
    """

    # ------------------------------------------------------------------ addresses

    def bind_addr(self, addr: SockAddr) -> None:
        """Bind the id to a local address and port (rdma_bind_addr(3)); port 0 chooses a free one.

        "0.0.0.0" and "::" mean every device. Raises VerbsError: EADDRINUSE if another id of this host has the
        port, EADDRNOTAVAIL if no device has the address.
        """
        local = parse(addr, "bind_addr")
        with registry.lock:
            self._expect("bind_addr", IdState.IDLE)
            addresses.bind(self, local, "bind_addr")

    def resolve_addr(self, src: SockAddr | None, dst: SockAddr, timeout_ms: int = 2000) -> None:
        """Find the device, the local address and the next hop for an address (rdma_resolve_addr(3)).

        Event: ADDR_RESOLVED, or ADDR_ERROR with a negative errno as its status: ENETUNREACH without a route,
        ENODEV without a device, ETIMEDOUT if the next hop does not answer ARP or neighbour discovery. Raises
        VerbsError: EINVAL if one address is of IPv4 and the other one of IPv6.
        """
        check_timeout(timeout_ms, "resolve_addr")
        remote = parse(dst, "resolve_addr")
        local = parse(src, "resolve_addr") if src else None
        with registry.lock:
            self._expect("resolve_addr", IdState.IDLE, IdState.ADDR_BOUND)
            source = local if self.local is NOWHERE else self.local
            if source is not None and source.ip.version != remote.ip.version:
                text = f"{source.ip} and {remote.ip} are not of one family"
                raise VerbsError(EINVAL, text, "resolve_addr")
            told = local is not None and (local.port or not local.ip.is_unspecified)
            if local is not None and told and self.state is IdState.IDLE:
                addresses.bind(self, local, "resolve_addr")
            self.remote = addresses.peer_of(self, remote)
            self.state = IdState.ADDR_QUERY
            addresses.resolve(self, self.remote, timeout_ms)
        self._complete("resolve_addr")

    def resolve_route(self, timeout_ms: int = 2000) -> None:
        """Find the path to the address (rdma_resolve_route(3)). Over RoCE the device knows it already.

        Event: ROUTE_RESOLVED, or ROUTE_ERROR (ENETUNREACH, ENODEV ...) if route or address were removed since
        resolve_addr().
        """
        check_timeout(timeout_ms, "resolve_route")
        with registry.lock:
            self._expect("resolve_route", IdState.ADDR_RESOLVED)
            addresses.resolve_route(self)
        self._complete("resolve_route")

    def set_path(self, path: Path) -> None:
        """Reach the peer by this path, instead of resolve_route() (rdma_set_option(3), RDMA_OPTION_IB_PATH).

        Event: ROUTE_RESOLVED. The port's MTU is the most. Raises VerbsError: EINVAL if the address is not
        resolved, or the path is.
        """
        with registry.lock:
            self._expect("set_path", IdState.ADDR_RESOLVED)
            self.need_agent("set_path")
            addresses.take_path(self, path)
        self._complete("set_path")

    def get_local_addr(self) -> SockAddr:
        """The local address and port (rdma_get_local_addr(3))."""
        return self.local.sockaddr

    def get_peer_addr(self) -> SockAddr | None:
        """The peer's address and port, None if there is none yet (rdma_get_peer_addr(3))."""
        return self.remote.sockaddr if self.remote else None

    def get_src_port(self) -> int:
        """The local port, 0 if there is none yet (rdma_get_src_port(3))."""
        return self.local.port

    def get_dst_port(self) -> int:
        """The peer's port, 0 if there is none yet (rdma_get_dst_port(3))."""
        return self.remote.port if self.remote else 0

    @property
    def verbs(self) -> Context | None:
        """The context of the id's device, None if there is none yet; ids of one device share it."""
        return self.agent.context if self.agent else None

    @property
    def port_num(self) -> int:
        """The device's port, 0 if the id has no device yet."""
        return 1 if self.agent else 0

    # ------------------------------------------------------------------ options

    def set_option(self, option: Option, value: int) -> None:
        """Set an option (rdma_set_option(3)).

        Set TOS before the route is resolved, and AFONLY before listen() or resolve_addr(). REUSEADDR counts
        when the id is bound; it can be set in any state but LISTEN, and taken back before bind_addr().
        ACK_TIMEOUT is the timeout of the queue pair, 4.096 us * 2**value. Raises VerbsError: EINVAL for a
        value that is too large, or if the id's queue pairs have no such timeout: they are not RC or XRC_SEND;
        EADDRINUSE if the id is bound, and another one has its port in the family that it is to have, too.
        """
        option = Option(option)
        limit = {Option.TOS: 255, Option.ACK_TIMEOUT: 31}.get(option, 1)
        if not 0 <= value <= limit:
            raise VerbsError(EINVAL, f"{option.name} is 0 to {limit}, not {value}", "set_option")
        if option is Option.ACK_TIMEOUT and self.qp_type not in _ACKNOWLEDGED:
            text = f"queue pairs of type {self.qp_type.name} have no timeout"
            raise VerbsError(EINVAL, text, "set_option")
        with registry.lock:
            if option is Option.AFONLY:
                self._expect("set_option", IdState.IDLE, IdState.ADDR_BOUND)
                addresses.set_afonly(self, value, self._agents)
                return
            if option is Option.REUSEADDR:
                self._expect("set_option", *(_MAY_REUSE if value else (IdState.IDLE,)))
            self.options[option] = value

    def set_local_ece(self, ece: ECE) -> None:
        """Offer a vendor's options to the peer (rdma_set_local_ece(3)); call it before connect() or accept().

        Without this call, connect() offers the options of the queue pair that create_qp() made, and accept()
        answers with those that the queue pair accepts (QP.set_ece()).
        """
        self.local_ece, self.offers_ece = ece, True

    def get_remote_ece(self) -> ECE:
        """The vendor options that the peer has offered (rdma_get_remote_ece(3))."""
        return self.remote_ece

    def migrate_id(self, channel: EventChannel | None) -> None:
        """Report events to another channel (rdma_migrate_id(3)); None makes the id synchronous.

        Waiting events move to the new channel. Raises VerbsError: EBUSY while delivered events are not
        acknowledged.
        """
        target = channel or EventChannel()
        self._drop_event()
        with registry.lock, self.channel.lock:
            self._check_acked("migrate_id")
            old, waiting = self.channel, self.channel.take_of(self)
            old.ids.discard(self)
            owned, self.channel = self._owns_channel, target
            self.sync = self._owns_channel = channel is None
            target.ids.add(self)
            for event in waiting:
                target.put(event)
        if owned:
            old.close()

    def write_cm_event(self, event: EventType, status: int = 0, arg: object = None) -> None:
        """Add an event of the program to the channel (rdma_write_cm_event(3)); only USER is allowed."""
        if event is not EventType.USER:
            raise VerbsError(EINVAL, f"{event.name} cannot be written; only USER can", "write_cm_event")
        self.put(event, status, arg=arg)

    def statistics(self) -> Statistics:
        """The counters of the device's communication manager: messages sent, received and dropped."""
        with registry.lock:
            return self.need_agent("statistics").service.statistics()

    # ------------------------------------------------------------------ for the rooms below

    def spawn(self) -> CmId:
        """Make the id of a request to this listener; it has no device yet."""
        child = CmId(self.channel, self.ps, self.qp_type, self.context, self.timing, self.device)
        child.options, child.orders = dict(self.options), None if self.orders is None else []
        child._qkey = self._qkey
        return child

    # ------------------------------------------------------------------ the end

    def _check_acked(self, verb: str) -> None:
        self.channel.settle_dropped()
        if self.unacked:
            text = f"{self.unacked} events of {self!r} are not acknowledged: call ack() on each first"
            raise VerbsError(EBUSY, text, verb)

    def destroy(self) -> None:
        """Destroy the id (rdma_destroy_id(3)): its connection is released, and waiting requests are refused.

        Raises VerbsError: EBUSY while delivered events are not acknowledged. (librdmacm would wait, for ever
        if this thread is to acknowledge them.) Events that wait in the channel are dropped. The id's own
        queue pair is destroyed, too. If an exception interrupts the call, Ctrl-C for example, the next call
        completes it.
        """
        self._drop_event()
        if self._pid != os.getpid():
            self.state = IdState.DESTROYING
            return
        with registry.lock:
            if self._destroyed:
                return
            with self.channel.lock:
                self._check_acked("destroy_id")
                self.destroy_qp()
                self.destroy_srq()
                self.state = IdState.DESTROYING
                self._drop_events()
            self.abandon()
            if self._owns_channel:
                self.channel.drop_fd()
            self._destroyed = True

    def _drop_events(self) -> None:
        """Drop events that were not delivered, and refuse their requests."""
        for event in self.channel.events_of(self):
            if event.event is EventType.CONNECT_REQUEST and event.listen_id is self:
                event.id.destroy()
        self.channel.take_of(self)
        self.channel.ids.discard(self)

    @property
    def farewell_bytes(self) -> int:
        """How much private data disconnect() can carry: of iWARP none."""
        return self.conversation.limits.disconnect if self.conversation is not None else 0

    def silence(self) -> int:
        """Why the peer does not answer, if the network says so: an errno, or 0; takes up to 50 ms."""
        with registry.lock:  # the agent takes the question back when the peer answers
            said = self.question.answer() if self.question else 0
            if self.agent is not None and not self.agent.service.asks_network:
                return said
        return said or (reach.why(self.remote.ip, None, self.remote.scope) if self.remote else 0)

    def silence_words(self, code: int) -> str:
        """What it means that the peer does not answer; `code` is what silence() returns."""
        dst = self.remote.ip if self.remote else None
        return self.agent.service.silence(code, dst) if self.agent is not None else reach.words(code, dst)

    def failure_words(self, code: int) -> str:
        """What an errno of CONNECT_ERROR means, if it says more than its own text; or ""."""
        return self.agent.service.failure(code) if self.agent is not None else ""

    def later(self, call: Callable[[], object]) -> None:
        """Let another thread call a function: for finalisers, which may take no lock. Not in a forked
        child.
        """
        if self._agents and self._pid == os.getpid():
            self._agents[0].later(call)

    def abandon(self) -> None:
        """Give up everything that others see of the id; each step can be repeated."""
        if self.let_in_by is not None:
            self.let_in_by.forget(self)
        for agent in self._agents:
            agent.service.unlisten(self)
        if self.conversation is not None:
            self.conversation.close()
            self.conversation = None  # which knows this id
        if self.question is not None:
            self.question.answer()  # while it can be heard: who gives up may want to know
            self.question.close()
        if self.calls_from is not None and not self.calls_from.ended:
            self.calls_from.service.give_port(self.ps, self.local.ip, self.local.port)
        self.calls_from = None
        for claim in (*self.claims, *self.let_in_on.values()):
            claim.close()
        self.claims, self.let_in_on = [], {}
        while self._agents:
            agent = self._agents[-1]
            if agent.failed is None and not agent.ended:
                agent.flush()
            agent.leave(self)
            self._agents.pop()

    def device_removed(self, agent: Loop, status: int = 0) -> None:
        """A device was removed; an id that has another one, or listens on others, continues there."""
        if self.agent is not agent and len(self._agents) > 1:
            self._agents.remove(agent)
            agent.leave(self)
            agent.service.unlisten(self)
            if (claim := self.let_in_on.pop(agent, None)) is not None:
                claim.close()
            return
        self.state = IdState.DEVICE_REMOVAL
        self.put(EventType.DEVICE_REMOVAL, status)

    def address_changed(self) -> None:
        """The device no longer has the id's local address."""
        self.put(EventType.ADDR_CHANGE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            self.destroy()
        except VerbsError:
            if kind is None:
                raise

    def __del__(self) -> None:
        if not getattr(self, "_destroyed", True) and self._pid == os.getpid():
            # No lock here: an agent knows its ids, so this one has none, and nobody else sees it.
            if self.seen:
                warnings.warn(f"{self!r} was not destroyed", ResourceWarning, stacklevel=2, source=self)
            if self._owns_channel:
                self.channel.drop_fd()


def create_id(
    channel: EventChannel | None = None,
    ps: PortSpace = PortSpace.TCP,
    *,
    qp_type: QPType | None = None,
    context: object = None,
    timing: Timing | None = None,
    device: str | Device | Context | None = None,
) -> CmId:
    """Create an id (rdma_create_id(3)); without a channel its calls wait for their events.

    TCP is for connections, UDP for datagrams. IB is for either, as `qp_type` says (default: RC); XRC_SEND
    calls and XRC_RECV listens. IPOIB is for datagrams of IP over InfiniBand. `timing` is how long to wait for
    the peer's answers.

    The id uses `device`, by its name, as a Device or as the Context of one: "iwarp_eth0", for example. None:
    the first device of get_device_list() that serves the id's address; an id that listens at any address
    listens on all. The id opens the device itself, so `verbs` is another Context. Raises VerbsError: ENODEV
    if there is no such device.
    """
    ps = PortSpace(ps)
    kind = _QP_TYPES.get(ps) or qp_type or QPType.RC
    if qp_type not in (None, kind) or kind not in _KINDS:
        raise VerbsError(EINVAL, f"port space {ps.name} does not go with {qp_type!r}", "create_id")
    chosen = device.device if isinstance(device, Context) else None if device is None else find_device(device)
    one = CmId(channel, ps, kind, context, timing or Timing(), chosen)
    one.seen = True
    return one
