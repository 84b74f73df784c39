# SPDX-License-Identifier: Apache-2.0
"""What a kernel with RDMA drivers answers to rdma(8), as netlink messages in files of a folder.

A file is named by the type of the request and, if that is of one device, by the device's index. Its messages
are complete but for the numbers of the request, which src/preload/nldev.c fills in.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from enum import IntEnum
from pathlib import Path

from rnic.enums import PortState, Transport
from rnic.errors import VerbsError
from rnic.verbs.context import Context
from rnic.verbs.device import Device

NLDEV = 5  # the client of these messages (rdma/rdma_netlink.h)
MULTI = 2  # NLM_F_MULTI
PORT = 1
LINK_UP, DISABLED = 5, 3  # physical states of a port (IBA 14.2.5.6)
_PROTOCOLS = {Transport.IB: "roce", Transport.IWARP: "iw"}


class Cmd(IntEnum):
    """What is asked for."""

    GET = 1
    PORT_GET = 5


class Attr(IntEnum):
    """An attribute of a device or a port."""

    DEV_INDEX = 1
    DEV_NAME = 2
    PORT_INDEX = 3
    FW_VERSION = 5
    NODE_GUID = 6
    SYS_IMAGE_GUID = 7
    PORT_STATE = 12
    PORT_PHYS_STATE = 13
    DEV_NODE_TYPE = 14
    NDEV_INDEX = 50
    NDEV_NAME = 51
    DEV_PROTOCOL = 67


def kind(cmd: Cmd) -> int:
    """The type of a command's messages."""
    return NLDEV << 10 | cmd


def make(root: Path) -> None:
    """Make the folder of the answers in an existing one, without devices."""
    _everyone(root).parent.mkdir()
    _everyone(root).touch()


def add(root: Path, index: int, device: Device, context: Context | None) -> None:
    """Add the answers about a device. Without a context it cannot be opened: programs will hear why."""
    folder = _everyone(root).parent
    about, port = list(_names(index, device)), list[bytes]()
    if context is not None:
        with suppress(VerbsError):  # it has gone meanwhile
            about, port = list(_of_device(index, context)), list(_of_port(index, context))
    with _everyone(root).open("ab") as everyone:
        everyone.write(_message(Cmd.GET, about, MULTI))
    (folder / f"{kind(Cmd.GET)}.{index}").write_bytes(_message(Cmd.GET, about))
    if port:
        (folder / f"{kind(Cmd.PORT_GET)}.{index}").write_bytes(_message(Cmd.PORT_GET, port))


def _everyone(root: Path) -> Path:
    return root / "netlink" / str(kind(Cmd.GET))


def _message(cmd: Cmd, attributes: list[bytes], flags: int = 0) -> bytes:
    body = b"".join(attributes)
    return struct.pack("=IHHII", 16 + len(body), kind(cmd), flags, 0, 0) + body


def _attribute(name: Attr, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), name) + value + bytes(-len(value) % 4)


def _number(name: Attr, value: int, size: str = "I") -> bytes:
    return _attribute(name, struct.pack(f"={size}", value))


def _text(name: Attr, value: str) -> bytes:
    return _attribute(name, value.encode() + b"\0")


def _names(index: int, device: Device) -> Iterator[bytes]:
    yield _number(Attr.DEV_INDEX, index)
    yield _text(Attr.DEV_NAME, device.name)


def _of_device(index: int, context: Context) -> Iterator[bytes]:
    attr, device = context.query_device(), context.device
    yield from _names(index, device)
    yield _number(Attr.PORT_INDEX, attr.phys_port_cnt)  # of ports: how many there are
    yield _text(Attr.FW_VERSION, attr.fw_ver)
    yield _number(Attr.NODE_GUID, device.guid, "Q")
    yield _number(Attr.SYS_IMAGE_GUID, attr.sys_image_guid, "Q")
    yield _number(Attr.DEV_NODE_TYPE, int(device.node_type), "B")
    yield _text(Attr.DEV_PROTOCOL, _PROTOCOLS.get(device.transport, "unknown"))


def _of_port(index: int, context: Context) -> Iterator[bytes]:
    state, device = context.query_port(PORT).state, context.device
    yield from _names(index, device)
    yield _number(Attr.PORT_INDEX, PORT)
    yield _number(Attr.PORT_STATE, int(state), "B")
    yield _number(Attr.PORT_PHYS_STATE, LINK_UP if state is PortState.ACTIVE else DISABLED, "B")
    yield _number(Attr.NDEV_INDEX, device.index)
    yield _text(Attr.NDEV_NAME, device.netdev)
