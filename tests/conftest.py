# SPDX-License-Identifier: Apache-2.0
"""What all tests share."""

import ctypes
import fcntl
import os
import socket
import struct
from pathlib import Path

import pytest

CLONE_NEWNET = 0x40000000
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1


def loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        found = fcntl.ioctl(s, SIOCGIFFLAGS, struct.pack("16sH14x", b"lo", 0))
        (flags,) = struct.unpack("16xH14x", found)
        fcntl.ioctl(s, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | IFF_UP))


def pytest_collection_finish(session: pytest.Session) -> None:
    """As root, in a network namespace of our own: no other process shares UDP 4791 and the slots then.

    The interop tests stay outside: they fetch packages.
    """
    inside = os.geteuid() == 0 and not any(item.get_closest_marker("interop") for item in session.items)
    if inside and ctypes.CDLL(None).unshare(CLONE_NEWNET) == 0:
        loopback_up()


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return Path(__file__).resolve().parent.parent
