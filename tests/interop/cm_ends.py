# SPDX-License-Identifier: Apache-2.0
"""Seats of scripted conversations (rdmacm.seat) on the two sides of a link."""

from __future__ import annotations

import json
import socket
from typing import Any

PORT = 7473
CRASH = "crash"


class KernelSeat:
    """A seat in the guest, where guest_cm.py listens."""

    def __init__(self, guest: str) -> None:
        self.ip = guest
        self._socket = socket.create_connection((guest, PORT), timeout=120)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rwb")
        self._file.write(guest.encode() + b"\n")

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self._do(name, *arguments)

    def do(self, name: str, call: str) -> str:
        try:
            return str(self._do("do", name, call))
        except ConnectionError:
            return CRASH

    def close(self) -> None:
        """The ids end with their process; that may take the kernel 100 s, when it waits for its own REQ."""
        self._file.close()
        self._socket.close()

    def _do(self, name: str, *arguments: Any) -> Any:
        self._file.write(json.dumps({"do": name, "with": arguments}).encode() + b"\n")
        self._file.flush()
        line = self._file.readline()
        if not line:
            raise ConnectionError(f"the guest's process ended during {name}{arguments}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"in the guest, {name}{arguments}: {answer['error']}")
        return answer["result"]
