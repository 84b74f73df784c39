# SPDX-License-Identifier: Apache-2.0
"""Which connection service serves a device: the one table."""

from __future__ import annotations

from collections.abc import Callable
from errno import EOPNOTSUPP
from typing import TYPE_CHECKING

from rnic.enums import Transport
from rnic.errors import VerbsError
from rnic.rdmacm.ibcm.manager import IbService
from rnic.rdmacm.service import ConnectionService

if TYPE_CHECKING:
    from rnic.rdmacm.agent import Agent

SERVICES: dict[Transport, Callable[[Agent], ConnectionService]] = {
    Transport.IB: IbService,
}
"""By the transport of a device; InfiniBand's is RoCE's, too."""


def service_of(agent: Agent) -> ConnectionService:
    """Make the service for an agent's device. Raises VerbsError: EOPNOTSUPP if its transport has none."""
    transport = agent.context.device.transport
    make = SERVICES.get(transport)
    if make is None:
        text = f"{agent.context.name} has transport {transport.name}, which no connection service supports"
        raise VerbsError(EOPNOTSUPP, text, "open_device")
    return make(agent)
