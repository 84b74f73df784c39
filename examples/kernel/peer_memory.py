# SPDX-License-Identifier: Apache-2.0
"""Memory for rw and blockdev, which run in a Linux kernel: they read and write it while this program does nothing.

    python3 peer_memory.py --size 64M                # zeros
    python3 peer_memory.py --file disk.img           # a file; what is written to the memory is written to it

Each client has the same memory. A client can also lend memory of its own, by a message; this program then
reads it, and writes it back in capital letters.
"""

from __future__ import annotations

import argparse
import mmap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from message import MESSAGE_MAX, Offer, Request, Service

from rnic import AccessFlags, VerbsError, WCStatus
from rnic.rdmacm import CmId, ConnParam, create_id

ACCESS = AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_READ | AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_ATOMIC


def size(text: str) -> int:
    """Bytes: a number, and K, M or G behind it."""
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper(), 1)
    return int(text if unit == 1 else text[:-1]) * unit


@contextmanager
def memory_of(path: Path | None, length: int) -> Iterator[mmap.mmap]:
    """Memory of so many bytes, or that of a file; length 0: as long as the file is."""
    if path is None:
        with mmap.mmap(-1, length) as memory:
            yield memory
        return
    path.touch()
    with path.open("r+b") as file:
        if length:
            file.truncate(length)
        with mmap.mmap(file.fileno(), 0) as memory:
            yield memory


def serve(cm_id: CmId, memory: mmap.mmap) -> None:
    """Serve one client until its connection ends."""
    with cm_id:
        try:
            request = Request.unpack(cm_id.event.param.private_data)
            if request.service != Service.MEMORY:
                raise ValueError(f"service {request.service} is not that of memory")
        except ValueError as error:
            print("refused:", error, flush=True)
            cm_id.reject(Request(Service.MEMORY).pack())
            return
        cm_id.create_qp()
        message = bytearray(MESSAGE_MAX)
        with cm_id.pd.reg_mr(memory, ACCESS) as region, cm_id.reg_msgs(message) as inbox:
            cm_id.post_recv(inbox)
            cm_id.accept(ConnParam(private_data=Offer(1, region.addr, region.length, region.rkey).pack()))
            print("connected:", cm_id.get_peer_addr(), flush=True)
            while cm_id.get_recv_comp().status is WCStatus.SUCCESS:
                cm_id.post_recv(inbox)
            print("disconnected:", cm_id.get_peer_addr(), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="lend memory to the kernel modules rw and blockdev")
    parser.add_argument("--addr", default="0.0.0.0", help="where to listen (default: everywhere)")
    parser.add_argument("--port", type=int, default=7471, help="0: any free one (default: 7471)")
    parser.add_argument("--size", type=size, default=0, help="bytes, such as 64M; of a file: its length")
    parser.add_argument("--file", type=Path, help="whose contents the memory is")
    options = parser.parse_args()
    with memory_of(options.file, options.size) as memory, create_id() as listener:
        listener.bind_addr((options.addr, options.port))
        listener.listen()
        print(f"{len(memory)} bytes at port {listener.get_src_port()}", flush=True)
        while True:
            threading.Thread(target=serve, args=(listener.get_request(), memory), daemon=True).start()


if __name__ == "__main__":
    main()
