# SPDX-License-Identifier: Apache-2.0
"""MPA's start-up, by which a TCP connection becomes one of iWARP: without I/O and without a clock (RFC 5044,
RFC 6581).
"""

from rnic.mpa.agreement import PRIVATE_BYTES, Agreed, Depths, Options, Rtr, wishes
from rnic.mpa.startup import Event, EventType, Startup
from rnic.mpa.states import TABLE, Action, Input, Row, State, markdown

__all__ = [
    "PRIVATE_BYTES",
    "TABLE",
    "Action",
    "Agreed",
    "Depths",
    "Event",
    "EventType",
    "Input",
    "Options",
    "Row",
    "Rtr",
    "Startup",
    "State",
    "markdown",
    "wishes",
]
