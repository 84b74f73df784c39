# SPDX-License-Identifier: Apache-2.0
"""An end of RDS, with the sockets that the kernel has for it.

    python3 rds_peer.py echo OWN_IP PORT            sends back what comes, until an empty datagram does
    python3 rds_peer.py send OWN_IP PEER_IP PORT

Both print the digest of what they have received.
"""

import hashlib
import os
import socket
import sys

SIZES = (1, 100, 4096, 4097, 100_000)  # 4096: what one SEND carries
PATIENCE = 60.0  # seconds


def bound(ip: str, port: int) -> socket.socket:
    """A socket: RDS has one type, a datagram keeps its ends, and none is lost or comes twice."""
    sock = socket.socket(socket.AF_RDS, socket.SOCK_SEQPACKET)
    sock.settimeout(PATIENCE)
    sock.bind((ip, port))
    return sock


def echo(own: str, port: str) -> None:
    """Send back what comes."""
    sock = bound(own, int(port))
    print("bound", flush=True)
    seen = hashlib.sha256()
    while True:
        data, source = sock.recvfrom(1 << 20)
        if not data:
            break
        seen.update(data)
        sock.sendto(data, source)
    print(seen.hexdigest())


def send(own: str, peer: str, port: str) -> None:
    """Send one datagram of each size, and wait for it to come back."""
    sock = bound(own, 0)
    sent, back = hashlib.sha256(), hashlib.sha256()
    for size in SIZES:
        data = os.urandom(size)
        sock.sendto(data, (peer, int(port)))
        sent.update(data)
        back.update(sock.recv(1 << 20))
    sock.sendto(b"", (peer, int(port)))
    print(f"{len(SIZES)} datagrams of {', '.join(map(str, SIZES))} bytes")
    print(sent.hexdigest(), back.hexdigest(), sep="\n")


if __name__ == "__main__":
    {"echo": echo, "send": send}[sys.argv[1]](*sys.argv[2:])
