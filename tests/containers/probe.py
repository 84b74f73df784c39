# SPDX-License-Identifier: Apache-2.0
"""What runs in a container: `python -m containers.probe WHAT` says a line of JSON, and ends with 0.

It may work, or say in an error what is in the way: {"works": ...} or {"refused": text}.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable

import rnic
from rnic import SGE, SendFlags, SendWR, WROpcode
from rnic.endpoint import EndpointError
from rnic.testing import Pair

HOST, SIZE = "127.0.0.1", 200_000
WAIT = 180.0
REFUSALS = (OSError, EndpointError, MemoryError)


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def moved(pair: Pair) -> dict[str, int]:
    """Each operation once, and bytes compared; which way they took."""
    source, target = pair.a.memory(SIZE), pair.b.memory(SIZE)
    data = os.urandom(SIZE)
    source.buf[:] = data
    for opcode in (WROpcode.RDMA_WRITE, WROpcode.RDMA_READ, WROpcode.ATOMIC_FETCH_AND_ADD):
        length = 8 if opcode is WROpcode.ATOMIC_FETCH_AND_ADD else SIZE
        wr = SendWR(1, opcode, SendFlags.SIGNALED, [SGE(source, 0, length)], target.addr, target.rkey)
        wr.compare_add = 7
        pair.a.qp.post_send(wr)
        pair.a.wait_ok()
        if opcode is WROpcode.RDMA_WRITE:
            assert target.buf == data, "WRITE has moved other bytes"
            target.buf[0] ^= 1
        elif opcode is WROpcode.RDMA_READ:
            assert source.buf == target.buf, "READ has moved other bytes"
    first = int.from_bytes(source.buf[:8], sys.byteorder)
    assert int.from_bytes(target.buf[:8], sys.byteorder) == (first + 7) & ((1 << 64) - 1), "FETCH_AND_ADD"
    counters = pair.a.ctx.counters()
    return {name: counters[name] for name in ("local_sent", "local_direct")}


def alone() -> None:
    """Two contexts of one process, by each way."""
    found = {}
    for way, local in (("shared memory", True), ("wire", False)):
        with Pair(local=local) as pair:
            found[way] = moved(pair)
    say(works=found)


def serve() -> None:
    """One connection."""
    with rnic.listen(HOST, 0) as server:
        say(port=server.port)
        with server.accept(WAIT) as conn:
            memory = bytearray(SIZE)
            conn.share(memory)
            conn.send(conn.recv(WAIT), WAIT)
            assert conn.recv(WAIT) == bytes(memory), "WRITE has moved other bytes"
    say(works="served")


def call(port: str) -> None:
    """To one that serves."""
    data = os.urandom(SIZE)
    with rnic.connect(HOST, int(port), timeout=WAIT) as conn:
        region = conn.next_region(WAIT)
        conn.send(data, WAIT)
        assert conn.recv(WAIT) == data, "other bytes came back"
        conn.write(data, region, timeout=WAIT)
        into = bytearray(SIZE)
        conn.read(into, region, timeout=WAIT)
        assert into == data, "READ has moved other bytes"
        conn.send(data, WAIT)
        conn.close(WAIT)
    say(works="called")


def both() -> None:
    """Two processes in the same container."""
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(writes, 1)
        run(["serve"])
        os._exit(0)
    os.close(writes)
    try:
        with os.fdopen(reads) as way:
            heard = json.loads(way.readline())
            if "port" not in heard:
                say(**heard)
                return
            call(heard["port"])
            assert json.loads(way.readline()) == {"works": "served"}
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def run(argv: list[str]) -> None:
    parts: dict[str, Callable[..., None]] = {"alone": alone, "serve": serve, "call": call, "both": both}
    try:
        parts[argv[0]](*argv[1:])
    except REFUSALS as error:
        if isinstance(error, TimeoutError):
            raise  # it hangs
        say(refused=f"{type(error).__name__}: {error}")


def main(argv: list[str]) -> None:
    run(argv)
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
