# SPDX-License-Identifier: Apache-2.0
"""Ends of differential programs on the two sides of a link: the kernel's in the guest, rnic's here."""

from __future__ import annotations

import base64
import json
import socket
from dataclasses import asdict
from typing import Any

from differential.end import Address, Request
from differential.model import Completion
from differential.program import Connect, Program

PORT = 7472


class KernelEnd:
    """What it does is done by guest_differential.py; server is where that listens."""

    def __init__(self, server: tuple[str, int], gid: str, program: Program, seed: int) -> None:
        self._socket = socket.create_connection(server, timeout=120)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rwb")
        kind = {"service": program.service, "sig_all": program.sig_all, "shared": program.shared[seed]}
        self._do("open", gid=gid, seed=seed, **kind)

    def renew(self, sig_all: bool) -> Address:  # noqa: ARG002 - it knows
        return Address(**self._do("renew"))

    def address(self) -> Address:
        return Address(**self._do("renew"))

    def connect(self, peer: Address, how: Connect, own_psn: int, peer_psn: int, rights: str) -> None:
        said = {"peer": asdict(peer), "how": asdict(how), "own_psn": own_psn, "peer_psn": peer_psn}
        self._do("connect", **said, rights=rights)

    def bind(self, at: int, length: int) -> int:
        return int(self._do("bind", at=at, length=length))

    def post_recv(self, receives: list[tuple[int, Any, bool]]) -> None:
        if receives:
            self._do("post_recv", receives=receives)

    def post_send(self, requests: list[Request], chained: bool) -> None:  # noqa: ARG002 - pyverbs posts one by one
        self._do("post_send", requests=[asdict(request) for request in requests])

    def collect(
        self, sent: int, received: int, timeout: float = 60.0
    ) -> tuple[list[Completion], list[Completion]]:
        found = self._do("collect", sent=sent, received=received, timeout=timeout)
        return [Completion(*wc) for wc in found[0]], [Completion(*wc) for wc in found[1]]

    def digest(self, holes: Any) -> str:
        return str(self._do("digest", holes=holes))

    def memory(self) -> bytes:
        return base64.b64decode(self._do("memory"))

    def state(self) -> str:
        return str(self._do("state"))

    def break_(self, how: str) -> None:
        self._do("break_", how=how)

    def refuse(self, what: str) -> str:
        return str(self._do("refuse", what=what))

    def arm(self, limit: int) -> None:
        self._do("arm", limit=limit)

    def events(self, number: int, timeout: float) -> list[str]:
        return list(self._do("events", number=number, timeout=timeout))

    def refill(self) -> None:
        self._do("refill")

    def close(self) -> None:
        """Return when the queue pair is gone, not only asked to go."""
        self._do("close")
        self._file.close()
        self._socket.close()

    def _do(self, op: str, **arguments: Any) -> Any:
        self._file.write(json.dumps({"op": op, **arguments}).encode() + b"\n")
        self._file.flush()
        line = self._file.readline()
        if not line:
            raise ConnectionError(f"guest_differential.py ended during {op}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"in the guest, {op}: {answer['error']}")
        return answer["result"]
