# SPDX-License-Identifier: Apache-2.0
"""iWARP: the TCP connection that a queue pair goes by, and what ends it."""

from collections.abc import Mapping

from rnic.enums import StreamEnd, StreamRTR
from rnic.records import Record

__all__ = ["StreamAttr", "StreamEvent"]


class StreamAttr(Record):
    """What the two ends of a connection have agreed on (RFC 5044, 7; RFC 6581), for QP.attach_stream().

    The defaults are what two queue pairs of rnic can do with each other, where one is the initiator.
    """

    initiator: bool
    """This end has connected. Its peer sends nothing before this end's first message has come."""
    crc: bool = True
    """Each message carries a CRC, which the receiver checks; else the field is 0, and nobody looks at it."""
    rtr: StreamRTR = StreamRTR.WRITE
    """The message of length 0 that the initiator sends first, by itself.

    With NONE the peer can send nothing before the initiator's program does.
    """
    markers_in: bool = False
    """The peer puts markers into what it sends."""
    markers_out: bool = False
    """The peer wants markers in what this end sends."""
    rfc7306: bool = True
    """The peer has atomics and immediate data (RFC 7306)."""
    tell_ready: bool = False
    """An event with StreamEnd.READY says that the peer's first message has come."""
    early: bytes = b""
    """What was read from the socket behind the last frame of the start-up."""


class StreamEvent(Record):
    """The end of a queue pair's connection; or, if StreamAttr.tell_ready asks for it, its beginning."""

    qp_num: int
    """The queue pair's number."""
    end: StreamEnd
    """How it has ended."""
    layer: int
    """TERMINATED, REFUSED: the layer in the Terminate message: 0 RDMAP, 1 DDP, 2 MPA (RFC 5040, 4.8)."""
    type: int
    """The error type of that layer."""
    code: int
    """The error code of that type."""
    error: int
    """LOST: the errno of the socket, such as ECONNRESET; else 0."""

    @classmethod
    def from_struct(cls, values: Mapping[str, int]) -> "StreamEvent":
        """The record of struct rnic_stream_event's fields."""
        rest = {name: value for name, value in values.items() if name != "end"}
        return cls(end=StreamEnd(values["end"]), **rest)
