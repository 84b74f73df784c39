# SPDX-License-Identifier: Apache-2.0
"""A server that sends each message back, by a channel on a queue pair of RDMA-CM, for credits_client.c.

python credits_server.py [PORT [RECEIVES [BYTES]]]        so many receives of so many bytes
"""

from __future__ import annotations

import sys

from rnic.patterns.credits import Channel
from rnic.rdmacm import CmId, EventChannel, EventType, create_id
from rnic.verbs.qp import QPCap

HOST = "127.0.0.1"
LIMIT = 30.0  # seconds


def expect(channel: EventChannel, kind: EventType) -> CmId:
    """Wait for the next event, which must be this one: its id."""
    with channel.get_cm_event(LIMIT) as event:
        assert event.event is kind, event.explain()
        return event.id


def main(port: int = 7476, receives: int = 16, nbytes: int = 4096) -> None:
    """Serve one client."""
    with EventChannel() as events, create_id(events) as listener:
        listener.bind_addr((HOST, port))
        listener.listen()
        with expect(events, EventType.CONNECT_REQUEST) as request:
            qp = request.create_qp(cap=QPCap(max_send_wr=64, max_recv_wr=64))
            with Channel(qp, receives=receives, size=nbytes) as channel:
                request.accept()
                expect(events, EventType.ESTABLISHED)
                count = 0
                for message in channel:
                    channel.send(message, LIMIT)
                    count += 1
            expect(events, EventType.DISCONNECTED)
            print(count, "messages sent back")


main(*map(int, sys.argv[1:]))
