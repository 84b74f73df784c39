# SPDX-License-Identifier: Apache-2.0
"""Runs in the guest: a seat (rdmacm.seat) that holds conversations with librdmacm.

    python3 guest_cm.py PORT

Each connection is a seat of its own, in a process of its own: a call that the library does not survive ends
that process alone. A request is a JSON object a line, {"do": name of a method of Seat, "with": arguments};
the answer is {"result"} or {"error"}. The caller is cm_ends.py.
"""

from __future__ import annotations

import json
import pathlib
import socketserver
import sys
from types import SimpleNamespace

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import c_rdmacm

from rdmacm.seat import Seat

ENUMS = SimpleNamespace(QPState=c_rdmacm.QPState, EventType=int)


class Connection(socketserver.StreamRequestHandler):
    disable_nagle_algorithm = True

    def handle(self) -> None:
        seat = Seat(c_rdmacm, ENUMS, self.rfile.readline().decode().strip())
        for line in self.rfile:
            request = json.loads(line)
            try:
                answer = {"result": getattr(seat, request["do"])(*request["with"])}
            except Exception as error:  # whatever it was, the caller shows it
                answer = {"error": f"{type(error).__name__}: {error}"}
            self.wfile.write(json.dumps(answer).encode() + b"\n")


class Server(socketserver.ForkingTCPServer):
    allow_reuse_address = True


if __name__ == "__main__":
    with Server(("", int(sys.argv[1])), Connection) as server:
        print("ready", flush=True)
        server.serve_forever()
