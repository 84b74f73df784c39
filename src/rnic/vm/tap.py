# SPDX-License-Identifier: Apache-2.0
"""The tap device that this computer and a machine share.

Nothing else of the computer's network is touched. The device ends with the last descriptor of it, so that
nothing is left when the keeper is killed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct

from rnic.vm import namespace
from rnic.vm.host import TUN, sh

TUNSETIFF, IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x400454CA, 0x0002, 0x1000, 0x4000
MOST = 64  # machines in one network namespace


class Tap:
    """A tap device rnicvm<n> with the host's addresses, n the first that is free; fd is for QEMU."""

    def __init__(self, mtu: int) -> None:
        self.fd, self.index = _open_first_free()
        self.name = f"rnicvm{self.index}"
        self.mac = f"52:54:00:77:00:{self.index:02x}"
        self.host_ip, self.guest_ip = f"10.77.{self.index}.1", f"10.77.{self.index}.2"
        self.host_ip6, self.guest_ip6 = f"fd77:0:0:{self.index:x}::1", f"fd77:0:0:{self.index:x}::2"
        try:
            sh("ip", "link", "set", self.name, "mtu", mtu, "up")
            sh("ip", "addr", "add", f"{self.host_ip}/24", "dev", self.name)
            sh("ip", "addr", "add", f"{self.host_ip6}/64", "dev", self.name, "nodad")
        except BaseException:
            os.close(self.fd)
            raise

    def close(self) -> None:
        """Give up this process's hold on the device."""
        os.close(self.fd)


def make(mtu: int) -> Tap:
    """Where this process may not make one, it goes into a namespace of its own."""
    try:
        return Tap(mtu)
    except PermissionError:
        namespace.leave()
        return Tap(mtu)


def _open_first_free() -> tuple[int, int]:
    for index in range(MOST):
        fd = os.open(TUN, os.O_RDWR | os.O_CLOEXEC)
        flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR
        try:
            fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", b"rnicvm%d" % index, flags))
            return fd, index
        except OSError as error:
            os.close(fd)
            if error.errno != errno.EBUSY:
                raise
    raise RuntimeError(f"{MOST} machines run in this network namespace")
