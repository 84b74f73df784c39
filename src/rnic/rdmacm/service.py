# SPDX-License-Identifier: Apache-2.0
"""The interface of connection services: how two ids of two hosts come to know each other.

librdmacm has the same calls and events whatever the wire is: rdma_cm(7). The conversation behind them
differs. InfiniBand and RoCE exchange management datagrams (`rnic.rdmacm.ibcm`). iWARP has a handshake over
TCP. Ids, event channels and endpoints know only this module; `rnic.rdmacm.transports` chooses.

There is one ConnectionService for each device in use. The device's agent (agent.py) makes it, lends it its
thread, and closes it. Of a service, each id has one Conversation at a time: the service makes it when the id
knows the peer's address, or when a peer's request makes the id. What comes of a conversation, the service
reports with the functions of `rnic.rdmacm.outcomes`.

All methods are called under the registry's lock, by a thread of the program or the agent's. None may wait.
Times are nanoseconds of time.monotonic_ns(). What cannot be done raises VerbsError, with the errno that
librdmacm's manual pages name; EINVAL if the phase does not fit. If memory is short in work() or settle(),
the agent calls them again: what is not done yet has to wait there.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from errno import EOPNOTSUPP
from typing import TYPE_CHECKING, Protocol

from rnic.errors import VerbsError
from rnic.rdmacm import reach
from rnic.rdmacm.names import ConnParam, EventType, Path, UDParam
from rnic.records import Record

if TYPE_CHECKING:
    import socket

    from rnic.cm import Statistics
    from rnic.enums import QPState, Transport
    from rnic.rdmacm.agent import Agent
    from rnic.rdmacm.cm_id import CmId
    from rnic.rdmacm.sockaddr import IP, Inet
    from rnic.verbs.ah import GID, AHAttr
    from rnic.verbs.ece import ECE
    from rnic.verbs.qp import QPAttr
    from rnic.verbs.stream import StreamAttr
    from rnic.wire import PortSpace


class Phase(Enum):
    """How far a conversation is, as far as ids have to know."""

    NEW = auto()
    """Nothing was said yet."""
    CALLING = auto()
    """This end has asked for a connection."""
    ANSWERED = auto()
    """The peer has accepted; establish() or complete() is due."""
    ASKED = auto()
    """The peer has asked for a connection; accept() or reject() is due."""
    ACCEPTED = auto()
    """This end has accepted, and the peer has not confirmed."""
    UP = auto()
    """The connection is established."""
    LEAVING = auto()
    """This end has disconnected, and the peer has not confirmed."""
    LEFT = auto()
    """The peer has disconnected; disconnect() confirms it."""
    OVER = auto()
    """It was refused, given up or ended."""


HALF_OPEN = (Phase.ASKED, Phase.ACCEPTED)
"""A peer has asked for a connection, which is not established yet: listeners limit these."""
ENDED = (Phase.LEAVING, Phase.LEFT, Phase.OVER)


class Reason(Enum):
    """Why this end refuses."""

    PROGRAM = auto()
    """The program does not want the connection (rdma_reject(3))."""
    SHORTAGE = auto()
    """Descriptors, memory or places are missing."""
    ECE = auto()
    """The peer's vendor options do not fit (rdma_reject_ece(3))."""


class Refusal(Record):
    """The status of REJECTED, or a positive one of UNREACHABLE, in words."""

    text: str
    nobody_listens: bool = False
    """The port has no listener there."""
    by_program: bool = False
    """The peer's program has refused; its private data may say why."""
    no_room: bool = False
    """The listener, or its process, has come to a limit."""


class Limits(Record):
    """The most bytes of private data that each message can carry (rdma_connect(3), rdma_accept(3))."""

    connect: int
    accept: int
    reject: int
    disconnect: int = 0


class Request(Record):
    """A peer's request to a listener: what its new id is told."""

    conversation: Conversation
    local: Inet
    """The address that the peer has asked for."""
    remote: Inet
    param: ConnParam | UDParam
    """The peer's wishes as this end sees them: what the peer asks of this end is responder_resources here."""
    ece: ECE
    """The vendor options that the peer offers."""


class Order(Record):
    """What is to be done to a queue pair in another process."""

    guid: int
    """Of its device."""
    qp_num: int
    attr: QPAttr
    """Its new state, RTS, SQD or ERR; for RTS with the depths."""
    stream: tuple[socket.socket, socket.socket, StreamAttr] | None = None
    """Ahead of RTS it takes a connection; the second socket is the line (struct rnic_stream_attr)."""

    def close(self) -> None:
        """Close the sockets: the order was passed on, or is void."""
        for sock in () if self.stream is None else self.stream[:2]:
            sock.close()


OpenAt = Callable[["Transport", "IP", int], "Agent"]
"""Opens the device of a transport at an address of the host, on an interface if the address is link-local.
Raises VerbsError.
"""


class Claim(Protocol):
    """A port that an id has bound."""

    def close(self) -> None:
        """Give the port back; a second call does nothing."""


class Door(Protocol):
    """Hears requests at any address, before a device of the transport is open."""

    def claim(self, one: CmId, local: Inet, port: int) -> Claim:
        """Bind a port at every address (rdma_bind_addr(3)). EADDRINUSE: somebody has it at one of them."""

    def listen(self, one: CmId) -> None:
        """Open the device of the address to which a request comes, and report it there (rdma_listen(3))."""

    def unlisten(self, one: CmId) -> None:
        """Take no more requests for the id."""

    def share_port(self, one: CmId, *, shared: bool) -> None:
        """The id binds that port at one address, too, to connect from it."""

    def close(self) -> None:
        """Close all descriptors; also in a forked child, whose descriptors are copies."""


class Conversation(Protocol):
    """What an id and its peer have said to each other: for a datagram service, a question and an answer.

    It holds the id. After close() it does not report anything.
    """

    @property
    def phase(self) -> Phase:
        """How far it is."""

    @property
    def state_name(self) -> str:
        """The service's own name for that, for messages."""

    @property
    def limits(self) -> Limits:
        """How much private data its messages can carry; the id has checked that before each call."""

    def route(self, path: Path) -> None:
        """The path is resolved (rdma_resolve_route(3)), or the program has given one."""

    def connect(self, param: ConnParam | UDParam) -> None:
        """Send the request (rdma_connect(3)).

        A connection's ConnParam is complete: depths that the device can do, and the number of the queue pair.
        It reports answered() or established(), refused(), failed() or unreachable(); a question for a
        datagram service reports found(), refused() or unreachable().
        """

    def accept(self, param: ConnParam | UDParam) -> None:
        """Accept the peer's request (rdma_accept(3)); `param` is complete, for a datagram service likewise.

        If the id has a connected queue pair, it can send and receive before the peer learns of this. It
        reports established() when the peer has confirmed, or unreachable() or refused().
        """

    def reject(self, private_data: bytes, reason: Reason) -> None:
        """Refuse the peer's request, or its answer (rdma_reject(3)). Nothing is reported for this end."""

    def close(self) -> None:
        """The id goes: refuse, release or withdraw what is under way. A second call does nothing.

        The service goes on until the peer knows, or cannot be reached.
        """


class Connection(Conversation, Protocol):
    """A conversation for a connected queue pair."""

    def qp_attr(self, state: QPState) -> QPAttr | None:
        """The attributes that move the queue pair to RTR or RTS (rdma_init_qp_attr(3)); None while the peer's
        are not known.
        """

    def complete(self) -> None:
        """After answered(), for an id with a queue pair: move it to RTS, and confirm the answer.

        A second call does nothing. VerbsError: the queue pair cannot be moved.
        """

    def establish(self) -> None:
        """After answered(), for a queue pair that the program moves: confirm the answer
        (rdma_establish(3)).
        """

    def data_came(self) -> None:
        """Data came before the peer's confirmation (rdma_notify(3)): it reports established()."""

    def disconnect(self, private_data: bytes) -> None:
        """Disconnect (UP), or confirm the peer's disconnect (LEFT); in other phases nothing is said.

        The queue pair ends its work, now or in order, as the transport has it. It reports disconnected(), and
        timewait_over() if the queue pair may be used again only then.
        """

    def expire_at(self, until: int) -> None:
        """Give up at this time while HALF_OPEN: unreachable() is reported. The last call counts."""

    def give_up(self) -> None:
        """Give up now, to make room for another request: unreachable() is reported."""

    def watch(self, now: int) -> None:
        """Called four times a second while the connection is not established, to ask after a silent peer."""


class ConnectionService:
    """The connections, datagram services and groups of one device.

    A service derives from this class, and defines what raises NotImplementedError here. Of the rest it
    defines what it supports.
    """

    name: str
    """For messages: "iWARP"."""
    asks_network = True
    """Why a peer is silent can be asked of the network by a datagram (reach.py)."""
    lets_in = False
    """Ids that a door hears for are let in, one by one (claim_beside()); else they claim each device."""
    hears_ends = False
    """It reports disconnected() when a queue pair fails that it has connected; else the ids look."""

    # ------------------------------------------------------------------ for ids: ports

    def claim(self, one: CmId, local: Inet, port: int) -> Claim:
        """Bind a port, at one address or (unspecified) at all of the device (rdma_bind_addr(3)).

        EADDRINUSE: another id of this host has it. The id's options say what it may share.
        """
        raise NotImplementedError

    def claim_beside(self, one: CmId) -> Claim:
        """Bind the port of an id that the door lets in, which has it already at all addresses of the host.

        EADDRINUSE: another process has it on this device. A service with a door for whole devices defines it.
        """
        raise NotImplementedError

    def share_port(self, one: CmId, *, shared: bool) -> None:
        """An id binds its port at one address, too, to connect from it. Default: nothing."""

    def take_port(self, ps: PortSpace, ip: IP, verb: str) -> int:
        """A port to connect from, which no other id of this host has. EADDRNOTAVAIL: there is none."""
        raise NotImplementedError

    def give_port(self, ps: PortSpace, ip: IP, port: int) -> None:
        """Give back a port of take_port()."""
        raise NotImplementedError

    # ------------------------------------------------------------------ for ids: peers

    def connection(self, one: CmId, source: IP) -> Connection:
        """A conversation with the id's peer, from an address of the device; nothing is sent yet.

        EADDRNOTAVAIL: the device does not have the address.
        """
        raise NotImplementedError

    def lookup(self, one: CmId, source: IP) -> Conversation:  # noqa: ARG002 - for services that have it
        """A question for the datagram service at the id's peer, likewise. Default: EOPNOTSUPP."""
        raise self.lacks("datagram services", "resolve_addr")

    def listen(self, one: CmId) -> None:
        """Report requested() for each request to the id's port from now on (rdma_listen(3)).

        It is called for each device that the id is bound to. Requests beyond the listener's limits
        (`is_full` and `admission`) are refused.
        """
        raise NotImplementedError

    def unlisten(self, one: CmId) -> None:
        """Take no more requests for the id; it may not have listened."""
        raise NotImplementedError

    def join(self, one: CmId, group: GID) -> AHAttr:  # noqa: ARG002 - likewise
        """Become a member of a multicast group (rdma_join_multicast(3)); returns the path to the group.

        The id attaches its queue pair itself. Default: EOPNOTSUPP.
        """
        raise self.lacks("multicast groups", "join_multicast")

    def leave(self, one: CmId, group: GID) -> None:
        """Leave a group that the id has joined (rdma_leave_multicast(3)). Default: nothing."""

    # ------------------------------------------------------------------ for ids: words

    def refusal(self, kind: EventType, status: int) -> Refusal:  # noqa: ARG002 - likewise
        """What the status of a refusal means."""
        return Refusal(str(status))

    def silence(self, code: int, dst: IP | None) -> str:
        """What it means that the peer at `dst` does not answer: the errno of UNREACHABLE, or 0, in words."""
        return reach.words(code, dst)

    def failure(self, code: int) -> str:  # noqa: ARG002 - likewise
        """What an errno of CONNECT_ERROR means, if it says more than its own text; or ""."""
        return ""

    def statistics(self) -> Statistics:
        """Messages sent, received and dropped. Default: EOPNOTSUPP."""
        raise self.lacks("counters of messages", "statistics")

    def lacks(self, what: str, verb: str) -> VerbsError:
        """The error of a call that this service does not support."""
        return VerbsError(EOPNOTSUPP, f"{self.name} does not support {what}", verb)

    # ------------------------------------------------------------------ for the agent

    def address_came(self, ip: IP) -> None:
        """The network interface has a new address. Default: nothing, as the device itself follows it."""

    def descriptors(self) -> list[int]:
        """What to poll for: work() is called when one of these is readable."""
        return []

    def deadline(self) -> int | None:
        """When to call work() though nothing is readable; None: never."""
        return None

    def work(self) -> bool:
        """Handle what has come and what is due. True: there may be more, so that the agent does not sleep.

        Only the agent's thread calls it.
        """
        return False

    def settle(self) -> None:
        """Send and report what is pending; called after calls of ids, and after work()."""

    def hurry(self, now: int, wait: int) -> None:
        """The last id has gone: repeat farewells after `wait` ns, as the agent ends soon."""

    @property
    def is_parting(self) -> bool:
        """Whether a peer has still to be told, or to confirm, that a connection has ended."""
        return False

    def close_descriptors(self) -> None:
        """Close what descriptors() has; also in a forked child, whose descriptors are copies."""

    def close(self) -> None:
        """Give everything back; the agent's thread does it, at its end. An interrupted call is repeated."""
