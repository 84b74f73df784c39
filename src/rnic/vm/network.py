# SPDX-License-Identifier: Apache-2.0
"""A network of machines: a namespace with a bridge that joins their tap devices.

The first machine's keeper makes the namespace, the others enter it. Namespace and bridge end with the last
keeper, however that ends, and this computer's own network has no part in it. That a machine belongs to a
network says the file "network" in the machine's folder.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from rnic.vm import lock, namespace
from rnic.vm.client import keeper_of
from rnic.vm.host import sh
from rnic.vm.paths import NAMES, Folder, folders, machines

BRIDGE = "rnicvm"
MAC = "52:54:00:77:01:00"  # its own; else it is that of a tap device, and changes when a machine ends
HOST_IP, HOST_IP6 = "10.77.0.1", "fd77::1"
PATIENCE = 60.0  # seconds until a keeper gives up; each has the lock for a fraction of one


class Turn(NamedTuple):
    """What a keeper does while it waits for another one: see lock.take()."""

    say: Callable[[str], object]
    look: Callable[[], object]


def join(name: str, mtu: int, folder: Folder, turn: Turn) -> None:
    """This process, which is the keeper of the folder's machine, goes into the network; both have its MTU."""
    with _locked(turn):
        if not _enter(name, mtu):
            namespace.leave()
            sh("ip", "link", "add", "name", BRIDGE, "address", MAC, "type", "bridge")
            sh("ip", "link", "set", BRIDGE, "mtu", mtu, "up")
            sh("ip", "addr", "add", f"{HOST_IP}/24", "dev", BRIDGE)
            sh("ip", "addr", "add", f"{HOST_IP6}/64", "dev", BRIDGE, "nodad")
        folder.network.write_text(f"{name} {mtu}")


def check_name(name: str) -> None:
    """ValueError, if it is none."""
    if not NAMES.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a network: letters, digits, and . _ - behind the first")


def _enter(name: str, mtu: int) -> bool:
    """Whether there was somebody to follow."""
    for folder in folders():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, ConnectionError):  # it has gone
            found, _, its_mtu = folder.network.read_text().partition(" ")
            if found != name:
                continue
            if int(its_mtu) != mtu:
                raise RuntimeError(
                    f"the network {name}, in which {folder.name} is, has an MTU of {its_mtu}, not of {mtu}: "
                    f"use {its_mtu}, or another network"
                )
            namespace.enter(_keeper(folder))
            return True
    return False


def _keeper(folder: Folder) -> int:
    with socket.socket(socket.AF_UNIX) as sock, folder.address() as address:
        sock.connect(address)
        return keeper_of(sock)


@contextmanager
def _locked(turn: Turn, patience: float = PATIENCE) -> Iterator[None]:
    """Two keepers must not both be the first."""
    fd = os.open(machines(), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        lock.take(fd, machines(), patience, turn.say, turn.look)
        yield
    finally:
        os.close(fd)
