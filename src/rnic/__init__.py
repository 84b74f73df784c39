# SPDX-License-Identifier: Apache-2.0
"""RDMA verbs from Python, over a software NIC that speaks RoCEv2: no kernel module, no root, no hardware.

Names and semantics are libibverbs' (its man pages apply), as methods of the object they act on.

Layers, top down: this facade; `rnic.verbs`, the objects and records; `rnic._nic`, the binding; `src/nic`, the
device in C.  `rnic.enums` and `rnic.errors` are leaves that all of them use.
"""

import importlib as _importlib
import typing as _typing

from rnic._nic.nic import (
    CQ,
    CQEX,
    DM,
    MR,
    SGE,
    TD,
    WC,
    CompChannel,
    CompCntr,
    FlowCounters,
    OpsWR,
    RecvWR,
    SendWR,
    TMInfo,
)
from rnic.conn import Connection, Listener, connect, listen
from rnic.enums import (
    MTU,
    AccessFlags,
    AdviseMRAdvice,
    AdviseMRFlags,
    AtomicCap,
    CompCntrType,
    CounterDescription,
    CQAttrMask,
    CQInitAttrMask,
    CreateCQAttrFlags,
    CreateCQWCFlags,
    DeviceCap,
    DeviceCapEx,
    EventType,
    FlowAttrType,
    FlowFlags,
    FlowSpecType,
    GIDType,
    LinkLayer,
    MigState,
    MWType,
    NodeType,
    ODPGeneralCap,
    ODPTransportCap,
    OpsFlags,
    OpsWROpcode,
    PlacementType,
    PortState,
    QPAttachCompCntrOp,
    QPAttrMask,
    QPCreateFlags,
    QPInitAttrMask,
    QPState,
    QPType,
    RawPacketCaps,
    ReadCountersFlags,
    ReregMRFlags,
    RxHashFields,
    RxHashFunction,
    SelectivityLevel,
    SendFlags,
    SendOpsFlags,
    SRQAttrMask,
    SRQType,
    TMCapFlags,
    Transport,
    ValuesMask,
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
from rnic.verbs.cntr import CompCntrCaps, CompCntrInitAttr, CounterAttachAttr, QPAttachCompCntrAttr
from rnic.verbs.context import (
    AsyncEvent,
    Context,
    DeviceAttr,
    GIDEntry,
    PortAttr,
    ValuesEx,
)
from rnic.verbs.counters import Counters
from rnic.verbs.cq import WC_STANDARD_FLAGS, CQInitAttrEx, CQModerationCaps, ModerateCQ, ModifyCQAttr
from rnic.verbs.device import Device, format_guid, get_device_list, import_device, open_device
from rnic.verbs.device_ex import DeviceAttrEx, ODPCaps, PacketPacingCaps, TMCaps
from rnic.verbs.ece import ECE
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
from rnic.verbs.functions import (
    ForkStatus,
    flow_label_to_udp_sport,
    fork_init,
    is_fork_initialized,
)
from rnic.verbs.memory import AllocDMAttr, ParentDomainInitAttr
from rnic.verbs.mw import MW, MWBind, MWBindInfo, inc_rkey
from rnic.verbs.pd import PD
from rnic.verbs.qp import QP, QPAttr, QPCap, QPInitAttr, QPOpenAttr, QPStats
from rnic.verbs.qp_ex import QPEx, QPInitAttrEx
from rnic.verbs.rate import Rate
from rnic.verbs.rate_limit import RateLimitAttr
from rnic.verbs.srq import SRQ, SRQAttr, SRQInitAttr, SRQInitAttrEx, TMCap
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
from rnic.verbs.xrcd import XRCD

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
    "DeviceAttrEx",
    "PacketPacingCaps",
    "PortAttr",
    "GIDEntry",
    "AsyncEvent",
    "Counters",
    "Faults",
    "Lose",
    "import_device",
    "ODPCaps",
    # objects
    "PD",
    "MR",
    "DM",
    "TD",
    "MW",
    "CompChannel",
    "CQ",
    "CQEX",
    "CompCntr",
    "FlowCounters",
    "SRQ",
    "XRCD",
    "QP",
    "QPEx",
    "AH",
    # attributes and addresses
    "QPInitAttr",
    "QPCap",
    "QPAttr",
    "QPStats",
    "QPOpenAttr",
    "QPInitAttrEx",
    "RateLimitAttr",
    "ECE",
    "SRQInitAttr",
    "SRQInitAttrEx",
    "TMCap",
    "TMCaps",
    "TMInfo",
    "SRQAttr",
    "ValuesEx",
    "CQInitAttrEx",
    "WC_STANDARD_FLAGS",
    "CQModerationCaps",
    "ModerateCQ",
    "ModifyCQAttr",
    "CompCntrInitAttr",
    "CompCntrCaps",
    "QPAttachCompCntrAttr",
    "CounterAttachAttr",
    "MWBind",
    "MWBindInfo",
    "inc_rkey",
    "AHAttr",
    "Route",
    "GID",
    "AllocDMAttr",
    "ParentDomainInitAttr",
    # frames: steering and spreading
    "RawPacketAttr",
    "RSSCaps",
    "TSOCaps",
    "Flow",
    "FlowAttr",
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
    "OpsWR",
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
    # functions without an object
    "fork_init",
    "is_fork_initialized",
    "flow_label_to_udp_sport",
    # enumerations
    "ForkStatus",
    "Rate",
    "AccessFlags",
    "AdviseMRAdvice",
    "AdviseMRFlags",
    "AtomicCap",
    "CQAttrMask",
    "CQInitAttrMask",
    "CompCntrType",
    "CounterDescription",
    "CreateCQAttrFlags",
    "CreateCQWCFlags",
    "DeviceCap",
    "DeviceCapEx",
    "EventType",
    "GIDType",
    "LinkLayer",
    "MTU",
    "MWType",
    "MigState",
    "NodeType",
    "ODPGeneralCap",
    "ODPTransportCap",
    "PlacementType",
    "PortState",
    "QPAttachCompCntrOp",
    "QPAttrMask",
    "QPCreateFlags",
    "QPInitAttrMask",
    "QPState",
    "QPType",
    "ReadCountersFlags",
    "ReregMRFlags",
    "SRQAttrMask",
    "SRQType",
    "OpsFlags",
    "OpsWROpcode",
    "TMCapFlags",
    "SelectivityLevel",
    "SendFlags",
    "SendOpsFlags",
    "Transport",
    "ValuesMask",
    "WCFlags",
    "WCOpcode",
    "WCStatus",
    "WROpcode",
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
