# SPDX-License-Identifier: Apache-2.0
"""The peer of the modules rw and blockdev, with a file as its memory, and one RDMA device in the guest.

with one_device(box, "siw"), Memory(path, 1 << 20, "siw") as memory:
    with box.loaded("rw", addr=box.machine.host_ip, port=memory.port):
        ...
"""

from __future__ import annotations

import os
import queue
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from modules import SOURCE, Box

from rnic.rdmacm import ConnParam, EventChannel, EventType, create_id

TRANSPORTS = {"rxe": "roce", "siw": "iwarp"}  # rnic's, by the guest's device
PAGE = 4096
PATIENCE = 60.0  # seconds for a line of the peer


@contextmanager
def one_device(box: Box, kind: str) -> Iterator[None]:
    """Meanwhile the guest has one RDMA device: a module cannot choose the one that it connects by."""
    others = [
        other for other in TRANSPORTS if other != kind and f"{other}0" in box.machine.check("rdma link")
    ]
    for other in others:
        box.machine.check(f"rdma link delete {other}0")
    try:
        yield
    finally:
        for other in others:
            box.machine.check(f"rdma link add {other}0 type {other} netdev eth0")


@contextmanager
def losing(box: Box, percent: int) -> Iterator[None]:
    """Meanwhile the guest loses so many of the packets that it sends."""
    box.machine.check(f"tc qdisc replace dev eth0 root netem loss {percent}% limit 100000")
    try:
        yield
    finally:
        box.machine.check("tc qdisc delete dev eth0 root")


class Lines:
    """The lines that a program prints, as they come."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.seen: list[str] = []
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self._lines.put(line)

    def line(self, part: str) -> str:
        """Wait for a line that has this part; those before it are in `seen`."""
        try:
            while part not in (line := self._lines.get(timeout=PATIENCE)):
                self.seen.append(line)
        except queue.Empty:
            raise AssertionError(f"the peer has not said {part!r}: {self.seen}") from None
        return line

    def kill(self) -> None:
        """End the program at once."""
        self.process.kill()
        self.process.wait()
        self._reader.join()


class Liar(threading.Thread):
    """A peer without memory, which makes an offer and sends one message to who connects; b"": none.

    receives: how many messages it has a receive for.
    """

    def __init__(self, device: str, length: int = 1 << 20, message: bytes = b"?", receives: int = 1) -> None:
        super().__init__(daemon=True)
        self.events = EventChannel()
        self.listener = create_id(self.events, device=device)
        self.listener.bind_addr(("0.0.0.0", 0))
        self.listener.listen()
        self.port = self.listener.get_src_port()
        self.message, self.receives = message, receives
        self.offer = struct.pack(">IHHQQI4x", 0x726E6963, 1, 1, 0, length, 0)  # rnic_offer of message.h

    def run(self) -> None:
        """Serve one client."""
        with self.events.get_cm_event(PATIENCE) as event:
            client = event.id
            client.create_qp()
            asked = client.reg_msgs(bytearray(PAGE))
            for _ in range(self.receives):
                client.post_recv(asked)
            client.accept(ConnParam(private_data=self.offer))
        with asked, client.reg_msgs(bytearray(self.message or 1)) as message:
            while event.event is not EventType.DISCONNECTED:
                with self.events.get_cm_event(PATIENCE) as event:
                    if event.event is EventType.ESTABLISHED and self.message:
                        client.post_send(message)
            client.disconnect()
            client.destroy()

    def __enter__(self) -> Liar:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.join(PATIENCE)
        self.listener.destroy()
        self.events.close()


class Memory(Lines):
    """peer_memory.py, with a file as its memory."""

    def __init__(self, path: Path, size: int, kind: str, *options: str) -> None:
        self.path = path
        program = SOURCE / "peer_memory.py"
        super().__init__(
            subprocess.Popen(
                [sys.executable, "-u", program, "--port=0", f"--size={size}", "--file", path, *options],
                env=dict(os.environ, RNIC_TRANSPORT=TRANSPORTS[kind]),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
        self.port = int(self.line("bytes at port").split()[-1])

    @property
    def bytes(self) -> bytes:
        """What is in the memory now."""
        return self.path.read_bytes()

    def write(self, offset: int, data: bytes) -> None:
        """Change it: the file's pages are the memory."""
        with self.path.open("r+b") as file:
            file.seek(offset)
            file.write(data)

    def stop(self) -> None:
        """Let it stand still."""
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it go on."""
        self.process.send_signal(signal.SIGCONT)

    def __enter__(self) -> Memory:
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()
