# SPDX-License-Identifier: Apache-2.0
"""iWARP: the TCP connection that a queue pair goes by, and what ends it."""

import os
from collections.abc import Mapping

from rnic.enums import StreamEnd, StreamRTR
from rnic.records import Record
from rnic.wire.rdmap import term_words

__all__ = ["StreamAttr", "StreamEvent"]

_WORDS = {
    StreamEnd.FIN: "the peer has closed the connection",
    StreamEnd.LOST: "the connection was lost",
    StreamEnd.TERMINATED: "the peer has ended the connection with a Terminate message",
    StreamEnd.REFUSED: "this end has refused what the peer has sent, and ended the connection",
    StreamEnd.CLOSED: "both ends have closed the connection",
    StreamEnd.READY: "the connection has not ended: the peer's first message has come",
}


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

    def explain(self) -> str:
        """The event in words: who has ended the connection, and why.

        TERMINATED and REFUSED have the names of layer, type and code, or their numbers if there are no names
        (RFC 5040, 4.8; RFC 6581, 8). LOST has the words of the socket's errno (strerror(3)).
        """
        words = _WORDS[self.end]
        if self.end in (StreamEnd.TERMINATED, StreamEnd.REFUSED):
            return f"{words}: {term_words(self.layer, self.type, self.code)}"
        return f"{words}: {os.strerror(self.error)}" if self.error else words
