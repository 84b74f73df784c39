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

MAGIC = b"rnEP"
VERSIONS = (1, 2)
"""The oldest and the newest version that this code speaks."""


class Capability(IntFlag):
    """The optional parts of the protocol that an end understands; the other end uses no others."""

    ANNOUNCE = 1
    """The end understands ANNOUNCE: a message that the receiver READs from where it lies."""
    TAG = 2
    """The end understands TAGGED: a message with a number that its receiver can ask for."""
    STOP = 4
    """The end understands STOP: a message that is taken back after it was begun."""
    DESCRIBE = 8
    """The end understands DESCRIBED: a region with the shape and type of its array."""


CAPABILITIES = Capability.ANNOUNCE | Capability.TAG | Capability.STOP | Capability.DESCRIBE
"""The capabilities of this code."""

MIN_RECEIVES = 3
"""The fewest receives that do not stall: one is reserved for CREDIT, which returns two or more."""
MAX_RECEIVES = 0xFFFF
MAX_REGIONS = 0xFFFF
MIN_RECEIVE_SIZE = 64
"""The smallest receive in bytes: it holds every SEND without a payload, and an ABORT with a short text."""
MAX_RECEIVE_SIZE = 1 << 31
"""The longest message in bytes on a reliable connection (IBA 9.7.2)."""

REMOTE_ACCESS = AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_READ | AccessFlags.REMOTE_ATOMIC
"""The remote access rights that the protocol carries, with the values of libibverbs."""

MAX_DATA_ASKING = 24
"""The most bytes of program data in the hello of a REQ."""
MAX_DATA_ANSWERING = 164
"""The most bytes of program data in the hello of a REP, which has 196 for its user (IBA 12.6.9)."""

REFUSAL_SIZE = 148
"""The bytes of private data in a REJ (IBA 12.6.7)."""
_REFUSAL = Struct(">4sBBH")


class Hello(Record):
    """The first words of an end about itself; parse() has checked every field."""

    version_min: int
    """The oldest version of the protocol that the sender speaks."""
    version_max: int
    """The newest version of the protocol that the sender speaks."""
    access: AccessFlags
    """The RDMA operations that the sender's queue pair allows; only with REMOTE_WRITE is it probed."""
    receive_size: int
    """The bytes in each receive buffer of the sender: no SEND to it may be longer."""
    receives: int
    """The receives that the sender has posted: the credits that the peer begins with."""
    max_regions: int
    """The most regions that may be shared with the sender at a time."""
    max_message: int
    """The longest message that the sender takes, in bytes."""
    capabilities: Capability = Capability(0)
    """The optional parts that the sender understands; empty in version 1."""
    data: bytes = b""
    """The data of the sender's program; empty in version 1."""

    SIZE: ClassVar[int] = 24
    """The bytes of a hello in version 1, which every version begins with."""
    _LAYOUT: ClassVar[Struct] = Struct(">4sBBHIHHQ")
    _MORE: ClassVar[Struct] = Struct(">IB3x")
    """The part of version 2 before the data."""

    @property
    def version(self) -> int:
        """The version of a connection with the sender, which is the same at both ends."""
        return common_version(VERSIONS, (self.version_min, self.version_max))

    @classmethod
    def parse(cls, private_data: bytes | bytearray) -> "Hello":
        """Return the hello at the start of `private_data`; bytes after it are ignored.

        NoHelloError when there is no hello; VersionError when there is no common version (then only the magic
        and the versions were read); ProtocolError when a value is wrong.
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
        """Return the capabilities and the data of version 2; unknown capability bits are dropped."""
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
        """Return the bytes of the hello.

        A REQ with IP addressing has 56 bytes for its user (IBA A11), so `data` may have 24 there.
        """
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
    """Return the highest version in both ranges; VersionError, which names both ranges, if there is none."""
    version = min(ours[1], theirs[1])
    if version < max(ours[0], theirs[0]):
        raise VersionError(_no_common(ours, theirs), Reason.VERSION)
    return version


def _no_common(ours: tuple[int, int], theirs: tuple[int, int]) -> str:
    return f"no common version of the endpoint protocol: we speak {_span(ours)}, the peer {_span(theirs)}"


def _span(versions: tuple[int, int]) -> str:
    return f"{versions[0]}" if versions[0] == versions[1] else f"{versions[0]} to {versions[1]}"


def refusal(reason: int, text: str) -> bytes:
    """Return private data for a REJ that tells the peer the reason, also in words."""
    return _REFUSAL.pack(MAGIC, *VERSIONS, reason & 0xFFFF) + clip(text, REFUSAL_SIZE - _REFUSAL.size)


def parse_refusal(private_data: bytes | bytearray) -> EndpointError:
    """Return the error to raise for the private data of a REJ, which may be any bytes.

    It is a RefusedError, or a VersionError that names the versions of both ends.
    """
    data = bytes(private_data)
    if data[:4] != MAGIC or len(data) < _REFUSAL.size:
        return RefusedError("the peer rejected the connection and gave no reason in words", Reason.HELLO)
    _, version_min, version_max, reason = _REFUSAL.unpack_from(data)
    if reason == Reason.VERSION:
        return VersionError(_no_common(VERSIONS, (version_min, version_max)), reason)
    return RefusedError(f"the peer refused: {printable(data[_REFUSAL.size :])}", reason)
