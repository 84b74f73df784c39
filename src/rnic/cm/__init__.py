# SPDX-License-Identifier: Apache-2.0
"""Connection management: protocol tables and timers, without I/O and without a clock."""

from rnic.cm.conn_table import INDEX_BITS, SLOT_BITS, ConnTable, receiver_id, slot_of
from rnic.cm.connection import Connection
from rnic.cm.events import Address, Event, EventType, Send, Statistics
from rnic.cm.exchange import Exchange
from rnic.cm.ib_cm import IbCm
from rnic.cm.sidr import Listener, Resolution
from rnic.cm.states import HALF_OPEN, TABLE, Action, Input, Row, State, markdown
from rnic.cm.timing import (
    LONGEST,
    LONGEST_ACK,
    MAX_CM_RETRIES,
    PACKET_LIFE_TIME,
    RESPONSE_TIMEOUT,
    ack_timeout,
    iba_ns,
    peer_ack_timeout,
)

__all__ = [
    "HALF_OPEN",
    "INDEX_BITS",
    "LONGEST",
    "LONGEST_ACK",
    "MAX_CM_RETRIES",
    "PACKET_LIFE_TIME",
    "RESPONSE_TIMEOUT",
    "SLOT_BITS",
    "TABLE",
    "Action",
    "Address",
    "ConnTable",
    "Connection",
    "Event",
    "EventType",
    "Exchange",
    "IbCm",
    "Input",
    "Listener",
    "Resolution",
    "Row",
    "Send",
    "State",
    "Statistics",
    "ack_timeout",
    "iba_ns",
    "markdown",
    "peer_ack_timeout",
    "receiver_id",
    "slot_of",
]
