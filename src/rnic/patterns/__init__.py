# SPDX-License-Identifier: Apache-2.0
"""Patterns: the craft of RDMA over the public API. Each module is one pattern, and says what is on the wire.

    wait      the blocking wait in its three forms: poll, event, adaptive
    chain     chains, inline data, unsignaled work, with the send queue's accounting kept right
    credits   messages on a bare queue pair, with credit flow control
    rpc       request and reply, with many outstanding calls, deadlines and cancellation
    rendezvous  long messages: announced, then READ by the receiver or WRITTEN by the sender
    ring      a cyclic buffer in the receiver's memory, into which the sender RDMA WRITEs records
    many      many writers, one reader: slots of its memory that are claimed by COMPARE_SWAP
    pubsub    publish and subscribe by multicast; what was lost is READ from the publisher's ring
    onesided  a key-value store, locks, counters, barrier and all-reduce by READ, WRITE and atomics alone

They work on a queue pair (`ports.QueuePairPort`), on a connection (`ports.ConnectionPort`) and, where they
have calls for asyncio, on one of rnic.aio (`ports.AsyncPort`).
"""

from typing import TYPE_CHECKING

from rnic.later import later

if TYPE_CHECKING:
    from rnic.patterns import (
        chain,
        credits,  # noqa: A004 - a pattern
        cursor,
        many,
        onesided,
        ports,
        pubsub,
        rendezvous,
        ring,
        rpc,
        wait,
    )
else:
    __getattr__, __dir__ = later(
        __name__,
        "chain",
        "credits",
        "cursor",
        "many",
        "onesided",
        "ports",
        "pubsub",
        "rendezvous",
        "ring",
        "rpc",
        "wait",
    )

__all__ = [
    "chain",
    "credits",
    "cursor",
    "many",
    "onesided",
    "ports",
    "pubsub",
    "rendezvous",
    "ring",
    "rpc",
    "wait",
]
