# SPDX-License-Identifier: Apache-2.0
"""Request and reply over anything that carries messages: rnic.Connection, rnic.aio.Connection, a channel of
credits.

    server = Server({"upper": bytes.upper})                # AsyncServer in a program of asyncio
    listener.serve(server.serve)                           # of rnic.listen(): a thread for each client

    client = Client(conn)                                  # AsyncClient with a connection of rnic.aio
    client.call("upper", b"hello", timeout=1.0)
    calls = [client.start("upper", name, timeout=1.0) for name in names]
    replies = [one.result() for one in calls]

A call has a method, which is a name, and a body, which is bytes; so has its reply a body. What bytes mean
is the program's: nothing is pickled. Either end can be the thread's or the one of asyncio, whatever the
other is.

What is on the wire: each message is one frame. Numbers are little-endian, texts UTF-8.

    at 0  kind   1 byte   0x11 CALL, 0x12 REPLY, 0x13 ERROR, 0x14 CANCEL; 0x10 is the version
    at 1  small  1 byte   CALL: bytes of the method's name, 1 or more; ERROR: the Status; else zero
    at 2  mid    2 bytes  ERROR: bytes of the type's name; else zero
    at 4  id     4 bytes  the number of the call, which the client chooses: no unanswered call has it
    at 8  CALL: microseconds that are left, zero for no deadline (8 bytes); the method's name; the body
          REPLY: the body
          ERROR: the name of the exception's type, and its text; 255 and 4096 bytes at most

Each CALL gets one REPLY or ERROR, in any order, also one that was cancelled. A deadline is sent as time
that is left, so the two clocks need not agree; each end looks at its own. A CANCEL says that the client no
longer waits; one for a call that the server does not have (it was answered, or never sent) is answered by
an ERROR CANCELLED. No call has number 0: an ERROR of it with the Status LEAVING says that the server takes
no calls any more. Those that it has not answered when it closes its end did not begin.
"""

from rnic.patterns.rpc.client import AsyncClient, Client, Future
from rnic.patterns.rpc.errors import ClientStalledError, DeadlineError, RefusedCallError, RemoteError, Status
from rnic.patterns.rpc.messages import AsyncMessages, Messages
from rnic.patterns.rpc.server import AsyncServer, Server

__all__ = [
    "AsyncClient",
    "AsyncMessages",
    "AsyncServer",
    "Client",
    "ClientStalledError",
    "DeadlineError",
    "Future",
    "Messages",
    "RefusedCallError",
    "RemoteError",
    "Server",
    "Status",
]
