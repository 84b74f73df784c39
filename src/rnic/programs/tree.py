# SPDX-License-Identifier: Apache-2.0
"""The files that a kernel with RDMA drivers shows of its devices, in a folder: sysfs and /dev/infiniband.

They are as the devices are when the tree is made. src/preload leads programs here; what it redirects and what
this module makes belong together.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from rnic.enums import GIDType, PortState
from rnic.errors import VerbsError
from rnic.verbs.context import Context
from rnic.verbs.device import Device, format_guid

UVERBS_ABI, RDMA_CM_ABI = 6, 4  # of the kernel's headers
NULL = "/dev/null"
NULL_NUMBERS = "1:3"  # of a device file that is a link to NULL
_PORT = 1
_DOMAIN = "ffff"  # of PCI: no machine has it
_VENDOR, _PART, _CLASS = 0x524E, 0x0001, 0x020000  # "RN", nobody's number; an Ethernet controller
_CPUS = os.cpu_count() or 1
_ALL = f"0-{_CPUS - 1}"
_ONES = f"{(1 << _CPUS) - 1:x}"
_EMPTY = ":".join(["0000"] * 8)
_STATES = {PortState.DOWN: "1: DOWN", PortState.INIT: "2: INIT", PortState.ARMED: "3: ARMED"}
_ACTIVE, _UP, _POLLING = "4: ACTIVE", "5: LinkUp", "3: Disabled"
_GID_TYPES = {GIDType.IB: "IB/RoCE v1", GIDType.ROCE_V1: "IB/RoCE v1", GIDType.ROCE_V2: "RoCE v2"}
_LANES = {1: 1, 2: 4, 4: 8, 8: 12, 16: 2}  # IBA 14.2.5.6
_GBITS = {1: 2.5, 2: 5, 4: 10, 8: 10, 16: 14, 32: 25, 64: 50, 128: 100}


def make(root: Path) -> None:
    """Make the tree in an existing folder, without devices."""
    for folder in ("sys/class/infiniband", "sys/class/infiniband_verbs", "sys/class/misc/rdma_cm"):
        (root / folder).mkdir(parents=True)
    _write(root / "sys/class/infiniband_verbs", [("abi_version", str(UVERBS_ABI))])
    _write(root / "sys/class/misc/rdma_cm", [("abi_version", str(RDMA_CM_ABI)), ("dev", NULL_NUMBERS)])
    devices = root / "dev/infiniband"
    devices.mkdir(parents=True)
    (devices / "rdma_cm").symlink_to(NULL)


def add(root: Path, number: int, device: Device, context: Context | None) -> None:
    """Add a device: its folder, those of its parts, and the links of the classes.

    Without a context it cannot be opened: programs will hear why.
    """
    (root / "dev/infiniband" / f"uverbs{number}").symlink_to(NULL)
    sys = root / "sys"
    slot = f"{_DOMAIN}:{number + 1:02x}:00.0"
    parent = sys / f"devices/pci{_DOMAIN}:00" / slot
    own, verbs = parent / "infiniband" / device.name, parent / "infiniband_verbs" / f"uverbs{number}"
    _write(parent, _of_pci(slot, device.netdev))
    (parent / "net").mkdir()
    (parent / "net" / device.netdev).symlink_to(f"/sys/class/net/{device.netdev}")
    _write(verbs, [("ibdev", device.name), ("abi_version", "1"), ("dev", NULL_NUMBERS)])
    _write(own, [("node_guid", device.guid_str)])
    if context is not None:
        with suppress(VerbsError):  # it has gone meanwhile
            _write(own, _of_device(device, context))
            _write(own / "ports" / str(_PORT), _of_port(context))
    for one, name in ((own, "infiniband"), (verbs, "infiniband_verbs")):
        (one / "device").symlink_to("../..")
        link = sys / "class" / name / one.name
        link.symlink_to(os.path.relpath(one, link.parent))


def _write(folder: Path, files: Iterable[tuple[str, str]]) -> None:
    """Write files, each of a line; a name comes once. Those with the same line are one file with several
    names: most entries of tables are empty, and a file system takes long to make files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    first: dict[str, Path] = {}  # by line
    for name, text in files:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if text not in first or not _link(path, first[text]):
            path.write_text(text + "\n")
            first[text] = path


def _link(path: Path, to: Path) -> bool:
    try:
        path.hardlink_to(to)
    except OSError:  # some file systems have no such links, and all have a limit
        return False
    return True


def _of_pci(slot: str, netdev: str) -> Iterator[tuple[str, str]]:
    """A card in a slot that no machine has; near the processors that the network interface is near."""
    yield "vendor", f"0x{_VENDOR:04x}"
    yield "device", f"0x{_PART:04x}"
    yield "subsystem_vendor", f"0x{_VENDOR:04x}"
    yield "subsystem_device", f"0x{_PART:04x}"
    yield "class", f"0x{_CLASS:06x}"
    yield "revision", "0x00"
    yield "enable", "1"
    yield "irq", "0"
    for name, otherwise in (("numa_node", "0"), ("local_cpus", _ONES), ("local_cpulist", _ALL)):
        yield name, _real(netdev, name, otherwise)
    for which in ("current", "max"):
        yield f"{which}_link_speed", "16.0 GT/s PCIe"
        yield f"{which}_link_width", "16"
    yield "uevent", f"PCI_CLASS={_CLASS:X}\nPCI_ID={_VENDOR:04X}:{_PART:04X}\nPCI_SLOT_NAME={slot}"


def _real(netdev: str, name: str, otherwise: str) -> str:
    """What the kernel says of the network interface's own card, if it is on one."""
    try:
        text = Path(f"/sys/class/net/{netdev}/device/{name}").read_text().strip()
    except OSError:
        return otherwise
    return otherwise if text in ("", "-1") else text


def _of_device(device: Device, context: Context) -> Iterator[tuple[str, str]]:
    attr = context.query_device()
    yield "node_type", f"{int(device.node_type)}: {device.node_type.name}"
    yield "sys_image_guid", format_guid(attr.sys_image_guid)
    yield "fw_ver", attr.fw_ver
    yield "hca_type", "rnic"
    yield "board_id", "rnic"
    yield "hw_rev", f"{attr.hw_ver:x}"
    yield "node_desc", device.name


def _of_port(context: Context) -> Iterator[tuple[str, str]]:
    attr = context.query_port(_PORT)
    lanes, gbits = _LANES.get(attr.active_width, 1), _GBITS.get(attr.active_speed, 2.5)
    yield "state", _STATES.get(attr.state, _ACTIVE)
    yield "phys_state", _UP if attr.state is PortState.ACTIVE else _POLLING
    yield "link_layer", "Ethernet"
    yield "rate", f"{lanes * gbits:g} Gb/sec ({lanes}X)"
    yield "lid", hex(attr.lid)
    yield "lid_mask_count", str(attr.lmc)
    yield "sm_lid", hex(attr.sm_lid)
    yield "sm_sl", str(attr.sm_sl)
    yield "cap_mask", f"0x{attr.port_cap_flags:08x}"
    gids = dict.fromkeys(range(attr.gid_tbl_len), _EMPTY)
    for entry in context.query_gid_table():
        digits = entry.gid.raw.hex()
        gids[entry.gid_index] = ":".join(digits[i : i + 4] for i in range(0, 32, 4))
        yield f"gid_attrs/types/{entry.gid_index}", _GID_TYPES[entry.gid_type]
        yield f"gid_attrs/ndevs/{entry.gid_index}", context.device.netdev
    for index, text in gids.items():
        yield f"gids/{index}", text
    for index in range(attr.pkey_tbl_len):
        yield f"pkeys/{index}", f"0x{context.query_pkey(_PORT, index):04x}"
