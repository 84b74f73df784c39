# SPDX-License-Identifier: Apache-2.0
"""RDMA verbs from Python, over a software NIC that speaks RoCEv2: no kernel module, no root, no hardware.

Names and semantics are libibverbs' (its man pages apply), as methods of the object they act on.

Layers, top down: this facade; `rnic.verbs`, the objects and records; `rnic._nic`, the binding; `src/nic`, the
device in C.  `rnic.enums` and `rnic.errors` are leaves that all of them use.
"""

import importlib as _importlib
import typing as _typing

from rnic._nic.nic import CQ, MR, SGE, WC, CompChannel, RecvWR, SendWR
from rnic.conn import Connection, Listener, connect, listen
from rnic.enums import (
    MTU,
    AccessFlags,
    AtomicCap,
    CounterDescription,
    DeviceCap,
    EventType,
    FlowAttrType,
    FlowFlags,
    FlowSpecType,
    GIDType,
    LinkLayer,
    MigState,
    NodeType,
    PortState,
    QPAttrMask,
    QPState,
    QPType,
    RawPacketCaps,
    RxHashFields,
    RxHashFunction,
    SendFlags,
    SRQAttrMask,
    Transport,
    WCFlags,
    WCOpcode,
    WCStatus,
    WQAttrMask,
    WQFlags,
    WQState,
    WQType,
    WROpcode,
)
from rnic.errors import PostError, VerbsError
from rnic.verbs.ah import AH, GID, AHAttr, Route
from rnic.verbs.context import AsyncEvent, Context, DeviceAttr, GIDEntry, PortAttr
from rnic.verbs.counters import Counters
from rnic.verbs.counters_flow import FlowCounters
from rnic.verbs.device import Device, format_guid, get_device_list, open_device
from rnic.verbs.faults import Faults, Lose
from rnic.verbs.flow import (
    Flow,
    FlowAttr,
    SpecActionCount,
    SpecActionDrop,
    SpecActionTag,
    SpecEth,
    SpecIPv4,
    SpecIPv4Ext,
    SpecIPv6,
    SpecTCP,
    SpecUDP,
)
from rnic.verbs.pd import PD
from rnic.verbs.qp import QP, QPAttr, QPCap, QPInitAttr, QPStats
from rnic.verbs.srq import SRQ, SRQAttr, SRQInitAttr
from rnic.verbs.wq import (
    WQ,
    RawPacketAttr,
    RSSCaps,
    RwqIndTable,
    RwqIndTableInitAttr,
    RxHashConf,
    TSOCaps,
    WQAttr,
    WQInitAttr,
)

if _typing.TYPE_CHECKING:
    from rnic import aio
else:

    def __getattr__(name: str) -> object:
        """`rnic.aio` is imported when it is first asked for: asyncio takes as long as half of the rest."""
        if name == "aio":
            return _importlib.import_module("rnic.aio")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


__all__ = [
    # devices
    "get_device_list",
    "open_device",
    "format_guid",
    "Device",
    "Context",
    "DeviceAttr",
    "PortAttr",
    "GIDEntry",
    "AsyncEvent",
    "Counters",
    "Faults",
    "Lose",
    # objects
    "PD",
    "MR",
    "CompChannel",
    "CQ",
    "SRQ",
    "QP",
    "AH",
    # attributes and addresses
    "QPInitAttr",
    "QPCap",
    "QPAttr",
    "QPStats",
    "SRQInitAttr",
    "SRQAttr",
    "AHAttr",
    "Route",
    "GID",
    # frames: steering and spreading
    "RawPacketAttr",
    "RSSCaps",
    "TSOCaps",
    "Flow",
    "FlowAttr",
    "FlowCounters",
    "SpecEth",
    "SpecIPv4",
    "SpecIPv4Ext",
    "SpecIPv6",
    "SpecTCP",
    "SpecUDP",
    "SpecActionTag",
    "SpecActionDrop",
    "SpecActionCount",
    "WQ",
    "WQInitAttr",
    "WQAttr",
    "RwqIndTable",
    "RwqIndTableInitAttr",
    "RxHashConf",
    # work
    "SGE",
    "SendWR",
    "RecvWR",
    "WC",
    # connections
    "aio",
    "connect",
    "listen",
    "Connection",
    "Listener",
    # errors
    "VerbsError",
    "PostError",
    # enumerations
    "AccessFlags",
    "AtomicCap",
    "DeviceCap",
    "EventType",
    "GIDType",
    "LinkLayer",
    "MTU",
    "MigState",
    "NodeType",
    "PortState",
    "QPAttrMask",
    "QPState",
    "QPType",
    "SRQAttrMask",
    "SendFlags",
    "Transport",
    "WCFlags",
    "WCOpcode",
    "WCStatus",
    "WROpcode",
    "CounterDescription",
    "FlowAttrType",
    "FlowFlags",
    "FlowSpecType",
    "RawPacketCaps",
    "RxHashFields",
    "RxHashFunction",
    "WQAttrMask",
    "WQFlags",
    "WQState",
    "WQType",
]
