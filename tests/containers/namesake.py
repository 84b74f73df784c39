# SPDX-License-Identifier: Apache-2.0
"""A stranger of the same pid in the outer namespace, whose /proc the inner one sees.

`python -m containers.namesake`.  The stranger has a sealed file at every descriptor where the namesake's
could be, so that only a look at the file itself tells the two apart.  Exit code 77: this system does not
let a process choose the pid of its child.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from namespaces import unshare
from rnic import MR, SGE, AccessFlags, SendWR, WROpcode
from rnic.testing import End, connect_through

NEWPID, IMPOSSIBLE, BYTES, ROUNDS = 0x20000000, 77, 65536, 3
STRANGER, NAMESAKE = b"stranger", b"namesake"


def owner(text: bytes) -> tuple[End, MR]:
    """Memory that peers may read and nobody's requests may write: a file of its own."""
    end = End()
    memory = end.memory(BYTES, AccessFlags.REMOTE_READ)
    memory.buf[:] = text * (BYTES // len(text))
    return end, memory


def stranger() -> int:
    end, _memory = owner(STRANGER)
    with end:
        files = {int(entry.name): target(entry) for entry in Path("/proc/self/fd").iterdir()}
        (sealed,) = [fd for fd, name in files.items() if "memfd:rnic-sealed" in name]
        for fd in set(range(3, 256)) - files.keys():
            os.dup2(sealed, fd)
        pid = os.getpid()
        child = os.fork()
        if child == 0:
            os._exit(inner(pid))
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def target(entry: Path) -> str:
    try:
        return str(entry.readlink())
    except FileNotFoundError:  # of the listing itself
        return ""


def inner(number: int) -> int:
    """Begin the namesake and its client, in a pid namespace of their own."""
    unshare(NEWPID)
    first = os.fork()
    if first:
        return os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])
    ours, theirs = socket.socketpair()
    with ours, theirs:
        processes = [begin(number, "server", ours), begin(number + 100, "client", theirs)]
    return max(process.wait() for process in processes)


def begin(number: int, role: str, line: socket.socket) -> subprocess.Popen[bytes]:
    try:
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(number - 1))
    except OSError:
        os._exit(IMPOSSIBLE)
    command = [sys.executable, "-m", "containers.namesake", role, str(line.fileno()), str(number)]
    return subprocess.Popen(command, pass_fds=[line.fileno()])


def server(line: socket.socket) -> None:
    end, memory = owner(NAMESAKE)
    with end:
        connect_through(end.qp, line)
        line.sendall(f"{memory.addr:020}{memory.rkey:020}".encode())
        line.recv(1)


def client(line: socket.socket) -> None:
    with End(sq_sig_all=True) as end:
        connect_through(end.qp, line)
        where = line.recv(40, socket.MSG_WAITALL)
        memory = end.memory(BYTES)
        for _ in range(ROUNDS):  # the first one of a connection is a packet
            memory.buf[:] = bytes(BYTES)
            element = SGE(memory, 0, BYTES)
            end.qp.post_send(
                SendWR(
                    opcode=WROpcode.RDMA_READ,
                    sg_list=[element],
                    remote_addr=int(where[:20]),
                    rkey=int(where[20:]),
                )
            )
            end.wait_ok()
            assert bytes(memory.buf[: len(NAMESAKE)]) == NAMESAKE, bytes(memory.buf[:16])
        line.sendall(b".")


def main() -> int:
    if len(sys.argv) == 1:
        return stranger()
    _, role, fd, number = sys.argv
    if os.getpid() != int(number):
        return IMPOSSIBLE
    with socket.socket(fileno=int(fd)) as line:
        server(line) if role == "server" else client(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
