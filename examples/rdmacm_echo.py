# SPDX-License-Identifier: Apache-2.0
"""A connection by IP address and port: a listener and a caller, here as two threads of one process.

The calls are those of librdmacm, in its order. The ids have no event channel, so each call waits for its
result.
"""

import threading

from rnic.rdmacm import CmId, ConnParam, create_id


def serve(listener: CmId) -> None:
    """Accept one connection, and send its message back in capitals."""
    with listener.get_request() as cm_id:
        cm_id.create_qp()
        buffer = bytearray(64)
        with cm_id.reg_msgs(buffer) as memory:
            cm_id.post_recv(memory)
            cm_id.accept(ConnParam(private_data=b"welcome"))
            length = cm_id.get_recv_comp(10).byte_len
            buffer[:] = buffer.upper()
            cm_id.post_send(memory)
            cm_id.get_send_comp(10)
            with cm_id.channel.get_cm_event(10) as event:
                print("server:", length, "bytes,", event.event.name)
            cm_id.destroy_qp()


def call(port: int) -> None:
    """Connect, send a message, print the answer."""
    with create_id() as cm_id:
        cm_id.resolve_addr(None, ("127.0.0.1", port))
        cm_id.resolve_route()
        cm_id.create_qp()
        question, answer = bytearray(b"a message"), bytearray(64)
        with cm_id.reg_msgs(question) as out, cm_id.reg_msgs(answer) as into:
            cm_id.post_recv(into)
            cm_id.connect()
            cm_id.post_send(out)
            cm_id.get_recv_comp(10)
            print("client:", answer.rstrip(b"\0").decode())
            cm_id.disconnect()
            cm_id.destroy_qp()


with create_id() as listener:
    listener.bind_addr(("127.0.0.1", 0))
    listener.listen()
    server = threading.Thread(target=serve, args=(listener,))
    server.start()
    call(listener.get_src_port())
    server.join()
