# SPDX-License-Identifier: Apache-2.0
"""RDMA verbs from Python, over a software NIC that speaks RoCEv2: no kernel module, no root, no hardware.

Names and semantics are libibverbs' (its man pages apply), as methods of the object they act on.

Layers, top down: this facade; `rnic.verbs`, the objects and records; `rnic._nic`, the binding; `src/nic`, the
device in C.  `rnic.enums` and `rnic.errors` are leaves that all of them use.
"""

import sys as _sys
from typing import TYPE_CHECKING as _TYPE_CHECKING

if _sys.argv[:1] == ["-m"] and _sys.orig_argv[-len(_sys.argv)] == "rnic":
    import _rnic_command  # noqa: F401 - `python -m rnic`, which imports rnic first: Ctrl-C shows no traceback

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
    Result,
    SendWR,
    TMInfo,
)
from rnic.conn import ANY, AnyTag, Batch, Connection, Listener, connect, listen
from rnic.endpoint import (
    AbortedError,
    ClosedError,
    Config,
    EndpointError,
    LostError,
    MessageTooLongError,
    NoHelloError,
    ProtocolError,
    Reason,
    RefusedError,
    Region,
    VersionError,
)
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
    StreamEnd,
    StreamRTR,
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
from rnic.later import later as _later
from rnic.verbs.ah import AH, GID, AHAttr, Route
from rnic.verbs.cntr import CompCntrCaps, CompCntrInitAttr, CounterAttachAttr, QPAttachCompCntrAttr
from rnic.verbs.connect import QPChange, connect_qps
from rnic.verbs.context import AsyncEvent, Context
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
from rnic.verbs.queries import DeviceAttr, GIDEntry, PortAttr, ValuesEx
from rnic.verbs.rate import Rate
from rnic.verbs.rate_limit import RateLimitAttr
from rnic.verbs.srq import SRQ, SRQAttr, SRQInitAttr, SRQInitAttrEx, TMCap
from rnic.verbs.stream import StreamAttr, StreamEvent
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

if _TYPE_CHECKING:
    from rnic import aio, patterns
else:
    __getattr__, __dir__ = _later(__name__, "aio", "patterns")  # asyncio takes as long as half of the rest

__version__ = "0.1.0"  # meson.build has it, too, and tests/api/test_exports.py compares them

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
    # queue pairs of one process
    "connect_qps",
    "QPChange",
    # iWARP: the connection of a queue pair
    "StreamAttr",
    "StreamEvent",
    # work
    "SGE",
    "SendWR",
    "RecvWR",
    "OpsWR",
    "WC",
    # connections
    "aio",
    "patterns",
    "connect",
    "listen",
    "ANY",
    "AnyTag",
    "Connection",
    "Listener",
    "Batch",
    "Result",
    "Config",
    "Region",
    # errors
    "VerbsError",
    "PostError",
    "EndpointError",
    "RefusedError",
    "NoHelloError",
    "VersionError",
    "ProtocolError",
    "AbortedError",
    "LostError",
    "ClosedError",
    "MessageTooLongError",
    "Reason",
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
    "StreamEnd",
    "StreamRTR",
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
