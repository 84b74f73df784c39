# SPDX-License-Identifier: Apache-2.0
"""Faults that chaos must find: each is planted by `--plant`, in one worker."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import rnic
from chaos import ends, talk
from chaos.payload import Head

if TYPE_CHECKING:
    from chaos.worker import Worker


def wrong_byte(_worker: Worker) -> None:
    """One byte of what peers have written changes."""
    known = talk.Host.act

    def act(self: talk.Host, head: Head) -> None:
        at = talk.place(head.slot)
        self.memory[at] = self.memory[at] ^ 1
        known(self, head)

    talk.Host.act = act  # type: ignore[method-assign]


def hang(_worker: Worker) -> None:
    """Nobody answers any more."""

    async def send(self: ends.SyncEnd, data: bytes) -> None:
        assert self.most >= len(data)
        threading.Event().wait()

    ends.SyncEnd.send = send  # type: ignore[method-assign]


def stuck(_worker: Worker) -> None:
    """The loop stands still."""
    threading.Event().wait()


def leak(_worker: Worker) -> None:
    """A device that nobody closes."""
    _KEPT.append(rnic.open_device("roce_lo"))


def leftover(_worker: Worker) -> None:
    """A process that outlives its parent, with a name of rnic's."""
    if os.fork() == 0:
        os.closerange(0, 2)
        with socket.socket(socket.AF_UNIX) as one:
            one.bind("\0rnic/planted")
            threading.Event().wait()


def crash(_worker: Worker) -> None:
    """A signal that nobody has sent."""
    os.abort()


_KEPT: list[rnic.Context] = []
PLANTS: dict[str, Callable[[Worker], None]] = {
    one.__name__: one for one in (wrong_byte, hang, stuck, leak, leftover, crash)
}
