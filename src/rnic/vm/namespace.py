# SPDX-License-Identifier: Apache-2.0
"""A network namespace, without root with a user namespace: where one may make a tap device; entering it."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import struct
import time
from contextlib import ExitStack, suppress
from pathlib import Path

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
PR_SET_PDEATHSIG = 1
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
_LIBC = ctypes.CDLL(None, use_errno=True)


def leave() -> None:
    """This process goes into a network namespace of its own, without root into one where it is root."""
    with suppress(PermissionError):
        _check(_LIBC.unshare(CLONE_NEWNET))
        _loopback_up()
        return
    uid, gid = os.geteuid(), os.getegid()
    try:
        _check(_LIBC.unshare(CLONE_NEWUSER | CLONE_NEWNET))
        for name, text in ("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1"):
            Path("/proc/self", name).write_text(text)
        _loopback_up()
    except OSError as error:
        raise PermissionError(
            f"no user and network namespace of its own ({error.strerror}), needed without root: "
            "as root, sysctl kernel.unprivileged_userns_clone=1 or, on newer systems, "
            "sysctl kernel.apparmor_restrict_unprivileged_userns=0; in a container, "
            "a seccomp profile that allows it"
        ) from None


def enter(pid: int) -> None:
    """This process goes into the namespaces of another; it must have one thread."""
    _until_alone()
    with ExitStack() as stack:  # it has all, or stays where it is
        theirs = [
            (name, kind, stack.enter_context(Path(f"/proc/{pid}/ns/{name}").open()))
            for name, kind in (("user", CLONE_NEWUSER), ("net", CLONE_NEWNET))
        ]
        for name, kind, there in theirs:
            if os.fstat(there.fileno()).st_ino != Path(f"/proc/self/ns/{name}").stat().st_ino:
                _check(_LIBC.setns(there.fileno(), kind))


def _until_alone() -> None:
    """A thread that was joined may still be on its way out."""
    limit = time.monotonic() + 1
    while len(list(Path("/proc/self/task").iterdir())) > 1 and time.monotonic() < limit:
        time.sleep(0.001)


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """The kernel sends this process a signal when its parent has ended."""
    _check(_LIBC.prctl(PR_SET_PDEATHSIG, number))


def _loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        found = fcntl.ioctl(s, SIOCGIFFLAGS, struct.pack("16sH14x", b"lo", 0))
        (flags,) = struct.unpack("16xH14x", found)
        fcntl.ioctl(s, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | IFF_UP))


def _check(rc: int) -> None:
    if rc != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
