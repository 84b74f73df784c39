# SPDX-License-Identifier: Apache-2.0
"""Publish and subscribe: each message goes once, to a UD multicast group; a subscriber that has lost it READs
it from the publisher's ring.

    with rnic.listen(host, port) as listener, Publisher(listener) as publisher:    # one end
        ...                                          # a thread: listener.serve(publisher.serve)
        publisher.publish(b"news")
        publisher.end()

    with rnic.connect(host, port) as conn, Subscriber.over(conn) as subscriber:    # each other end
        for message in subscriber:
            ...

A subscriber gets every message once, whole and in order, as long as it is not further behind than the ring is
long: then MissedError says how many are gone. Subscribers do not slow the publisher down.

    wire        the ring, the datagrams and the welcome, byte by byte
    feed        what a subscriber knows and whom it trusts, without I/O
    datagrams   queue pairs for datagrams, and a subscriber's receives
    publisher   the ring, and the group to which it sends
    subscriber  the two kinds of subscribers
"""

from rnic.patterns.pubsub.feed import MissedError, SubscriberStatistics
from rnic.patterns.pubsub.publisher import Publisher, PublisherStatistics
from rnic.patterns.pubsub.subscriber import AsyncSubscriber, Subscriber

__all__ = [
    "AsyncSubscriber",
    "MissedError",
    "Publisher",
    "PublisherStatistics",
    "Subscriber",
    "SubscriberStatistics",
]
