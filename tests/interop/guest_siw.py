# SPDX-License-Identifier: Apache-2.0
"""Runs in the guest: a queue pair of siw, which ids of librdmacm connect, driven from the tests over TCP.

    python3 guest_siw.py PORT

As guest_verbs.py, with a process for each end, and the calls of cm_side.py beside those. The caller is
siw_ends.py.
"""

from __future__ import annotations

import os
import socketserver
import sys

import c_rdmacm
from cm_side import CmSide
from guest_verbs import Connection, End, flags


class SiwEnd(CmSide, End):
    device, inline = "siw0", 80

    def __init__(self) -> None:
        CmSide.__init__(self, c_rdmacm)
        End.__init__(self)

    def make_end(self, length: int, access: list[str]) -> dict[str, int]:
        self.access = flags("IBV_ACCESS_", access)
        made = self.make(length)
        self.qp_num = made["qp_num"]
        return made

    def pid(self) -> int:
        return os.getpid()

    def close(self) -> None:
        self.close_ids()
        End.close(self)


class SiwConnection(Connection):
    end_type = SiwEnd


class Server(socketserver.ForkingTCPServer):
    allow_reuse_address = True
    block_on_close = False


if __name__ == "__main__":
    with Server(("", int(sys.argv[1])), SiwConnection) as server:
        print("ready", flush=True)
        server.serve_forever()
