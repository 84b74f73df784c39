# SPDX-License-Identifier: Apache-2.0
"""The reading end of a ring on a queue pair of RDMA-CM, for ring_writer.c.

python ring_reader.py [PORT [BYTES]]        a ring of so many bytes
"""

from __future__ import annotations

import struct
import sys
from contextlib import ExitStack

from rnic.patterns.ports import QueuePairPort, Window
from rnic.patterns.ring import RingReader
from rnic.rdmacm import CmId, ConnParam, EventChannel, EventType, create_id
from rnic.verbs.qp import QPCap

HOST = "127.0.0.1"
REGION = struct.Struct("!QII")  # as cm.h says: address, key, length
LIMIT = 30.0  # seconds


def expect(channel: EventChannel, kind: EventType) -> tuple[CmId, bytes]:
    """Wait for the next event, which must be this one: its id, and the peer's private data."""
    with channel.get_cm_event(LIMIT) as event:
        assert event.event is kind, event.explain()
        return event.id, event.param.private_data if event.param else b""


def answer(request: CmId, private_data: bytes, nbytes: int, stack: ExitStack) -> RingReader:
    """Accept the call; each end tells the other where its memory is."""
    port = QueuePairPort(request.create_qp(cap=QPCap(max_send_wr=64, max_recv_wr=64)))
    stack.callback(port.close)
    reader = RingReader(port, nbytes)
    addr, rkey, length = REGION.unpack_from(private_data)
    reader.begin(Window(addr, length, rkey))
    request.accept(ConnParam(private_data=REGION.pack(reader.mr.addr, reader.mr.rkey, reader.mr.length)))
    return reader


def expected(n: int, longest: int) -> bytes:
    """Record n, as ring_writer.c makes it."""
    return bytes((n + i) & 255 for i in range(n * 37 % (longest + 1)))


def main(port: int = 7476, nbytes: int = 1 << 20) -> None:
    """Serve one writer."""
    with EventChannel() as channel, create_id(channel) as listener, ExitStack() as stack:
        listener.bind_addr((HOST, port))
        listener.listen()
        request, private_data = expect(channel, EventType.CONNECT_REQUEST)
        stack.enter_context(request)
        reader, count = answer(request, private_data, nbytes, stack), 0
        expect(channel, EventType.ESTABLISHED)
        while found := reader.get_many(timeout=LIMIT):
            for record in found:
                assert record == expected(count, nbytes // 2 - 4), count
                count += 1
        expect(channel, EventType.DISCONNECTED)  # who leaves earlier lets a doorbell that is on its way fail
        print(count, "records came, each as it was put")


main(*map(int, sys.argv[1:]))
