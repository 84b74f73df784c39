# SPDX-License-Identifier: Apache-2.0
"""The management datagram, 256 bytes from queue pair 1 to queue pair 1 (IBA 13.4)."""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar, Self

from rnic.wire.bits import BitStruct, at, bytes_at
from rnic.wire.error import WireError

GSI_QPN = 1  # the queue pair of the general services
GSI_QKEY = 0x80010000  # its well-known Q_Key, which both ends use
MAD_BYTES = 256


class MgmtClass(IntEnum):
    """Management classes on queue pair 1, by number (IBA 13.4.4)."""

    SA = 0x03
    PERF = 0x04
    BM = 0x05
    DEVICE_MGMT = 0x06
    CM = 0x07
    SNMP = 0x08


class MadMethod(IntEnum):
    """Methods (IBA 13.4.5); the communication manager uses only Send."""

    GET = 0x01
    SET = 0x02
    SEND = 0x03
    TRAP = 0x05
    REPORT = 0x06
    TRAP_REPRESS = 0x07
    GET_RESP = 0x81
    REPORT_RESP = 0x86


CM_CLASS_VERSION = 2


class MAD(BitStruct, kw_only=True):
    """The common header of IBA 13.4.3 and the 232 bytes after it; the defaults are the CM's."""

    SIZE: ClassVar[int] = MAD_BYTES

    base_version: int = at(0, 8, default=1)
    mgmt_class: int = at(1, 8, default=MgmtClass.CM)
    class_version: int = at(2, 8, default=CM_CLASS_VERSION)
    method: int = at(3, 8, default=MadMethod.SEND)
    status: int = at(4, 16)
    class_specific: int = at(6, 16)
    tid: int = at(8, 64)  # transaction id
    attr_id: int = at(16, 16)  # what `data` is
    attr_mod: int = at(20, 32)  # attribute modifier; in REQ, REP and SIDR_REP the ECE options
    data: bytes = bytes_at(24, 232)

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Read a datagram. `WireError` unless it has 256 bytes."""
        if len(data) != cls.SIZE:
            raise WireError(f"a MAD has {cls.SIZE} bytes, not {len(data)}")
        return cls.from_word(int.from_bytes(data, "big"))
