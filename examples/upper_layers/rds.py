# SPDX-License-Identifier: Apache-2.0
"""RDS over RDMA: reliable datagrams between programs with ordinary sockets (AF_RDS).

Of two machines, all sockets' datagrams share one RC connection (rds_rdma), which the kernel makes when the
first is sent. A datagram travels in SENDs of at most 4096 bytes, each with an RDS header of 48 bytes: its
number in the connection, what of the other direction has been received, and the two ports.
"""

from __future__ import annotations

import shlex
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from verify import same

from rnic.vm import Machine
from rnic.wire import Opcode
from wire import listed, read

TITLE = "RDS: datagrams of AF_RDS sockets over one RC connection (rds_rdma)"
PACKAGES: list[str] = []
MODULES = ["rds_rdma"]
PORT = 4000
PEER = Path(__file__).with_name("rds_peer.py").resolve()

BTH, ICRC = 12, 4  # bytes around what a SEND carries
HEADER = struct.Struct("!QQIHHBB4xH16x")  # sequence, acknowledged, length, ports, flags, credit, checksum
FIRSTS = f"infiniband.bth.opcode == {Opcode.RC_SEND_FIRST} || infiniband.bth.opcode == {Opcode.RC_SEND_ONLY}"


def show(server: Machine, client: Machine) -> Iterator[str]:
    """Send datagrams, each of which is sent back."""
    peer = shlex.quote(str(PEER))
    echo = server.spawn(f"python3 {peer} echo {server.ip} {PORT}")
    try:
        echo.expect("bound")
        sent = client.check(f"python3 {peer} send {client.ip} {server.ip} {PORT}")
        received = echo.wait(60).out
    finally:
        echo.kill()
    yield f"{client.ip} sends datagrams, {server.ip} sends them back"
    yield sent.splitlines()[0]
    digest = same(client=sent, server=received)
    yield f"verified: sent, received and received back: SHA-256 {digest[:16]}"


def on_the_wire(pcap: Path) -> list[str]:
    """What the RDS headers say, which tshark does not read. A SEND that is sent again counts once."""
    sends = read(pcap, "ip.src", "ip.dst", "infiniband.bth.psn", "udp.payload", only=FIRSTS)
    once = {(source, psn): (source, target, payload) for source, target, psn, payload in sends}
    ways: Counter[str] = Counter()
    for source, target, payload in once.values():
        said = bytes.fromhex(payload)[BTH:-ICRC]
        _, _, length, sport, dport, *_ = HEADER.unpack_from(said)
        if length:  # else it only acknowledges
            ways[f"from {source} port {sport} to {target} port {dport}:"] += 1
    return [f"SENDs with data, by their RDS headers: {listed(ways)}"]
