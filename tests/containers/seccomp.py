# SPDX-License-Identifier: Apache-2.0
"""Filters of system calls like those of container engines, as BPF programs (seccomp(2))."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import re
import shutil
import struct
import subprocess
from functools import cache

# What Docker's default profile refuses with EPERM to a container without added capabilities.
DOCKER = """
    acct add_key bpf clock_adjtime clock_settime create_module delete_module fanotify_init finit_module
    fsconfig fsmount fsopen fspick get_kernel_syms get_mempolicy init_module io_uring_enter
    io_uring_register io_uring_setup ioperm iopl kcmp kexec_file_load kexec_load keyctl lookup_dcookie
    mbind mount mount_setattr move_mount move_pages name_to_handle_at nfsservctl open_by_handle_at
    open_tree perf_event_open pivot_root query_module quotactl quotactl_fd reboot request_key
    set_mempolicy set_mempolicy_home_node setdomainname sethostname setns settimeofday stime swapoff
    swapon sysfs syslog umount umount2 unshare uselib userfaultfd ustat vhangup vm86 vm86old
""".split()  # noqa: SIM905
# What it refused as well for kernels before 4.8.
OLD = "ptrace process_vm_readv process_vm_writev process_madvise pidfd_getfd".split()  # noqa: SIM905
NAMESPACES = 0x7E020000  # CLONE_NEW*
FAMILIES = (38, 40)  # AF_ALG, AF_VSOCK

PROFILES: dict[str, dict[str, int]] = {
    "docker": dict.fromkeys(DOCKER, errno.EPERM),
    "docker-old": dict.fromkeys(DOCKER + OLD, errno.EPERM),
    "no-memfd": {"memfd_create": errno.ENOSYS},
    "old-kernel": {"epoll_pwait2": errno.ENOSYS, "pidfd_open": errno.ENOSYS, "close_range": errno.ENOSYS},
}

_LD, _JEQ, _JSET, _RET = 0x20, 0x15, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NR, _ARCH, _ARG0 = 0, 4, 16  # in struct seccomp_data
_ARCHES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7, "riscv64": 0xC00000F3}
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _FILTER = 38, 22, 2


def missing() -> str:
    """What keeps this machine from having filters; "" when nothing does."""
    if platform.machine() not in _ARCHES:
        return f"seccomp filters are not written for {platform.machine()}"
    return "" if compiler() else "a C compiler, which knows the numbers of system calls"


def compiler() -> str | None:
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


@cache
def numbers() -> dict[str, int]:
    """Of system calls, as the C library's headers have them."""
    cc = compiler()
    assert cc
    source = "#include <asm/unistd.h>\n"
    found = subprocess.run([cc, "-E", "-dM", "-"], input=source, capture_output=True, text=True, check=True)
    pairs = re.findall(r"#define __NR_(\w+) (\d+)$", found.stdout, re.MULTILINE)
    return {name: int(number) for name, number in pairs}


def program(profile: str) -> bytes:
    """struct sock_filter[]: what is not refused is allowed."""
    known = numbers()
    refused = PROFILES[profile]
    lines = [
        (_LD, 0, 0, _ARCH),
        (_JEQ, 1, 0, _ARCHES[platform.machine()]),
        (_RET, 0, 0, _ALLOW),
        (_LD, 0, 0, _NR),
    ]
    for name, code in refused.items():
        if name in known:
            lines += [(_JEQ, 0, 1, known[name]), (_RET, 0, 0, _ERRNO | code)]
    if profile.startswith("docker"):
        no = (_RET, 0, 0, _ERRNO | errno.EPERM)
        lines += [(_JEQ, 0, 1, known["clone3"]), (_RET, 0, 0, _ERRNO | errno.ENOSYS)]
        clone = [(_LD, 0, 0, _ARG0), (_JSET, 0, 1, NAMESPACES), no, (_RET, 0, 0, _ALLOW)]
        lines += [(_JEQ, 0, len(clone), known["clone"]), *clone]
        socket = [(_LD, 0, 0, _ARG0), *[one for f in FAMILIES for one in ((_JEQ, 0, 1, f), no)]]
        lines += [(_JEQ, 0, len(socket), known["socket"]), *socket]
    return b"".join(struct.pack("=HBBI", *line) for line in [*lines, (_RET, 0, 0, _ALLOW)])


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def confine(code: bytes) -> None:
    """This process, from now on and after exec(), too."""
    libc = ctypes.CDLL(None, use_errno=True)
    described = _Program(len(code) // 8, code)
    rc = libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if rc or libc.prctl(_PR_SET_SECCOMP, _FILTER, ctypes.byref(described), 0, 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "prctl")
