# SPDX-License-Identifier: Apache-2.0
"""The tap device that this computer and a machine share, or the machines of a network.

Nothing else of the computer's network is touched. The device ends with the last descriptor of it, so that
nothing is left when the keeper is killed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct

from rnic.vm import namespace, network
from rnic.vm.host import TUN, sh
from rnic.vm.paths import Folder

TUNSETIFF, IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x400454CA, 0x0002, 0x1000, 0x4000
MOST = 64  # machines in one network namespace


class Tap:
    """A tap device rnicvm<n>, n the first that is free; fd is for QEMU.

    bridged  it is a port of the network's bridge, which has the host's addresses; else it has them itself
    netdev   the device with the host's addresses
    """

    def __init__(self, mtu: int, *, bridged: bool) -> None:
        self.fd, index = _open_first_free()
        name = f"rnicvm{index}"
        self.mac = f"52:54:00:77:00:{index:02x}"
        try:
            sh("ip", "link", "set", name, "mtu", mtu, "up")
            if bridged:
                self._bridged(name, index)
            else:
                self._alone(name, index)
        except BaseException:
            os.close(self.fd)
            raise

    def _alone(self, name: str, index: int) -> None:
        self.netdev = name
        self.host_ip, self.guest_ip = f"10.77.{index}.1", f"10.77.{index}.2"
        self.host_ip6, self.guest_ip6 = f"fd77:0:0:{index:x}::1", f"fd77:0:0:{index:x}::2"
        sh("ip", "addr", "add", f"{self.host_ip}/24", "dev", name)
        sh("ip", "addr", "add", f"{self.host_ip6}/64", "dev", name, "nodad")

    def _bridged(self, name: str, index: int) -> None:
        self.netdev = network.BRIDGE
        self.host_ip, self.guest_ip = network.HOST_IP, f"10.77.0.{2 + index}"
        self.host_ip6, self.guest_ip6 = network.HOST_IP6, f"fd77::{2 + index:x}"
        sh("ip", "link", "set", name, "master", network.BRIDGE)

    def close(self) -> None:
        """Give up this process's hold on the device."""
        os.close(self.fd)


def make(mtu: int, among: str, folder: Folder, turn: network.Turn) -> Tap:
    """The tap device of the folder's machine, in the network of that name, or in none ("").

    In none, a process that may not make one here goes into a namespace of its own.
    """
    if among:
        network.join(among, mtu, folder, turn)
        return Tap(mtu, bridged=True)
    try:
        return Tap(mtu, bridged=False)
    except PermissionError:
        namespace.leave()
        return Tap(mtu, bridged=False)


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
