# SPDX-License-Identifier: Apache-2.0
"""The names and records of RDMA-CM, from rdma/rdma_cma.h, without the prefix."""

from __future__ import annotations

from enum import Enum

from rnic.cm.timing import MAX_CM_RETRIES, PACKET_LIFE_TIME, RESPONSE_TIMEOUT
from rnic.enums import MTU
from rnic.records import Record
from rnic.verbs.ah import AHAttr
from rnic.wording import Named

MAX_RESP_RES = 0xFF
"""As responder_resources: the most that the device and the peer's request allow."""
MAX_INIT_DEPTH = 0xFF
"""As initiator_depth: the most that the device and the peer's request allow."""
UDP_QKEY = 0x01234567
"""The Q_Key of PortSpace.UDP."""


class EventType(Named):
    """The kind of an event (rdma_get_cm_event(3)); the values are librdmacm's."""

    ADDR_RESOLVED = 0
    """resolve_addr() has found device and next hop."""
    ADDR_ERROR = 1
    """It has not."""
    ROUTE_RESOLVED = 2
    """resolve_route() has found the way."""
    ROUTE_ERROR = 3
    """It has not."""
    CONNECT_REQUEST = 4
    """A peer wants to connect: `id` is new, and accept() or reject() answers."""
    CONNECT_RESPONSE = 5
    """The peer has accepted, and the id has no queue pair: establish() goes on."""
    CONNECT_ERROR = 6
    """The connection could not be made."""
    UNREACHABLE = 7
    """The peer does not answer."""
    REJECTED = 8
    """The peer has refused."""
    ESTABLISHED = 9
    """The connection is ready."""
    DISCONNECTED = 10
    """The connection has ended."""
    DEVICE_REMOVAL = 11
    """The device is gone; destroy the id."""
    MULTICAST_JOIN = 12
    """The group is joined."""
    MULTICAST_ERROR = 13
    """It could not be joined, or has been lost."""
    ADDR_CHANGE = 14
    """The address has moved to another device."""
    TIMEWAIT_EXIT = 15
    """The queue pair of a connection that has ended can be used again."""
    ADDRINFO_RESOLVED = 16
    """resolve_addrinfo() has found addresses."""
    ADDRINFO_ERROR = 17
    """It has not."""
    USER = 18
    """write_cm_event() was called."""

    @property
    def text(self) -> str:
        """The name in C programs (rdma_event_str(3)): "RDMA_CM_EVENT_ESTABLISHED"."""
        return f"RDMA_CM_EVENT_{self.name}"


class IdState(Enum):
    """The state of an id; the names are the kernel's."""

    IDLE = "just made"
    """It was just made."""
    ADDR_BOUND = "has a local address"
    """It has a local address."""
    ADDR_QUERY = "looking for the way to an address"
    """resolve_addr() is under way."""
    ADDR_RESOLVED = "knows device and next hop"
    """Device and next hop are known."""
    ROUTE_RESOLVED = "ready to connect"
    """connect() can be called."""
    CONNECT = "connecting or connected"
    """It is connecting or connected."""
    LISTEN = "takes requests"
    """It takes requests."""
    DISCONNECT = "not connected any more"
    """It was connected, and is not any more."""
    DEVICE_REMOVAL = "its device is gone"
    """Its device is gone."""
    DESTROYING = "destroyed"
    """destroy() was called."""


class Option(Named):
    """Options for set_option() (rdma_set_option(3)); the values are those of level RDMA_OPTION_ID."""

    TOS = 0
    """The traffic class of packets."""
    REUSEADDR = 1
    """Bind to a port that another id has."""
    AFONLY = 2
    """Listen at one IP version alone."""
    ACK_TIMEOUT = 3
    """The queue pair's `timeout`."""


class JoinFlags(Named):
    """How a multicast group is joined (rdma_join_multicast_ex(3))."""

    FULLMEMBER = 0
    """Send to the group and receive from it."""
    SENDONLY_FULLMEMBER = 1
    """Send to the group alone."""


class ConnParam(Record):
    """Parameters of a connection, for connect() and accept(), or as the peer sent them (rdma_connect(3),
    rdma_accept(3)).
    """

    private_data: bytes = b""
    """At most 56 bytes for connect(), 196 for accept(); received data is filled up with zeros."""
    responder_resources: int = MAX_RESP_RES
    """READs and atomics of the peer that this end serves at the same time."""
    initiator_depth: int = MAX_INIT_DEPTH
    """READs and atomics that may be outstanding to the peer."""
    flow_control: bool = True
    """Whether the peer may expect flow control: told to it, and without effect here."""
    retry_count: int = 7
    """How often a request is sent again before RETRY_EXC_ERR, 0 to 7; the active end's value counts for
    both.
    """
    rnr_retry_count: int = 7
    """How often the peer sends again if no receive is posted here; 7: without end."""
    srq: bool = False
    """Only with a queue pair that is not the id's own."""
    qp_num: int = 0
    """Only with a queue pair that is not the id's own."""


NOTHING_SAID = ConnParam(
    responder_resources=0, initiator_depth=0, flow_control=False, retry_count=0, rnr_retry_count=0
)
"""Parameters of an event whose message has no such fields: zeros, as from the kernel."""


class UDParam(Record):
    """A resolved datagram service, or a joined group (rdma_get_cm_event(3))."""

    private_data: bytes = b""
    """What the service says beside."""
    ah_attr: AHAttr | None = None
    """The way there."""
    qp_num: int = 0
    """The queue pair number there; 0xFFFFFF of a group."""
    qkey: int = 0
    """The Q_Key that datagrams need."""


class Timing(Record):
    """How long to wait for the peer's answers; the defaults are the kernel's."""

    response_timeout: int = RESPONSE_TIMEOUT
    """The peer's time for an answer, 4.096 us * 2**n: 4.3 s."""
    max_cm_retries: int = MAX_CM_RETRIES
    """How often a message is sent again, 15 at most."""
    packet_life_time: int = PACKET_LIFE_TIME
    """How long a packet can be under way, 4.096 us * 2**n: 0.27 s."""


class Path(Record):
    """A path to a peer: what resolve_route() finds, or what set_path() is given."""

    traffic_class: int = 0
    """8 bits."""
    hop_limit: int = 64
    """Of its packets."""
    mtu: MTU | None = None
    """None: the port's."""
    packet_life_time: int | None = None
    """n of 4.096 us * 2**n; None: that of the id's Timing."""
