# SPDX-License-Identifier: Apache-2.0
"""rping, both roles: the client advertises a source, which the server reads, then a sink, which it writes;
SENDs of 16 bytes say who is next.

    python -m rdmacm.rping server ADDRESS PORT COUNT
    python -m rdmacm.rping client ADDRESS PORT COUNT SIZE
"""

from __future__ import annotations

import string
import struct
import sys
from contextlib import ExitStack

from rnic import MR, SGE, AccessFlags, WCStatus
from rnic.rdmacm import CmId, ConnParam, EventType, create_id

INFO = struct.Struct("!QII")  # address, rkey, length
ROOM = 1 << 16
WAIT = 60.0
ONE = ConnParam(responder_resources=1, initiator_depth=1)


class Words:
    """The 16 bytes each way, with a receive always posted."""

    def __init__(self, cm_id: CmId, stack: ExitStack) -> None:
        self.id = cm_id
        self._out, self._in = bytearray(INFO.size), bytearray(INFO.size)
        self._out_mr = stack.enter_context(cm_id.reg_msgs(self._out))
        self._in_mr = stack.enter_context(cm_id.reg_msgs(self._in))
        cm_id.post_recv(self._in_mr)

    def say(self, addr: int = 0, rkey: int = 0, length: int = 0) -> None:
        INFO.pack_into(self._out, 0, addr, rkey, length)
        self.id.post_send(self._out_mr)
        self.done()

    def done(self) -> None:
        wc = self.id.get_send_comp(WAIT)
        assert wc.ok, wc.explain()

    def hear(self) -> tuple[int, int, int] | None:
        """None: the peer has gone."""
        wc = self.id.get_recv_comp(WAIT)
        if wc.status is WCStatus.WR_FLUSH_ERR:
            return None
        assert wc.ok, wc.explain()
        assert wc.byte_len == INFO.size
        found: tuple[int, int, int] = INFO.unpack(self._in)
        self.id.post_recv(self._in_mr)
        return found


def answer(words: Words, mr: MR, memory: bytearray) -> bool:
    """One ping of the client's; False: there is none any more."""
    if (source := words.hear()) is None:
        return False
    addr, rkey, length = source
    words.id.post_read(SGE(mr, 0, length), remote_addr=addr, rkey=rkey)
    words.done()
    words.say()
    if (sink := words.hear()) is None:
        return False
    addr, rkey, _ = sink
    text = memory.index(0) + 1
    words.id.post_write(SGE(mr, 0, text), remote_addr=addr, rkey=rkey)
    words.done()
    words.say()
    return True


def serve(address: str, port: int) -> int:
    """Answer one client until it disconnects; the number of pings."""
    with create_id() as listener:
        listener.bind_addr((address, port))
        listener.listen()
        print(listener.get_src_port(), flush=True)
        with listener.get_request() as one, ExitStack() as stack:
            stack.callback(one.destroy_qp)
            one.create_qp()
            memory = bytearray(ROOM)
            mr = stack.enter_context(one.reg_msgs(memory))
            words = Words(one, stack)
            one.accept(ONE)
            watch = disconnected(one)
            count = 0
            while answer(words, mr, memory):
                count += 1
            assert watch
            one.destroy_qp()
    return count


def disconnected(one: CmId) -> bool:
    """Let the agent flush the receives when the peer has gone."""
    import threading

    def wait() -> None:
        with one.channel.get_cm_event(WAIT) as event:
            assert event.event is EventType.DISCONNECTED
            one.sync = False
            one.disconnect()

    threading.Thread(target=wait, daemon=True).start()
    return True


def pattern(size: int, number: int) -> bytes:
    head = f"rping-{number}: ".encode()
    letters = (string.ascii_uppercase * (size // 26 + 2)).encode()
    return (head + letters)[: size - 1] + b"\0"


def call(address: str, port: int, count: int, size: int) -> None:
    """So many pings of so many bytes, each compared."""
    with create_id() as one, ExitStack() as stack:
        one.resolve_addr(None, (address, port))
        one.resolve_route()
        one.create_qp()
        stack.callback(one.destroy_qp)
        source, sink = bytearray(size), bytearray(size)
        assert one.pd
        both = AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_READ | AccessFlags.REMOTE_WRITE
        source_mr = stack.enter_context(one.pd.reg_mr(source, both))
        sink_mr = stack.enter_context(one.pd.reg_mr(sink, both))
        words = Words(one, stack)
        one.connect(ONE)
        for number in range(count):
            source[:] = pattern(size, number)
            words.say(source_mr.addr, source_mr.rkey, size)
            assert words.hear() is not None
            words.say(sink_mr.addr, sink_mr.rkey, size)
            assert words.hear() is not None
            assert sink == source
        one.disconnect()
        one.destroy_qp()


if __name__ == "__main__":
    role, address, port, *rest = sys.argv[1:]
    if role == "server":
        print(serve(address, int(port)), flush=True)
    else:
        call(address, int(port), *map(int, rest))
