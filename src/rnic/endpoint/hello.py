# SPDX-License-Identifier: Apache-2.0
"""The hello in the private data of REQ and REP, and the refusal in that of REJ: docs/endpoint-protocol.md."""

from enum import IntFlag
from struct import Struct
from typing import ClassVar

from rnic.endpoint.errors import (
    EndpointError,
    NoHelloError,
    ProtocolError,
    Reason,
    RefusedError,
    VersionError,
)
from rnic.endpoint.text import clip, printable
from rnic.enums import AccessFlags
from rnic.records import Record

__all__ = [
    "CAPABILITIES",
    "MAGIC",
    "MAX_DATA_ANSWERING",
    "MAX_DATA_ASKING",
    "MAX_RECEIVES",
    "MAX_RECEIVE_SIZE",
    "MAX_REGIONS",
    "MIN_RECEIVES",
    "MIN_RECEIVE_SIZE",
    "REFUSAL_SIZE",
    "REMOTE_ACCESS",
    "VERSIONS",
    "Capability",
    "Hello",
    "agree",
    "parse_refusal",
    "refusal",
]

MAGIC = b"rnEP"
VERSIONS = (1, 2)
"""The oldest and the newest version that this code speaks."""


class Capability(IntFlag):
    """What an end understands beyond the version; the other end uses nothing else."""

    ANNOUNCE = 1
    """ANNOUNCE: a message that is READ from where it lies."""
    TAG = 2
    """TAGGED: a message with a number that its receiver can ask for."""
    STOP = 4
    """STOP: a message that is taken back after it was begun."""
    DESCRIBE = 8
    """DESCRIBED: a region with the shape and type of the array that it holds."""


CAPABILITIES = Capability.ANNOUNCE | Capability.TAG | Capability.STOP | Capability.DESCRIBE
"""Those of this code."""

MIN_RECEIVES = 3
"""One is reserved for CREDIT, and a CREDIT returns two or more: with fewer the connection would stall."""
MAX_RECEIVES = 0xFFFF
MAX_REGIONS = 0xFFFF
MIN_RECEIVE_SIZE = 64
"""Every SEND without a payload of its own fits, and a short text in an ABORT."""
MAX_RECEIVE_SIZE = 1 << 31
"""No message of a reliable connection is longer (IBA 9.7.2)."""

REMOTE_ACCESS = AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_READ | AccessFlags.REMOTE_ATOMIC
"""The rights of which this protocol speaks, with libibverbs' values."""

MAX_DATA_ASKING = 24
"""Bytes of a program that fit the hello in a REQ..."""
MAX_DATA_ANSWERING = 164
"""...and in a REP, which has 196 for its user (IBA 12.6.9)."""

REFUSAL_SIZE = 148
"""Private data of a REJ (IBA 12.6.7)."""
_REFUSAL = Struct(">4sBBH")


class Hello(Record):
    """What an end says about itself before anything else; parse() has checked every field."""

    version_min: int
    """The oldest version of this protocol that it speaks."""
    version_max: int
    """The newest."""
    access: AccessFlags
    """The flags: what its queue pair lets the peer do by RDMA; REMOTE_WRITE is needed to be probed."""
    receive_size: int
    """Bytes in each of its receive buffers: no SEND may be longer."""
    receives: int
    """Receives that it has posted: the credits that the peer begins with."""
    max_regions: int
    """Regions that may be shared with it at a time."""
    max_message: int
    """The longest message that it takes, in bytes."""
    capabilities: Capability = Capability(0)
    """What it understands.  None in version 1."""
    data: bytes = b""
    """What its program says with the hello.  Nothing in version 1."""

    SIZE: ClassVar[int] = 24
    """Bytes that every version has."""
    _LAYOUT: ClassVar[Struct] = Struct(">4sBBHIHHQ")
    _MORE: ClassVar[Struct] = Struct(">IB3x")
    """Of version 2, before the data."""

    @classmethod
    def parse(cls, private_data: bytes | bytearray) -> "Hello":
        """Read a hello at the start of `private_data`; what follows it is padding, or a later version's.

        NoHelloError when there is none; VersionError when its version is none of ours, so that nothing but
        magic and versions was looked at; ProtocolError when a value cannot be.
        """
        data = bytes(private_data)
        if data[:4] != MAGIC or len(data) < 6:
            shown = data[:8].hex(" ") or "nothing"
            raise NoHelloError(
                f"the peer is no rnic endpoint: its private data begins with {shown}, not with a hello "
                "(the option raw serves such peers as a bare queue pair)",
                Reason.HELLO,
            )
        version_min, version_max = data[4], data[5]
        if not 1 <= version_min <= version_max:
            raise ProtocolError(f"the hello offers versions {version_min} to {version_max}", Reason.HELLO)
        version = common_version(VERSIONS, (version_min, version_max))
        if len(data) < cls.SIZE:
            raise ProtocolError(f"the hello has {len(data)} of {cls.SIZE} bytes", Reason.HELLO)
        _, _, _, flags, size, receives, regions, longest = cls._LAYOUT.unpack_from(data)
        access = AccessFlags(flags & REMOTE_ACCESS)
        more = cls._parse_more(data[cls.SIZE :]) if version >= 2 else (Capability(0), b"")
        hello = cls(version_min, version_max, access, size, receives, regions, longest, *more)
        hello._check()
        return hello

    @classmethod
    def _parse_more(cls, data: bytes) -> tuple[Capability, bytes]:
        """What version 2 has behind the rest; bits that a later version knows are left out."""
        there = len(data) - cls._MORE.size
        if there < 0:
            raise ProtocolError(
                f"the hello has {cls.SIZE + len(data)} bytes, not those of version 2", Reason.HELLO
            )
        bits, size = cls._MORE.unpack_from(data)
        if size > there:
            raise ProtocolError(f"the hello has {there} of {size} bytes of data", Reason.HELLO)
        return Capability(bits & CAPABILITIES), data[cls._MORE.size : cls._MORE.size + size]

    def _check(self) -> None:
        if not MIN_RECEIVE_SIZE <= self.receive_size <= MAX_RECEIVE_SIZE:
            raise ProtocolError(
                f"the hello speaks of receives of {self.receive_size} bytes, "
                f"it can be {MIN_RECEIVE_SIZE} to {MAX_RECEIVE_SIZE}",
                Reason.HELLO,
            )
        if self.receives < MIN_RECEIVES:
            raise ProtocolError(
                f"the hello speaks of {self.receives} receives, there must be {MIN_RECEIVES}", Reason.HELLO
            )

    def emit(self) -> bytes:
        """The bytes.  A REQ with IP addressing has 56 for its user (IBA A11), so `data` may have 24 there."""
        start = self._LAYOUT.pack(
            MAGIC,
            self.version_min,
            self.version_max,
            self.access,
            self.receive_size,
            self.receives,
            self.max_regions,
            self.max_message,
        )
        return (
            start
            if self.version_max < 2
            else start + self._MORE.pack(self.capabilities, len(self.data)) + self.data
        )


def common_version(ours: tuple[int, int], theirs: tuple[int, int]) -> int:
    """The highest version in both ranges; VersionError, which names both, when there is none."""
    version = min(ours[1], theirs[1])
    if version < max(ours[0], theirs[0]):
        raise VersionError(_no_common(ours, theirs), Reason.VERSION)
    return version


def agree(ours: Hello, theirs: Hello) -> int:
    """The version of the connection.  Both ends compute the same."""
    return common_version((ours.version_min, ours.version_max), (theirs.version_min, theirs.version_max))


def _no_common(ours: tuple[int, int], theirs: tuple[int, int]) -> str:
    return f"no common version of the endpoint protocol: we speak {_span(ours)}, the peer {_span(theirs)}"


def _span(versions: tuple[int, int]) -> str:
    return f"{versions[0]}" if versions[0] == versions[1] else f"{versions[0]} to {versions[1]}"


def refusal(reason: int, text: str) -> bytes:
    """Private data for the REJ that refuses a request, so that the peer learns why in words."""
    return _REFUSAL.pack(MAGIC, *VERSIONS, reason & 0xFFFF) + clip(text, REFUSAL_SIZE - _REFUSAL.size)


def parse_refusal(private_data: bytes | bytearray) -> EndpointError:
    """What the private data of a REJ says, as the error to raise; any bytes will do.

    RefusedError; or VersionError, which names the versions of both.
    """
    data = bytes(private_data)
    if data[:4] != MAGIC or len(data) < _REFUSAL.size:
        return RefusedError("the peer rejected the connection and gave no reason in words", Reason.HELLO)
    _, version_min, version_max, reason = _REFUSAL.unpack_from(data)
    if reason == Reason.VERSION:
        return VersionError(_no_common(VERSIONS, (version_min, version_max)), reason)
    return RefusedError(f"the peer refused: {printable(data[_REFUSAL.size :])}", reason)
