# SPDX-License-Identifier: Apache-2.0
"""Which connection service serves a device: the one table."""

from __future__ import annotations

from collections.abc import Callable
from errno import EOPNOTSUPP
from typing import TYPE_CHECKING

from rnic.enums import Transport
from rnic.errors import VerbsError
from rnic.rdmacm.ibcm.door import IbDoor
from rnic.rdmacm.ibcm.manager import IbService
from rnic.rdmacm.iwcm.door import IwDoor
from rnic.rdmacm.iwcm.manager import IwService
from rnic.rdmacm.iwcm.manager import serves as iwcm_serves
from rnic.rdmacm.service import ConnectionService, Door, OpenAt

if TYPE_CHECKING:
    from rnic.rdmacm.agent import Agent
    from rnic.rdmacm.cm_id import CmId
    from rnic.rdmacm.reactor import Reactor
    from rnic.verbs.device import Device

SERVICES: dict[Transport, Callable[[Agent], ConnectionService]] = {
    Transport.IB: IbService,
    Transport.IWARP: IwService,
}
"""By the transport of a device; InfiniBand's is RoCE's, too."""


_SERVED: dict[Transport, Callable[[CmId], bool]] = {
    Transport.IWARP: iwcm_serves,
}
"""Where a service is not for every id: whether it is for this one."""


def serves(device: Device, one: CmId) -> bool:
    """Whether an id of this port space and type can use a device."""
    check = _SERVED.get(device.transport)
    return check is None or check(one)


def has_door(device: Device) -> bool:
    """Whether an id can listen at all addresses without the device's being open."""
    return device.provider == "soft" and SERVICES.get(device.transport) in (IbService, IwService)


def doors_of(reactor: Reactor, open_at: OpenAt, agents: Callable[[], list[Agent]]) -> dict[Transport, Door]:
    """Make the doors of the services that have one."""
    return {Transport.IB: IbDoor(reactor, open_at, agents), Transport.IWARP: IwDoor(reactor, open_at)}


def service_of(agent: Agent) -> ConnectionService:
    """Make the service for an agent's device. Raises VerbsError: EOPNOTSUPP if its transport has none."""
    transport = agent.transport
    make = SERVICES.get(transport)
    if make is None:
        text = f"{agent.context.name} has transport {transport.name}, which no connection service supports"
        raise VerbsError(EOPNOTSUPP, text, "open_device")
    return make(agent)
