# SPDX-License-Identifier: Apache-2.0
"""Which module of the course is tested in which way."""

from __future__ import annotations

from rnic.kmod.memory_roles import Disk, Rw
from rnic.kmod.roles import Client, Devices, Listener, Procfile, Role

_ROLES: dict[str, type[Role]] = {
    "procfile": Procfile,
    "devices": Devices,
    "client": Client,
    "listener": Listener,
    "rw": Rw,
    "blockdev": Disk,
}


def role_of(made_from: str) -> type[Role]:
    """By the module of the course that it is, or was made from."""
    return _ROLES.get(made_from, Role)
