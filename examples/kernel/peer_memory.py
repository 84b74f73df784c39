# SPDX-License-Identifier: Apache-2.0
"""Memory for the kernel modules rw and blockdev, which read and write it while this program does nothing.

    python peer_memory.py --size 64M                        zeros
    python peer_memory.py --file disk.img                   a file: what is written to memory is written to it
    python peer_memory.py --size 64M --device iwarp_rnicvm0

A thread serves each client, and all clients have the same memory. A client can also lend memory of its own
(message.h: RNIC_LEND). This program reads it, and writes it back in capital letters.
"""

from __future__ import annotations

import argparse
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import program
from living import next_receive
from message import MESSAGE_MAX, Kind, Message, Offer, Region, Service, capitals, wrong
from serving import Client, Server

from rnic import SGE, AccessFlags, WCStatus
from rnic.rdmacm import CmId, EventChannel, create_id

ACCESS = (
    AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_READ | AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_ATOMIC
)


def size(text: str) -> int:
    """Bytes: a number, and perhaps K, M or G."""
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper(), 1)
    found = int(text if unit == 1 else text[:-1]) * unit
    if found <= 0:
        raise ValueError(text)
    return found


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Memory for the kernel modules rw and blockdev.")
    parser.add_argument("-b", "--bind", default="0.0.0.0", help="an address of this machine (all)")
    parser.add_argument("-p", "--port", type=int, default=7471, help="its port; 0: any free one (7471)")
    parser.add_argument("-d", "--device", help="such as iwarp_eth0 (the first that serves the address)")
    parser.add_argument(
        "-s",
        "--size",
        type=size,
        default=0,
        help="bytes, such as 64M; a file that is shorter grows to it (the file's)",
    )
    parser.add_argument("-f", "--file", type=Path, help="the memory is this file (none: zeros)")
    found = parser.parse_args()
    if not found.size and not (found.file and found.file.exists() and found.file.stat().st_size):
        parser.error("say how many bytes: --size 64M, or a --file that has some")
    return found


@contextmanager
def memory_of(path: Path | None, length: int) -> Iterator[mmap.mmap]:
    """So many bytes, or a file, which grows to this length if it is not 0."""
    if path is None:
        try:
            anonymous = mmap.mmap(-1, length)
        except (OSError, OverflowError) as error:
            raise OSError(f"--size {length}: this computer has not so many bytes of memory") from error
        with anonymous as memory:
            yield memory
        return
    path.touch()
    with path.open("r+b") as file:
        grow(file.fileno(), path, length)
        with mmap.mmap(file.fileno(), 0) as memory:
            yield memory


def grow(file: int, path: Path, length: int) -> None:
    """Give a file this length, and the space on the disk for it; 0: it stays as it is."""
    has = path.stat().st_size
    if 0 < length < has:
        raise OSError(
            f"--size {length}: {path} has {has} bytes, and would be cut; remove it, or leave --size out"
        )
    if length <= has:
        return
    try:
        os.posix_fallocate(file, has, length - has)
    except (OSError, OverflowError) as error:
        os.truncate(file, has)  # some of it may have been there
        raise OSError(f"--size {length}: no space for so many bytes in {path}: {error}") from error


class FailedError(Exception):
    """The client's memory cannot be read or written; the connection has ended."""


def to_capitals(cm_id: CmId, region: Region) -> None:
    """Change what the client has lent: READ it, and WRITE it."""
    text = bytearray(region.length)
    with cm_id.reg_msgs(text) as memory:
        cm_id.post_read(memory, remote_addr=region.addr, rkey=region.rkey)
        wait_sent(cm_id, "READ")
        text[:] = capitals(bytes(text))
        cm_id.post_write(memory, remote_addr=region.addr, rkey=region.rkey)
        wait_sent(cm_id, "WRITE")


def wait_sent(cm_id: CmId, what: str) -> None:
    """Wait for the completion of one operation."""
    if (status := cm_id.get_send_comp().status) is not WCStatus.SUCCESS:
        raise FailedError(f"{what}: {status.name}")


def answer(cm_id: CmId, data: bytes) -> Message:
    """Do what a message asks for."""
    try:
        asked = Message.unpack(data)
        if asked.kind != Kind.LEND:
            raise ValueError(f"kind {asked.kind} is not {Kind.LEND:d}, memory that is lent")
        to_capitals(cm_id, Region.unpack(asked.text))
    except ValueError as error:
        return wrong(data, str(error))
    return Message(Kind.ANSWER, asked.number, b"")


class Borrower(Client):
    """Has the memory, and may lend some. Most clients send no messages."""

    def __init__(self, cm_id: CmId, memory: mmap.mmap) -> None:
        super().__init__(cm_id)
        cm_id.create_qp()
        assert cm_id.pd is not None  # create_qp() has chosen one
        self.region = cm_id.pd.reg_mr(memory, ACCESS)
        self.offer = Offer(1, self.region.addr, self.region.length, self.region.rkey)
        self.buffer = bytearray(MESSAGE_MAX)
        self.messages = cm_id.reg_msgs(self.buffer)
        cm_id.post_recv(self.messages)

    def serve(self) -> None:
        """Answer in the buffer that has the message, then post its receive again."""
        print(f"{self.peer}: connected", flush=True)
        try:
            while (received := next_receive(self.cm_id)).status is WCStatus.SUCCESS:
                data = answer(self.cm_id, bytes(self.buffer[: received.byte_len])).pack()
                self.buffer[: len(data)] = data
                self.cm_id.post_send(SGE(self.messages, 0, len(data)))
                wait_sent(self.cm_id, "SEND")
                self.cm_id.post_recv(self.messages)
        except FailedError as error:
            print(f"{self.peer}: {error}", flush=True)
            self.cm_id.disconnect()

    def free(self) -> str:
        """Its buffer, and its key to the memory."""
        self.messages.close()
        self.region.close()
        return "disconnected"


def main() -> None:
    """Listen, and serve all clients."""
    found = options()
    with (
        memory_of(found.file, found.size) as memory,
        EventChannel() as events,
        create_id(events, device=found.device) as listener,
    ):
        listener.bind_addr((found.bind, found.port))
        listener.listen()
        print(f"{len(memory)} bytes at port {listener.get_src_port()}", flush=True)
        Server(Service.MEMORY, partial(Borrower, memory=memory)).serve(events)


if __name__ == "__main__":
    program.run(main)
