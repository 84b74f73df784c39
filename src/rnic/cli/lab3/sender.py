# SPDX-License-Identifier: Apache-2.0
"""The end of lab 3 that has a file: drives protocol.Sender over a connection."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from rich.console import Console

import rnic
from rnic.cli.demo import Advance, progress, read_exactly, say, sha256
from rnic.cli.lab3.line import Line, connect
from rnic.cli.lab3.protocol import Action, Finish, Send, Sender, Write
from rnic.cli.params import show_size

PIECE = 1 << 20  # bytes of one RDMA WRITE
WINDOW = 4  # RDMA WRITEs on their way at a time


def send_file(host: str, port: int, path: Path, who: str, timeout: float, console: Console) -> str:
    """Send the file and say how it goes; the secret key."""
    with path.open("rb") as file:
        length = os.fstat(file.fileno()).st_size
        with progress(console, "SHA-256", length) as advance:
            digest = sha256(file, advance)
        say(console, f"{path}: {show_size(length)}, SHA-256 {digest}")
        machine = Sender(length, bytes.fromhex(digest), who)
        with connect(host, port, timeout) as line:
            say(console, f"connected to {host} port {port}")
            with progress(console, "RDMA WRITE", length) as advance:
                writer = Writer(line, file, length, advance)
                key = drive(machine, line, writer.write)
            say(console, "the receiver has it: the hash is right")
            line.hang_up()
            return key


def drive(machine: Sender, line: Line, write: Callable[[Write], None]) -> str:
    """From the announcement to the secret key."""
    action: Action = machine.connected()
    while not isinstance(action, Finish):
        if isinstance(action, Write):
            write(action)
            action = machine.written()
        else:
            assert isinstance(action, Send)
            data = line.ask(action.message, machine.doing)
            action = machine.receive(data)
    return action.key


class Writer:
    """Moves chunks of the file: while some pieces are on their way the next are read."""

    def __init__(self, line: Line, file: BinaryIO, length: int, advance: Advance) -> None:
        self._line, self._file, self._advance = line, file, advance
        self._size = min(PIECE, max(length, 1))
        self._staging = line.stack.enter_context(
            line.pd.alloc_mr(self._size * WINDOW, rnic.AccessFlags.LOCAL_WRITE)
        )
        self._lengths = [0] * WINDOW
        self._free = list(range(WINDOW))

    def write(self, chunk: Write) -> None:
        """RDMA WRITE a chunk; it is in the region when this returns."""
        self._file.seek(chunk.offset)
        posted = 0
        while posted < chunk.length:
            self._reap(1)
            size = min(self._size, chunk.length - posted)
            self._post(size, chunk.region.addr + posted, chunk.region.rkey)
            posted += size
        self._reap(WINDOW)

    def _post(self, size: int, addr: int, rkey: int) -> None:
        slot = self._free.pop()
        start = slot * self._size
        with self._staging.buf[start : start + size] as view:
            read_exactly(self._file, view)
        piece = rnic.SGE(self._staging, start, size)
        self._lengths[slot] = size
        self._line.cm_id.post_write(piece, remote_addr=addr, rkey=rkey, wr_id=slot)

    def _reap(self, wanted: int) -> None:
        """Wait until so many slots are free."""
        while len(self._free) < wanted:
            self._line.until(lambda: bool(self._line.written), "writing to the region")
            slot = self._line.written.popleft()
            self._free.append(slot)
            self._advance(self._lengths[slot])
