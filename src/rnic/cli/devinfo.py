# SPDX-License-Identifier: Apache-2.0
"""The layout of ibv_devinfo, and the same facts as JSON: pure functions, which open no device."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

TRANSPORTS = {0: "InfiniBand", 1: "iWARP"}
PORT_STATES = {1: "PORT_DOWN", 2: "PORT_INIT", 3: "PORT_ARMED", 4: "PORT_ACTIVE"}
PHYS_STATES = {
    1: "SLEEP",
    2: "POLLING",
    3: "DISABLED",
    4: "PORT_CONFIGURATION_TRAINING",
    5: "LINK_UP",
    6: "LINK_ERROR_RECOVERY",
    7: "PHY_TEST",
}
ATOMIC_CAPS = {0: "ATOMIC_NONE", 1: "ATOMIC_HCA", 2: "ATOMIC_GLOB"}
LINK_LAYERS = {0: "InfiniBand", 1: "InfiniBand", 2: "Ethernet"}
WIDTHS = {1: "1X", 2: "4X", 4: "8X", 8: "12X", 16: "2X"}
SPEEDS = {
    1: "2.5 Gbps",
    2: "5.0 Gbps",
    4: "10.0 Gbps",
    8: "10.0 Gbps",
    16: "14.0 Gbps",
    32: "25.0 Gbps",
    64: "50.0 Gbps",
}
VL_NUMS = {1: "1", 2: "2", 3: "4", 4: "8", 5: "15"}
GID_TYPES = {0: "IB/RoCE v1", 1: "IB/RoCE v1", 2: "RoCE v2"}

# Bits of device_cap_flags, as libibverbs names them (enum ibv_device_cap_flags).
CAP_FLAGS = {
    0: "RESIZE_MAX_WR",
    1: "BAD_PKEY_CNTR",
    2: "BAD_QKEY_CNTR",
    3: "RAW_MULTI",
    4: "AUTO_PATH_MIG",
    5: "CHANGE_PHY_PORT",
    6: "UD_AV_PORT_ENFORCE",
    7: "CURR_QP_STATE_MOD",
    8: "SHUTDOWN_PORT",
    9: "INIT_TYPE",
    10: "PORT_ACTIVE_EVENT",
    11: "SYS_IMAGE_GUID",
    12: "RC_RNR_NAK_GEN",
    13: "SRQ_RESIZE",
    14: "N_NOTIFY_CQ",
    17: "MEM_WINDOW",
    18: "UD_IP_CSUM",
    20: "XRC",
    21: "MEM_MGT_EXTENSIONS",
    23: "MEM_WINDOW_TYPE_2A",
    24: "MEM_WINDOW_TYPE_2B",
    25: "RC_IP_CSUM",
    26: "RAW_IP_CSUM",
    29: "MANAGED_FLOW_STEERING",
}

# What -v adds of the device, in ibv_devinfo's order: field, format.  A field that DeviceAttr lacks is 0.
DEVICE_LIMITS = (
    ("max_mr_size", "0x{:x}"),
    ("page_size_cap", "0x{:x}"),
    ("max_qp", "{}"),
    ("max_qp_wr", "{}"),
    ("device_cap_flags", "0x{:08x}"),
    ("max_sge", "{}"),
    ("max_sge_rd", "{}"),
    ("max_cq", "{}"),
    ("max_cqe", "{}"),
    ("max_mr", "{}"),
    ("max_pd", "{}"),
    ("max_qp_rd_atom", "{}"),
    ("max_ee_rd_atom", "{}"),
    ("max_res_rd_atom", "{}"),
    ("max_qp_init_rd_atom", "{}"),
    ("max_ee_init_rd_atom", "{}"),
    ("atomic_cap", "{}"),
    ("max_ee", "{}"),
    ("max_rdd", "{}"),
    ("max_mw", "{}"),
    ("max_raw_ipv6_qp", "{}"),
    ("max_raw_ethy_qp", "{}"),
    ("max_mcast_grp", "{}"),
    ("max_mcast_qp_attach", "{}"),
    ("max_total_mcast_qp_attach", "{}"),
    ("max_ah", "{}"),
    ("max_fmr", "{}"),
    ("max_srq", "{}"),
    ("max_srq_wr", "{}"),
    ("max_srq_sge", "{}"),
    ("max_pkeys", "{}"),
    ("local_ca_ack_delay", "{}"),
)
ONLY_WITH_SRQ = {"max_srq_wr", "max_srq_sge"}

# Column at which values begin: 40 of a device's fields, 48 of a port's, as tabs make it in ibv_devinfo.
DEVICE_COLUMN, PORT_COLUMN = 40, 48
FLAG_INDENT = " " * 40


def guid(value: int | str) -> str:
    """0x02fc00fffe000001 -> "02fc:00ff:fe00:0001"; a text stays as it is."""
    if isinstance(value, str):
        return value
    digits = f"{int(value):016x}"
    return ":".join(digits[i : i + 4] for i in range(0, 16, 4))


def named(table: dict[int, str], value: int) -> str:
    """ "PORT_ACTIVE (4)"."""
    return f"{table.get(int(value), 'invalid')} ({int(value)})"


def mtu(value: int) -> str:
    """ "4096 (5)"."""
    return f"{128 << int(value)} ({int(value)})" if 1 <= value <= 5 else f"invalid MTU ({int(value)})"


def cap_flag_names(flags: int) -> list[str]:
    """The names of the bits; a bit without a name is a number."""
    names = [name for bit, name in CAP_FLAGS.items() if flags >> bit & 1]
    unknown = flags & ~sum(1 << bit for bit in CAP_FLAGS)
    return names + ([f"Unknown flags: 0x{unknown:X}"] if unknown else [])


def device_line(name: str, value: object) -> str:
    return f"        {name + ':':<{DEVICE_COLUMN - 8}}{value}"


def port_line(name: str, value: object) -> str:
    return f"                        {name + ':':<{PORT_COLUMN - 24}}{value}"


def device_lines(device: Any, attr: Any, extended: Any = None, *, verbose: bool) -> Iterator[str]:
    """What ibv_devinfo prints of a device (rnic's Device, DeviceAttr and DeviceAttrEx), above its ports."""
    yield f"hca_id: {device.name}"
    yield device_line("transport", named(TRANSPORTS, device.transport))
    if attr.fw_ver:
        yield device_line("fw_ver", attr.fw_ver)
    yield device_line("node_guid", guid(attr.node_guid))
    yield device_line("sys_image_guid", guid(attr.sys_image_guid))
    yield device_line("vendor_id", f"0x{attr.vendor_id:04x}")
    yield device_line("vendor_part_id", attr.vendor_part_id)
    yield device_line("hw_ver", f"0x{attr.hw_ver:X}")
    yield device_line("phys_port_cnt", attr.phys_port_cnt)
    if verbose:
        yield from limit_lines(attr)
        yield from clock_lines(extended)
        yield "        tag matching not supported"


def limit_lines(attr: Any) -> Iterator[str]:
    """The limits and capabilities that -v adds."""
    for name, layout in DEVICE_LIMITS:
        value = getattr(attr, name, 0)
        if name in ONLY_WITH_SRQ and not attr.max_srq:
            continue
        if name == "atomic_cap":
            yield device_line(name, named(ATOMIC_CAPS, value))
        else:
            yield device_line(name, layout.format(int(value)))
        if name == "device_cap_flags":
            yield from (FLAG_INDENT + flag for flag in cap_flag_names(int(value)))
    yield "        general_odp_caps:"
    for service in ("rc", "uc", "ud", "xrc"):
        yield f"        {service}_odp_caps:"
        yield FLAG_INDENT + "NO SUPPORT"


def clock_lines(extended: Any) -> Iterator[str]:
    """What -v says of timestamps; a device that knows no more than DeviceAttr has none."""
    mask, clock = (getattr(extended, name, 0) for name in ("completion_timestamp_mask", "hca_core_clock"))
    if mask:
        yield f"        {'completion timestamp_mask:':<48}0x{mask:016x}"
    else:
        yield "        completion_timestamp_mask not supported"
    yield device_line("hca_core_clock", f"{clock}kHZ") if clock else "        core clock not supported"


def frame_lines(extended: Any, frames: Any) -> Iterator[str]:
    """What -v adds of frames, of RAW_PACKET queue pairs (rnic's DeviceAttrEx and RawPacketAttr)."""
    rss = extended.rss_caps
    yield "        rss_caps:"
    for name in ("max_rwq_indirection_tables", "max_rwq_indirection_table_size"):
        yield f"                {name}: {getattr(rss, name)}"
    yield f"                rx_hash_function: 0x{int(rss.rx_hash_function):x}"
    yield f"                rx_hash_fields_mask: 0x{int(rss.rx_hash_fields_mask):x}"
    yield device_line("max_wq_type_rq", extended.max_wq_type_rq)
    yield device_line("raw_packet_caps", f"0x{int(extended.raw_packet_caps):x}")
    where = "by the network device" if frames.wire else f"within one context alone: {frames.why}"
    yield device_line("raw packets", where)


def frame_record(extended: Any, frames: Any) -> dict[str, Any]:
    """The same for JSON."""
    return {
        "max_rwq_indirection_tables": extended.rss_caps.max_rwq_indirection_tables,
        "max_rwq_indirection_table_size": extended.rss_caps.max_rwq_indirection_table_size,
        "rx_hash_fields_mask": plain(extended.rss_caps.rx_hash_fields_mask),
        "max_wq_type_rq": extended.max_wq_type_rq,
        "raw_packet_caps": plain(extended.raw_packet_caps),
        "max_frame": frames.max_frame,
        "wire": frames.wire,
        "why": frames.why,
    }


def port_lines(device: Any, number: int, attr: Any, gids: list[Any], *, verbose: bool) -> Iterator[str]:
    """What ibv_devinfo prints of a port; attr and gids are rnic's PortAttr and GIDEntry."""
    yield f"                port:   {number}"
    yield port_line("state", named(PORT_STATES, attr.state))
    yield port_line("max_mtu", mtu(attr.max_mtu))
    yield port_line("active_mtu", mtu(attr.active_mtu))
    yield port_line("sm_lid", attr.sm_lid)
    yield port_line("port_lid", attr.lid)
    yield port_line("port_lmc", f"0x{attr.lmc:02x}")
    yield port_line("link_layer", LINK_LAYERS.get(int(attr.link_layer), "Unknown"))
    if verbose:
        yield from port_limit_lines(device, attr)
        yield from (gid_line(entry) for entry in gids)


def port_limit_lines(device: Any, attr: Any) -> Iterator[str]:
    """The attributes of a port that -v adds."""
    yield port_line("max_msg_sz", f"0x{attr.max_msg_sz:x}")
    yield port_line("port_cap_flags", f"0x{attr.port_cap_flags:08x}")
    yield port_line("port_cap_flags2", f"0x{getattr(attr, 'port_cap_flags2', 0):04x}")
    yield port_line("max_vl_num", named(VL_NUMS, attr.max_vl_num))
    yield port_line("bad_pkey_cntr", f"0x{attr.bad_pkey_cntr:x}")
    yield port_line("qkey_viol_cntr", f"0x{attr.qkey_viol_cntr:x}")
    for name in ("sm_sl", "pkey_tbl_len", "gid_tbl_len", "subnet_timeout", "init_type_reply"):
        yield port_line(name, getattr(attr, name))
    yield port_line("active_width", named(WIDTHS, attr.active_width))
    yield port_line("active_speed", named(SPEEDS, attr.active_speed))
    if int(device.transport) == 0:
        yield port_line("phys_state", named(PHYS_STATES, attr.phys_state))


def gid_line(entry: Any) -> str:
    """ "GID[  1]:   ::ffff:192.0.2.2, RoCE v2"."""
    kind = GID_TYPES.get(int(entry.gid_type), f"type {int(entry.gid_type)}")
    return port_line(f"GID[{entry.gid_index:3}]", f"{gid_text(entry.gid)}, {kind}")


def gid_text(gid: Any) -> str:
    return socket.inet_ntop(socket.AF_INET6, bytes(gid.raw))


def device_record(device: Any, attr: Any, ports: list[dict[str, Any]]) -> dict[str, Any]:
    """A device for JSON: ibv_devinfo's names, numbers as numbers, names beside the numbers that have some."""
    names = ["fw_ver", "vendor_id", "vendor_part_id", "hw_ver", "phys_port_cnt", "max_inline_data"]
    names += [name for name, _ in DEVICE_LIMITS]
    return {
        "hca_id": device.name,
        "netdev": device.netdev,
        "transport": TRANSPORTS.get(int(device.transport), "invalid"),
        "node_guid": guid(attr.node_guid),
        "sys_image_guid": guid(attr.sys_image_guid),
        **{name: plain(getattr(attr, name)) for name in names if hasattr(attr, name)},
        "device_caps": cap_flag_names(int(attr.device_cap_flags)),
        "ports": ports,
    }


PORT_FIELDS = (
    "state",
    "max_mtu",
    "active_mtu",
    "sm_lid",
    "lid",
    "lmc",
    "max_msg_sz",
    "port_cap_flags",
    "max_vl_num",
    "bad_pkey_cntr",
    "qkey_viol_cntr",
    "sm_sl",
    "pkey_tbl_len",
    "gid_tbl_len",
    "subnet_timeout",
    "init_type_reply",
    "active_width",
    "active_speed",
    "phys_state",
)


def port_record(number: int, attr: Any, gids: list[Any]) -> dict[str, Any]:
    """A port for JSON, with its GID table; max_mtu and active_mtu in bytes."""
    record: dict[str, Any] = {"port": number, **{name: plain(getattr(attr, name)) for name in PORT_FIELDS}}
    record["state"] = PORT_STATES.get(int(attr.state), "invalid")
    record["phys_state"] = PHYS_STATES.get(int(attr.phys_state), "invalid")
    record["link_layer"] = LINK_LAYERS.get(int(attr.link_layer), "Unknown")
    for name in ("max_mtu", "active_mtu"):
        record[name] = 128 << int(getattr(attr, name))
    record["gids"] = [
        {
            "index": int(entry.gid_index),
            "gid": gid_text(entry.gid),
            "type": GID_TYPES.get(int(entry.gid_type), str(int(entry.gid_type))),
        }
        for entry in gids
    ]
    return record


def plain(value: Any) -> int | str:
    """An attribute as JSON has it: an enumeration's member becomes its number."""
    return value if isinstance(value, str) else int(value)
