# SPDX-License-Identifier: Apache-2.0
"""The tap device that host and guest share, and capturing what passes on it.

Nothing else of this machine's network is touched.  The device ends with the last descriptor of it, so that
nothing is left when a test run is killed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pathlib
import re
import signal
import struct
import subprocess
import time

from .host import sh

TUNSETIFF, IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x400454CA, 0x0002, 0x1000, 0x4000


class Tap:
    """A tap device rniclab<n> with the host's addresses, n the first that is free; fd is for QEMU."""

    def __init__(self, mtu: int) -> None:
        self.fd, self.index = _open_first_free()
        self.mtu = mtu
        self.name = f"rniclab{self.index}"
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


def _open_first_free() -> tuple[int, int]:
    for index in range(64):
        fd = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
        flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR
        try:
            fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", b"rniclab%d" % index, flags))
            return fd, index
        except OSError as e:
            os.close(fd)
            if e.errno != errno.EBUSY:
                raise
    raise RuntimeError("64 lab guests are running on this machine")


class Capture:
    """tcpdump on a network device, writing to a file, from construction to stop()."""

    def __init__(self, netdev: str, path: pathlib.Path, what: str = "udp port 4791") -> None:
        self.path = path
        command = [
            "tcpdump",
            "-i",
            netdev,
            "-U",
            "-n",
            "-Z",
            "root",
            "-B",
            "65536",
            "-s",
            "0",
            "-w",
            str(path),
            what,
        ]
        self._tcpdump = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
        assert self._tcpdump.stderr is not None
        self._said = self._tcpdump.stderr.readline()  # "listening on ...": from here on nothing is missed
        while "listening on" not in self._said:
            line = self._tcpdump.stderr.readline()
            if not line:
                raise RuntimeError(f"tcpdump: {self._said}")
            self._said += line

    def stop(self) -> pathlib.Path:
        """End the capture; the file.  A packet that tcpdump could not keep is an error."""
        if self._tcpdump.poll() is None:
            time.sleep(
                1.2
            )  # the kernel hands packets over in blocks, and one that is not full after a second
            self._tcpdump.send_signal(signal.SIGINT)
            self._said += self._tcpdump.communicate(timeout=20)[1]
            lost = re.search(r"(\d+) packets? dropped by kernel", self._said)
            if not lost or lost[1] != "0":
                raise RuntimeError(f"the capture is not complete: {self._said}")
        return self.path
