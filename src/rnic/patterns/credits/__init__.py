# SPDX-License-Identifier: Apache-2.0
"""Messages of any size on a bare queue pair: send-receive with credits, so that every SEND meets a receive.

    channel = Channel(qp)             # after INIT, before the peer may send; both ends have one
    rnic.connect_qps(...)             # or any other way to RTS
    channel.send(b"hello", timeout=5.0)
    print(channel.recv(timeout=5.0))
    channel.close()

AsyncChannel is the same for tasks of asyncio. The queue pair is of RC, and nothing else polls its completion
queues. Either end may send at any time, also both at once.

On the wire is the endpoint protocol, as rnic.connect speaks it, without regions, announced messages and tags
(docs/endpoint-protocol.md, "Over a bare queue pair"). No connection manager carries the hellos here: the
first SEND of each end is its hello, which is all that may come before the peer's. Each end posts one receive
more than its hello says: the hello takes it, and needs no credit.
"""

from rnic.patterns.credits.aio import AsyncChannel
from rnic.patterns.credits.channel import Channel
from rnic.patterns.credits.ends import ChannelStatistics

__all__ = ["AsyncChannel", "Channel", "ChannelStatistics"]
