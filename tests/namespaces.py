# SPDX-License-Identifier: Apache-2.0
"""Network namespaces: in one of our own no other process shares UDP 4791 and the slots.

`python tests/namespaces.py COMMAND...` runs a command in a new one, as the user and with the rights that it
would have had anyway.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import sys
from pathlib import Path

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
OURS = False  # whether this process is in one
LIBC = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int = CLONE_NEWNET) -> None:
    check(LIBC.unshare(flags))


def enter(fd: int) -> None:
    """This thread into the network namespace of a descriptor."""
    check(LIBC.setns(fd, CLONE_NEWNET))


def check(rc: int) -> None:
    if rc != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        found = fcntl.ioctl(s, SIOCGIFFLAGS, struct.pack("16sH14x", b"lo", 0))
        (flags,) = struct.unpack("16xH14x", found)
        fcntl.ioctl(s, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | IFF_UP))


def network_of_our_own(up: bool = True, as_root: bool = False) -> None:
    """An ordinary user needs a user namespace, too, and keeps the user id there.

    The rights over the network then end with exec(), unless the user is root inside (as_root).
    """
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0:
        unshare()
    else:
        unshare(CLONE_NEWUSER | CLONE_NEWNET)
        inside = (0, 0) if as_root else (uid, gid)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{inside[0]} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{inside[1]} {gid} 1")
    if up:
        loopback_up()
    global OURS
    OURS = True


def main() -> None:
    try:
        network_of_our_own()
    except OSError as error:
        sys.exit(f"no network namespace of our own: {error}")
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
