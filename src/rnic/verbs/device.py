# SPDX-License-Identifier: Apache-2.0
"""Devices: list them and open them."""

import errno
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypeVar

from rnic._nic import nic
from rnic.enums import NodeType, Transport
from rnic.errors import VerbsError
from rnic.records import Record
from rnic.wording import WHY_NO_DEVICE

if TYPE_CHECKING:
    from rnic.verbs.context import Context

__all__ = ["Device", "format_guid", "get_device_list", "import_device", "open_device"]

_Enum = TypeVar("_Enum", bound=IntEnum)


def _known(kind: type[_Enum], value: int, otherwise: _Enum) -> _Enum:
    """The member of that value; a provider may have devices of kinds that have no name here."""
    return kind(value) if value in kind.__members__.values() else otherwise


class Device(Record):
    """A device in the list, not yet opened (ibv_get_device_list(3)), such as a software RNIC on one network
    interface.
    """

    name: str
    """Of a software RNIC "roce_" or "iwarp_", and the name of the network interface."""
    netdev: str
    """The network interface, by its name; "" if the device has none."""
    guid: int
    """EUI-64 of the network interface's hardware address; of an iWARP device another one, made of it."""
    index: int
    """Index of the network interface; 0 if the device has none."""
    transport: Transport
    """The protocol family."""
    node_type: NodeType
    """What kind of node it is."""
    provider: str = "soft"
    """Whose device it is: "soft" is the software RNIC."""

    @classmethod
    def from_struct(cls, info: Mapping[str, Any]) -> "Device":
        """The record of struct rnic_device_info's fields."""
        return cls(
            name=info["name"].decode(),
            netdev=info["netdev"].decode(),
            guid=info["guid"],
            index=info["ifindex"],
            transport=_known(Transport, info["transport"], Transport.UNKNOWN),
            node_type=_known(NodeType, info["node_type"], NodeType.UNKNOWN),
            provider=info["provider"],
        )

    @property
    def guid_str(self) -> str:
        """The GUID in the format of ibv_devinfo."""
        return format_guid(self.guid)

    def open(
        self,
        *,
        rcvbuf: int = 0,
        max_window: int = 0,
        gso: bool = True,
        pkeys: Sequence[int] | None = None,
        congestion_control: bool | None = None,
        local: bool | None = None,
    ) -> "Context":
        """Open this device; open_device() has the options."""
        return open_device(
            self,
            rcvbuf=rcvbuf,
            max_window=max_window,
            gso=gso,
            pkeys=pkeys,
            congestion_control=congestion_control,
            local=local,
        )


def format_guid(guid: int) -> str:
    """A GUID in the format "xxxx:xxxx:xxxx:xxxx"."""
    digits = f"{guid:016x}"
    return ":".join(digits[i : i + 4] for i in range(0, 16, 4))


def get_device_list() -> list[Device]:
    """The devices of this network namespace (ibv_get_device_list(3)).

    For each network interface with an address there is a RoCE device, and behind all of these an iWARP
    device. With $RNIC_TRANSPORT=iwarp the iWARP devices come first. Devices of other providers are last.
    """
    return [Device.from_struct(info) for info in nic.device_list()]


def open_device(
    which: str | int | Device | None = None,
    *,
    rcvbuf: int = 0,
    max_window: int = 0,
    gso: bool = True,
    pkeys: Sequence[int] | None = None,
    congestion_control: bool | None = None,
    local: bool | None = None,
) -> "Context":
    """Open a device by name, GUID (a number or its text) or Device (ibv_open_device(3)).

    None opens the device that $RNIC_DEVICE names, else the first of the list. `rcvbuf` is the size in bytes
    of the socket buffer to request (0: what the system grants). `max_window` is the most bytes that a queue
    pair may have in flight (0: what fits the socket buffer). `gso=False` sends one packet per system call.
    `pkeys` fills the port's P_Key table (IBA 10.9.1); None takes $RNIC_PKEYS, for example "0xffff,0x8001",
    else 0xFFFF alone.

    With `congestion_control`, routers may mark packets of connected queue pairs (ECN), and a queue pair whose
    packets are marked limits its rate (IBA Annex A17.9; DCQCN). None: on, except on the loopback device.

    With `local`, peers on this host are reached through shared memory, unless they refuse. None: as
    $RNIC_LOCAL says, "on" (the default) or "off".

    An iWARP device goes by TCP, to peers on this host, too. Of the options only `rcvbuf` concerns it, and it
    refuses `pkeys`.

    Raises VerbsError: ENODEV if there is no such device; EADDRINUSE if another program has UDP port 4791;
    EOPNOTSUPP for P_Keys on an iWARP device.
    """
    from rnic.verbs.context import Context

    device = find_device(which)
    if pkeys is None:  # the environment speaks to devices that have such a table
        pkeys = nic.env_pkeys() if device.transport is Transport.IB else ()
    return Context.of_device(
        device,
        rcvbuf=rcvbuf,
        max_window=max_window,
        gso=gso,
        pkeys=tuple(pkeys),
        congestion_control=congestion_control,
        local=nic.env_local() if local is None else local,
    )


def import_device(cmd_fd: int) -> "Context":
    """Open the context that a descriptor belongs to, as its Context.cmd_fd or a copy (ibv_import_device(3)).

    If this process has the context open, the result is a second object for the same context of the device.
    Each object is closed by itself, and everything of one can be imported into the other. Otherwise the
    result is a new context on the same device. Into it import_pd() and PD.import_mr() can import the other
    process' memory of PD.alloc_mr() and Context.alloc_dm(). The caller keeps `cmd_fd`, and may close it at
    once.

    Raises VerbsError: EINVAL if the descriptor is not a cmd_fd; ENODEV if the device is not in this network
    namespace; also everything that open_device() raises.
    """
    from rnic.verbs.context import Context

    return Context.of_cmd_fd(cmd_fd)


def find_device(which: str | int | Device | None) -> Device:
    """The device that open_device() opens. Raises VerbsError: ENODEV if there is none."""
    if isinstance(which, Device):
        return which
    devices = get_device_list()
    if which is None:
        which = nic.env_device()
    for device in devices:
        if which is None or which in (device.name, device.guid, device.guid_str):
            return device
    if which is None:
        raise VerbsError(errno.ENODEV, f"there is no device, {WHY_NO_DEVICE}", "open_device")
    known = ", ".join(device.name for device in devices) or f"none, {WHY_NO_DEVICE}"
    wanted = format_guid(which) if isinstance(which, int) else which
    raise VerbsError(errno.ENODEV, f"no device {wanted}; there are: {known}", "open_device")
