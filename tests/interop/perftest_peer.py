# SPDX-License-Identifier: Apache-2.0
"""The other end of perftest's ib_write_bw, ib_read_bw, ib_atomic_bw and ib_send_bw (version 6.06, Debian 12).

perftest tells its peer over TCP what to connect to, in this order; in every step the client writes first:

    version (16 bytes of text), page size and cache line size (4 bytes each, big-endian), active MTU (2 bytes
    of text)
    the address of the QP (class Address), twice more as a barrier, and for SEND a third time
    the operations
    a barrier; but for SEND five numbers of 8 bytes, the client's figures, and a barrier
    "done"

The operations themselves go through an end of ends.py: the peer is rnic or, to check this file, the kernel.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from dataclasses import dataclass

import ends
from ends import End, Send

VERSION = b"6.06"
PAGE = 4096  # the client moves through a page with small messages
FIGURES = 5
ADD = 1  # what ib_atomic_bw adds

_ADDRESS = re.compile(
    rb"([0-9a-f]{4}):([0-9a-f]{4}):([0-9a-f]{6}):([0-9a-f]{6}):([0-9a-f]{8}):([0-9a-f]{16}):"
    rb"((?:[0-9a-f]{2}:){16})([0-9a-f]{8}):\0"
)
_ADDRESS_BYTES = 108


@dataclass(frozen=True)
class Address:
    """What perftest says of a QP and its memory."""

    qp_num: int
    psn: int
    rkey: int
    vaddr: int
    gid: bytes
    out_reads: int  # READs and atomics that the sender of this can have outstanding
    lid: int = 0
    srqn: int = 0

    def encode(self) -> bytes:
        numbers = f"{self.lid:04x}:{self.out_reads:04x}:{self.qp_num:06x}:{self.psn:06x}:{self.rkey:08x}"
        gid = "".join(f"{byte:02x}:" for byte in self.gid)
        return f"{numbers}:{self.vaddr:016x}:{gid}{self.srqn:08x}:\0".encode()

    @classmethod
    def parse(cls, message: bytes) -> Address:
        match = _ADDRESS.fullmatch(message)
        if not match:
            raise ValueError(f"not an address of perftest: {message!r}")
        lid, out_reads, qp_num, psn, rkey, vaddr = (int(match[i], 16) for i in range(1, 7))
        gid = bytes.fromhex(match[7].decode().replace(":", ""))
        return cls(qp_num, psn, rkey, vaddr, gid, out_reads, lid, int(match[8], 16))


class Peer:
    """One run of perftest's protocol over a connected TCP socket.

    verb      "write", "read", "atomic" or "send"
    server    this end is perftest's server (passive but for SEND, where it receives)
    """

    def __init__(self, sock: socket.socket, end: End, *, verb: str, server: bool, path_mtu: int) -> None:
        self.sock, self.end, self.verb, self.server = sock, end, verb, server
        here = end.address
        gid = ipaddress.IPv6Address(here.gid).packed
        self.mine = Address(here.qp_num, here.psn, here.rkey, here.addr, gid, out_reads=end.rd_atomic)
        sock.settimeout(60)
        self._swap(VERSION.ljust(16, b"\0"))
        self._swap(PAGE.to_bytes(4, "big"))
        self._swap((64).to_bytes(4, "big"))
        self._swap(f"{(256, 512, 1024, 2048, 4096).index(path_mtu) + 1}\0".encode())
        theirs = Address.parse(self._swap(self.mine.encode()))
        gid_text = ipaddress.IPv6Address(theirs.gid).exploded
        self.remote = ends.Address(theirs.qp_num, theirs.psn, gid_text, theirs.vaddr, theirs.rkey)
        end.connect(self.remote, ends.Path(path_mtu))

    def start(self) -> None:
        """Return when both ends are ready; the client begins then."""
        for _ in range(3 if self.verb == "send" else 2):
            self._barrier()

    def finish(self) -> None:
        """Return when the peer has seen that all is over."""
        self._barrier()
        if self.verb != "send":
            for _ in range(FIGURES):
                self._swap(bytes(8))
            self._barrier()
        self.sock.sendall(b"done\0")

    def _barrier(self) -> None:
        self._swap(self.mine.encode())

    def _swap(self, message: bytes) -> bytes:
        """Write a message and read the peer's of the same length, in the order that the role asks for."""
        if not self.server:
            self.sock.sendall(message)
        answer = b""
        while len(answer) < len(message):
            part = self.sock.recv(len(message) - len(answer))
            if not part:
                raise ConnectionError(f"perftest hung up; the last it said was {answer!r}")
            answer += part
        if self.server:
            self.sock.sendall(message)
        return answer


OPCODES = {
    "write": "RDMA_WRITE",
    "read": "RDMA_READ",
    "atomic": "ATOMIC_FETCH_AND_ADD",
    "send": "SEND",
}


def run_client(peer: Peer, *, size: int, n: int, depth: int = 100) -> None:
    """Do n operations of size bytes, at most depth at a time; each must succeed.

    The old value that atomic number i brings is at offset 8 * i.
    """
    here, remote = peer.end, peer.remote
    peer.start()
    for first in range(0, n, depth):
        batch = min(depth, n - first)
        here.post_send(
            *(
                Send(
                    opcode=OPCODES[peer.verb],
                    sg=[(8 * i if peer.verb == "atomic" else 0, size)],
                    wr_id=i,
                    remote_addr=remote.addr,
                    rkey=remote.rkey,
                    compare_add=ADD,
                )
                for i in range(first, first + batch)
            )
        )
        statuses = {wc.status for wc in here.poll(batch, timeout=60)}
        assert statuses == {"SUCCESS"}, statuses
    peer.finish()


def run_server(peer: Peer, *, size: int, n: int) -> None:
    """Serve a client's n operations; receive what it sends."""
    if peer.verb == "send":
        for i in range(n):
            peer.end.post_recv(i, [(0, size)])
    peer.start()
    if peer.verb == "send":
        wcs = peer.end.poll(n, timeout=60)
        assert [(wc.wr_id, wc.status, wc.byte_len) for wc in wcs] == [(i, "SUCCESS", size) for i in range(n)]
    peer.finish()
