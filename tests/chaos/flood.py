# SPDX-License-Identifier: Apache-2.0
"""Noise beside the traffic: `python -m chaos.flood KIND SEED UID`, until it is killed."""

from __future__ import annotations

import os
import random
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from rnic.wire import BTH, Opcode, Transport
from transport.plain import DEVICE, datagram, sealed

PORT, GSI_QKEY = 4791, 0x80010000
RATE = 2000  # packets a second
BATCH = 20


def garbage(dice: random.Random) -> Iterator[bytes]:
    while True:
        yield dice.randbytes(dice.choice((0, 1, 11, 12, 16, 40, 300, 1400)))


def forged(dice: random.Random) -> Iterator[bytes]:
    """Packets that are whole, for queue pairs that may be there."""
    known = [one for one in Opcode if one.name.startswith(("RC_", "UC_"))]
    while True:
        bth = BTH(dice.choice(known), dqpn=dice.getrandbits(24), psn=dice.getrandbits(24))
        with suppress(ValueError):  # an opcode that needs more headers
            yield sealed(Transport(bth, (), dice.randbytes(dice.choice((0, 4, 256)))))


def mads(dice: random.Random) -> Iterator[bytes]:
    """Messages of the communication manager, with random ids, to queue pair 1."""
    while True:
        head = struct.pack(
            "!BBBBHHQHHI", 1, 7, 2, 3, 0, 0, dice.getrandbits(64), dice.randint(0x10, 0x1B), 0, 0
        )
        yield sealed(datagram((head + dice.randbytes(232))[:256], 1, GSI_QKEY))


def send(packets: Iterator[bytes]) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.bind(("127.0.0.6", 0))  # an address that no test uses
        while True:
            for _ in range(BATCH):
                with suppress(OSError):
                    one.sendto(next(packets), (DEVICE, PORT))
            time.sleep(BATCH / RATE)


def names() -> list[tuple[int, str]]:
    """Sockets of rnic's in this network namespace: type and name."""
    rows = [line.split() for line in Path("/proc/self/net/unix").read_text().splitlines()[1:]]
    return [(int(row[4], 16), row[7][1:]) for row in rows if len(row) > 7 and "rnic/" in row[7]]


def knocks(dice: random.Random) -> None:
    """Connections to all that has a name, some of which say something."""
    while True:
        held = []
        for kind, name in names():
            one = socket.socket(socket.AF_UNIX, kind)
            one.setblocking(False)
            with suppress(OSError):
                one.connect(f"\0{name}")
                if dice.random() < 0.7:
                    one.send(dice.randbytes(dice.choice((1, 8, 600))))
            held.append(one)
        time.sleep(dice.random() * 0.3)
        for one in held:
            one.close()


KINDS: dict[str, Callable[[random.Random], None]] = {
    "garbage": lambda dice: send(garbage(dice)),
    "forged": lambda dice: send(forged(dice)),
    "mads": lambda dice: send(mads(dice)),
    "knocks": knocks,
}

if __name__ == "__main__":
    if int(sys.argv[3]) != os.getuid():
        os.setuid(int(sys.argv[3]))
    KINDS[sys.argv[1]](random.Random(sys.argv[2]))
