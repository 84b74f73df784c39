# SPDX-License-Identifier: Apache-2.0
"""The machine: kernel, processors, namespaces, memory, environment."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import re
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from rnic.cli import environment
from rnic.cli.doctor.finding import Finding, degraded, good, missing
from rnic.cli.params import printable, show_size

OLDEST = (5, 1)  # what is missing before: F_SEAL_FUTURE_WRITE; UDP_GRO is of 5.0, UDP_SEGMENT of 4.18
F_SEAL_FUTURE_WRITE = 0x10
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
FIRST_PID_NAMESPACE = 0xEFFFFFFC  # inode: the kernel's PROC_PID_INIT_INO
LOCKED = 64 << 10  # bytes that are locked to see whether that works


def look() -> Iterator[Finding]:
    """All checks of the machine."""
    yield kernel()
    yield processors()
    yield memory_file()
    yield locked_memory()
    yield pid_namespace()
    yield network_namespace()
    yield variables()


def text_of(path: str) -> str:
    """The contents of a file of /proc or /sys, without the newline; empty if there is no such file."""
    try:
        return Path(path).read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def kernel() -> Finding:
    release = platform.release()
    number = re.match(r"(\d+)\.(\d+)", release)
    found = f"{platform.system()} {release}"
    if number and (int(number[1]), int(number[2])) >= OLDEST:
        return good("kernel", found)
    return degraded("kernel", found, "Linux 5.1 or newer has everything that rnic uses")


def processors() -> Finding:
    count = len(os.sched_getaffinity(0))
    if count > 1:
        return good("processors", f"{count} for this process")
    return degraded(
        "processors",
        "1 for this process: a polling program keeps the peer and the engine thread waiting",
        "taskset, or more CPUs for the container or virtual machine",
    )


def memory_file() -> Finding:
    """Try memfd_create(2) with the seals that prevent a peer from shrinking the file."""
    what = "memory files"
    try:
        fd = os.memfd_create("rnic-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        return missing(what, f"memfd_create: {error.strerror}", "a sandbox forbids it: allow it", needed=True)
    try:
        os.ftruncate(fd, 4096)
        if why := _unsealed(fd, fcntl.F_SEAL_SHRINK):
            return missing(what, f"cannot be sealed: {why}", "a sandbox forbids it: allow it", needed=True)
        if why := _unsealed(fd, F_SEAL_FUTURE_WRITE):
            found = f"made, and not sealed against writing ({why}): read-only memory is in the common file"
            return degraded(what, found, "Linux 5.1 or newer")
    finally:
        os.close(fd)
    return good(what, "made and sealed")


def _unsealed(fd: int, seal: int) -> str:
    """Why the file does not accept this seal, or nothing."""
    try:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seal)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def locked_memory() -> Finding:
    """Lock memory as reg_mr(lock=True) does."""
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    allowed = "without limit" if limit == resource.RLIM_INFINITY else f"up to {show_size(limit)}"
    what, cure = (
        "locked memory",
        "ulimit -l, LimitMEMLOCK= of systemd, or CAP_IPC_LOCK; only lock=True needs it",
    )
    pages, libc = bytearray(LOCKED), ctypes.CDLL(None, use_errno=True)
    at, size = (ctypes.c_char * LOCKED).from_buffer(pages), ctypes.c_size_t(LOCKED)
    if libc.mlock(at, size):
        return missing(what, f"mlock: {os.strerror(ctypes.get_errno())} ({allowed})", cure)
    libc.munlock(at, size)
    if resource.RLIM_INFINITY != limit < 1 << 20 and os.geteuid() != 0:
        return degraded(what, allowed, cure)
    return good(what, allowed)


def pid_namespace() -> Finding:
    what = "process ids"
    try:
        first = Path("/proc/self/ns/pid").stat().st_ino == FIRST_PID_NAMESPACE
    except OSError as error:
        return degraded(what, f"/proc/self/ns: {error.strerror}", "mount /proc")
    if first:
        return good(what, "those of the host")
    return good(what, "of a namespace (a container): ordinary memory of peers outside is copied twice")


def network_namespace() -> Finding:
    """Try to make a network namespace, in a child process."""
    what = "network namespaces"
    refused = _refused(0) or _refused(CLONE_NEWNET)
    if refused and os.geteuid() != 0 and not _refused(CLONE_NEWUSER | CLONE_NEWNET):
        return good(what, "in a new user namespace (unshare -rn)")
    if not refused:
        return good(what, "can be made")
    return missing(
        what,
        f"cannot be made: {os.strerror(refused)}; rnic's tests take turns on this machine's own network",
        "root, or user namespaces (kernel.unprivileged_userns_clone, user.max_user_namespaces, AppArmor)",
    )


def _refused(flags: int) -> int:
    """The errno of unshare(2) in a child; 0 if it is allowed."""
    unshare = ctypes.CDLL(None, use_errno=True).unshare
    pid = os.fork()
    if pid == 0:  # nothing but the call: threads of this process are not in the child
        status = errno.EIO
        with suppress(BaseException):
            status = ctypes.get_errno() if unshare(flags) else 0
        os._exit(min(status, 255))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def variables() -> Finding:
    """A wrong value is told by what it breaks."""
    shown = environment.shown()
    return good("environment", printable(shown) if shown else "no variable of rnic's is set")
