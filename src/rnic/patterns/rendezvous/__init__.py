# SPDX-License-Identifier: Apache-2.0
"""Rendezvous: a long message is announced, and moves by READ or WRITE from where it lies to where it belongs.

    end = Rendezvous(Channel(qp))             # the other end has one, too
    end.measure(timeout=5.0)                  # both: from which length on this pays
    end.send(array[:, :1000], timeout=5.0)    # rows that lie apart are not copied
    end.recv_into(other, timeout=5.0)

A message that is sent as it is (*eager*) is copied into receives and out of them, and needs one trip. A long
one costs less if it is announced: its receiver READs it, or tells where its sender may WRITE it. A receiver
that waits in recv_into() tells that ahead, and then no announcement is needed. An end uses
a channel of rnic.patterns.credits for its eager messages and for its words, and the channel's queue pair for
READs and WRITEs. AsyncRendezvous is the same for tasks of asyncio. RegistrationCache keeps registrations of
buffers that come again.

What is on the wire: each message of the channel begins with 8 bytes, little-endian.

    at 0  kind    1 byte   1 HELLO, 2 EAGER, 3 OFFER, 4 ASK, 5 CLEAR, 6 WRITTEN, 7 DONE, 8 MEASURE,
                           9 MEASURED, 10 INVITE, 11 FILLED
    at 1  flags   1 byte   1: a probe (EAGER, OFFER, ASK); else zero
    at 2          2 bytes  zero
    at 4  number  4 bytes  EAGER, OFFER, ASK, FILLED: one more than in the last such message of its sender,
                           from 1 on, modulo 2**32; CLEAR, WRITTEN, DONE: of the message that they are
                           about; INVITE: of the peer's next message; else zero
    at 8                   HELLO: "rnRV", version 1 (2 bytes), zero (2), bytes of the longest message that
                           the sender takes (8)
                           EAGER: the message
                           OFFER, CLEAR: 1 to 256 pieces, each address (8), bytes (8), rkey (4)
                           INVITE: the same, or nothing
                           ASK, FILLED: bytes of the message (8)
                           MEASURE: a random number (8)

 1. The first message of each end is its HELLO. It announces nothing before it has the peer's.
 2. OFFER: the receiver READs all pieces, in their order, and says DONE.
 3. ASK: the receiver says CLEAR, with pieces that have the message's length; the sender WRITEs, and says
    WRITTEN. The receiver says DONE, or CLEAR again if the place is not good any more.
 4. Behind OFFER, ASK and FILLED an end sends no EAGER, OFFER, ASK or FILLED until DONE has come: messages
    keep their order.
 5. An end that waits for DONE may take what the peer announces meanwhile: two ends that send do not wait
    for each other.
 6. INVITE: if the next message is the one with this number, and is not longer than the pieces, the sender may
    WRITE it there without an announcement; then it says FILLED. The receiver says DONE, or CLEAR if the place
    is not good any more. Any message with this number ends the invitation. It is given once for a number, and
    INVITE with no pieces withdraws it; the place stays good until the message comes, as the peer may have
    begun.
 7. MEASURE: when both ends have said it, the one with the greater number sends probes, then says MEASURED;
    then the other one. A probe is answered by DONE, EAGER ones too, and forgotten.
"""

from rnic.patterns.rendezvous.aio import AsyncRendezvous
from rnic.patterns.rendezvous.base import RendezvousStatistics
from rnic.patterns.rendezvous.cache import CacheStatistics, RegistrationCache
from rnic.patterns.rendezvous.thread import Rendezvous

__all__ = ["AsyncRendezvous", "CacheStatistics", "Rendezvous", "RegistrationCache", "RendezvousStatistics"]
