# SPDX-License-Identifier: Apache-2.0
"""Messages of any size on a bare queue pair: send-receive with credits, so that every SEND meets a receive.

    channel = Channel(qp)             # after INIT, before the peer may send; both ends have one
    rnic.connect_qps(...)             # or any other way to RTS
    channel.send(b"hello", timeout=5.0)
    print(channel.recv(timeout=5.0))
    channel.close()

AsyncChannel is the same for tasks of asyncio. The queue pair is of RC; its send_cq and recv_cq are its own.
Either end may send at any time, also both at once. It is the small sibling of what rnic.connect speaks
(docs/endpoint-protocol.md): no regions, no announced messages, no tags.

What is on the wire: each SEND begins with 8 bytes, little-endian, and is not longer than the peer's receives.

    at 0  kind     1 byte   1 HELLO, 2 PIECE, 3 CREDIT, 4 END, 5 SEEN, 6 ABORT
    at 1           1 byte   zero
    at 2  credits  2 bytes  receives that the sender has posted again since it last said so
    at 4  rest     4 bytes  PIECE: bytes of the message from this piece on; else zero
    at 8                    HELLO: "rnCF", version 1 (2 bytes), how many receives the sender has posted (2),
                            bytes of each (4), bytes of the longest message that it takes (4)
                            PIECE: bytes of the message, one at least unless rest is zero; the message ends
                            with the piece that has all of the rest
                            ABORT: why, UTF-8

The first SEND of each end is its HELLO. It comes before the peer's HELLO is known, and is all that may. END
says that no PIECE follows, SEEN that the peer's END has come: an end that has both, and has sent both, knows
that all has arrived, and may go. A credit is a receive of the peer that no SEND has taken:

 1. No SEND without a credit. The last credit is for a HELLO, a CREDIT or an ABORT.
 2. A credit is returned when its receive is posted again; every SEND returns all that are owed.
 3. An end with n receives that owes max(2, n / 2) credits sends a CREDIT, if it sends nothing else;
    a CREDIT returns two or more.
 4. An end whose program takes no messages may keep receives of PIECEs back, which makes the peer wait.

So one direction never waits for the other, and CREDITs come to an end: each returns two or more, and takes
one.
"""

from rnic.patterns.credits.aio import AsyncChannel
from rnic.patterns.credits.channel import Channel
from rnic.patterns.credits.flow import ChannelStatistics, Flow

__all__ = ["AsyncChannel", "Channel", "ChannelStatistics", "Flow"]
