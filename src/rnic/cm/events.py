# SPDX-License-Identifier: Apache-2.0
"""The output of the communication manager: datagrams to send, and events for the layer above."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from enum import Enum
from typing import TYPE_CHECKING

from rnic.records import Record
from rnic.wire import MAD, CmMessage

if TYPE_CHECKING:
    from rnic.cm.exchange import Exchange

Address = Hashable
"""The source or destination of datagrams: any hashable object, which is compared and returned but never
read.
"""


class EventType(Enum):
    """The kind of an event, with the kernel's names (enum ib_cm_event_type); it says what
    `Event.message` is.
    """

    REQ_RECEIVED = "Req: a new connection; answer with send_rep, send_mra or send_rej"
    REQ_ERROR = "nothing: the REQ was not answered in time, or its sender is gone; it is over"
    REP_RECEIVED = "Rep: answer with send_rtu, send_mra or send_rej"
    REP_ERROR = "nothing: the REP was not answered in time, or its sender is gone; TIMEWAIT"
    RTU_RECEIVED = "Rtu: connected"
    USER_ESTABLISHED = "nothing: connected by establish()"
    MRA_RECEIVED = "Mra: the peer needs more time"
    REJ_RECEIVED = "Rej: refused, or released by force"
    DREQ_RECEIVED = "Dreq: the peer disconnects; answer with send_drep"
    DREQ_ERROR = "nothing: the DREQ was not answered in time, or the peer is gone; TIMEWAIT"
    DREP_RECEIVED = "Drep: disconnected; TIMEWAIT"
    TIMEWAIT_EXIT = "nothing: the queue pair and the id may be used again; it is over"
    SIDR_REQ_RECEIVED = "SidrReq: answer with send_sidr_rep"
    SIDR_REQ_ERROR = "nothing: the SIDR_REQ was not answered in time; it is over"
    SIDR_REP_RECEIVED = "SidrRep: the queue pair of the service, or why not; it is over"


class Event(Record):
    """An event for the layer above."""

    type: EventType
    source: Exchange  # the connection or resolution that it happened to
    message: CmMessage | None = None  # as it came, private data with the zeros that fill it up
    attr_mod: int = 0  # the ECE options, in a REQ, REP or SIDR_REP
    listener: Exchange | None = None  # whose service id a REQ or SIDR_REQ asks for
    gone: bool = False  # with an ERROR: the peer's process has died, no time has run out


class Send(Record):
    """A datagram to send."""

    dest: Address
    mad: MAD


class Statistics(Record):
    """Counters of the communication manager."""

    exchanges: int  # connections and resolutions that exist, TIMEWAIT included
    listeners: int
    sent: Mapping[str, int]  # messages by name, repetitions included
    received: Mapping[str, int]  # messages by name, those that are dropped included
    resent: int  # messages that were sent again because no answer came
    dropped: Mapping[str, int]  # datagrams that changed nothing, by reason
