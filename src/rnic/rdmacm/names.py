# SPDX-License-Identifier: Apache-2.0
"""The names and records of RDMA-CM, from rdma/rdma_cma.h, without the prefix."""

from __future__ import annotations

from enum import Enum, IntEnum

from rnic.cm import MAX_CM_RETRIES, PACKET_LIFE_TIME, RESPONSE_TIMEOUT
from rnic.records import Record
from rnic.verbs.ah import AHAttr

MAX_RESP_RES = 0xFF
"""As responder_resources: the most that the device and the peer's request allow."""
MAX_INIT_DEPTH = 0xFF
"""As initiator_depth: the most that the device and the peer's request allow."""
UDP_QKEY = 0x01234567
"""The Q_Key of PortSpace.UDP."""


class EventType(IntEnum):
    """The kind of an event (rdma_get_cm_event(3)); the values are librdmacm's."""

    ADDR_RESOLVED = 0
    ADDR_ERROR = 1
    ROUTE_RESOLVED = 2
    ROUTE_ERROR = 3
    CONNECT_REQUEST = 4
    CONNECT_RESPONSE = 5
    CONNECT_ERROR = 6
    UNREACHABLE = 7
    REJECTED = 8
    ESTABLISHED = 9
    DISCONNECTED = 10
    DEVICE_REMOVAL = 11
    MULTICAST_JOIN = 12
    MULTICAST_ERROR = 13
    ADDR_CHANGE = 14
    TIMEWAIT_EXIT = 15
    ADDRINFO_RESOLVED = 16
    ADDRINFO_ERROR = 17
    USER = 18

    @property
    def text(self) -> str:
        """The name in C programs (rdma_event_str(3)): "RDMA_CM_EVENT_ESTABLISHED"."""
        return f"RDMA_CM_EVENT_{self.name}"


class IdState(Enum):
    """The state of an id; the names are the kernel's."""

    IDLE = "just made"
    ADDR_BOUND = "has a local address"
    ADDR_QUERY = "looking for the way to an address"
    ADDR_RESOLVED = "knows device and next hop"
    ROUTE_RESOLVED = "ready to connect"
    CONNECT = "connecting or connected"
    LISTEN = "takes requests"
    DISCONNECT = "not connected any more"
    DEVICE_REMOVAL = "its device is gone"
    DESTROYING = "destroyed"


class Option(IntEnum):
    """Options for set_option() (rdma_set_option(3)); the values are those of level RDMA_OPTION_ID."""

    TOS = 0
    REUSEADDR = 1
    AFONLY = 2
    ACK_TIMEOUT = 3


class JoinFlags(IntEnum):
    """How a multicast group is joined (rdma_join_multicast_ex(3))."""

    FULLMEMBER = 0
    SENDONLY_FULLMEMBER = 1


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
    ah_attr: AHAttr | None = None
    qp_num: int = 0
    qkey: int = 0


class Timing(Record):
    """How long to wait for the peer's answers; the defaults are the kernel's."""

    response_timeout: int = RESPONSE_TIMEOUT
    """The peer's time for an answer, 4.096 us * 2**n: 4.3 s."""
    max_cm_retries: int = MAX_CM_RETRIES
    """How often a message is sent again, 15 at most."""
    packet_life_time: int = PACKET_LIFE_TIME
    """How long a packet can be under way, 4.096 us * 2**n: 0.27 s."""
