# SPDX-License-Identifier: Apache-2.0
"""Many processes of one address: all open their device at once, and each talks to another.

RNIC_LOCAL=off PYTHONPATH=tests python -m conn.many 500
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
import traceback
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection as Way

import namespaces
import rnic
from conn.peers import HOST, WAIT
from rnic.rdmacm.registry import registry

MESSAGES, LENGTH = 3, 3000


def answer(listener: rnic.Listener) -> None:
    """The one that calls gets back what it says, the other way round."""
    with listener.accept(WAIT) as conn:
        for message in conn:
            conn.send(message[::-1], WAIT)


def talk(port: int) -> None:
    with rnic.connect(HOST, port, timeout=WAIT) as conn:
        for _ in range(MESSAGES):
            message = random.randbytes(LENGTH)
            conn.send(message, WAIT)
            assert conn.recv(WAIT) == message[::-1], "other bytes came back"


def counted() -> dict[str, int]:
    with registry.lock:
        (agent,) = registry.agents()
        return agent.context.counters().as_dict()


def member(way: Way) -> None:
    """Says which port is its own, hears whom to call, and says what its device has counted then."""
    with rnic.listen(HOST, 0) as listener:
        way.send(listener.port)
        answers = threading.Thread(target=answer, args=(listener,))
        answers.start()
        talk(way.recv())
        answers.join()
        way.send(counted())
        way.recv()  # nobody goes before all have talked


def start(ways: list[Way]) -> None:
    """One more child; it has rnic already, so that the time is not the interpreter's."""
    ours, theirs = Pipe()
    if os.fork():
        theirs.close()
        ways.append(ours)
        return
    for way in (ours, *ways):
        way.close()  # so that each hears of the parent's end
    try:
        member(theirs)
    except Exception:
        theirs.send(traceback.format_exc())
    finally:
        os._exit(0)


def hear(way: Way) -> object:
    if not way.poll(3 * WAIT):
        return "nothing was heard of it"
    try:
        return way.recv()
    except EOFError:
        return "it is gone"


def many(count: int) -> dict[str, object]:
    """What went wrong, how long it took, and the counters of all together."""
    began = time.monotonic()
    ways: list[Way] = []
    for _ in range(count):
        start(ways)
    ports = [hear(way) for way in ways]
    up = time.monotonic()
    order = random.sample(range(count), count)
    for caller, called in zip(order, order[1:] + order[:1], strict=True):
        with suppress(OSError):
            ways[caller].send(ports[called])
    heard = [hear(way) for way in ways]
    talked = time.monotonic()
    for way in ways:
        with suppress(OSError):
            way.send("go")
    for _ in ways:
        os.wait()
    good = [one for one in heard if isinstance(one, dict)]
    return {
        "failed": [one for one in heard if not isinstance(one, dict)],
        "up": round(up - began, 2),
        "talked": round(talked - up, 2),
        "counters": {name: sum(one[name] for one in good) for name in good[0]} if good else {},
    }


def main() -> None:
    with suppress(OSError):
        namespaces.network_of_our_own()  # or they share the address with whatever else runs here
    print(json.dumps(many(int(sys.argv[1]))))


if __name__ == "__main__":
    main()
