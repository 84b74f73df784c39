# SPDX-License-Identifier: Apache-2.0
"""One end of calls and replies: by rnic.patterns.rpc, gRPC or pyzmq.

    callend.py FD take|give rpc-WHO      WHO: rnic, grpc, zmq

Options and FD as of patternend.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import batches
from patternend import HOST, Figures, Give, Line, Options, Take, connection, main

from rnic.patterns.rpc import Client, Server


def give_calls(begin: Callable[[bytes], Any], result: Callable[[Any], bytes], options: Options) -> Figures:
    """Calls with so many outstanding."""
    body, outstanding = bytes(int(options["size"])), int(options["outstanding"])

    def run(count: int) -> None:
        waiting: deque[Any] = deque()
        for _ in range(count):
            if len(waiting) == outstanding:
                result(waiting.popleft())
            waiting.append(begin(body))
        while waiting:
            result(waiting.popleft())

    found = batches.measure(run, lambda _: None, options["seconds"])
    return {"messages_per_s": 1e6 / found["median_us"], "median_us": found["median_us"]}


def give_rnic(line: Line, options: Options) -> Figures:
    with connection(line, True) as conn, Client(conn, limit=64) as client:
        if options["outstanding"] == 1:
            return give_calls(lambda body: client.call("echo", body), lambda reply: bytes(reply), options)
        return give_calls(lambda body: client.start("echo", body), lambda call: call.result(), options)


def take_rnic(line: Line, _: Options) -> None:
    with connection(line, False) as conn:
        Server({"echo": bytes}).serve(conn)


def give_grpc(line: Line, options: Options) -> Figures:
    import grpc

    with grpc.insecure_channel(f"{HOST}:{line.hear()[0]}") as channel:
        call = channel.unary_unary("/echo/echo")
        if options["outstanding"] == 1:
            found = give_calls(call, lambda reply: reply, options)
        else:
            found = give_calls(call.future, lambda future: future.result(), options)
        line.say("end")
    return found


def take_grpc(line: Line, _: Options) -> None:
    from concurrent.futures import ThreadPoolExecutor

    import grpc

    handler = grpc.unary_unary_rpc_method_handler(lambda body, _: body)
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("echo", {"echo": handler})])
    port = server.add_insecure_port(f"{HOST}:0")
    server.start()
    line.say(port)
    line.hear()
    server.stop(None).wait()


def give_zmq(line: Line, options: Options) -> Figures:
    import zmq

    with zmq.Context() as context, context.socket(zmq.DEALER) as sock:
        sock.connect(f"tcp://{HOST}:{line.hear()[0]}")
        found = give_calls(sock.send, lambda _: sock.recv(), options)
        line.say("end")
    return found


def take_zmq(line: Line, _: Options) -> None:
    import zmq

    with zmq.Context() as context, context.socket(zmq.ROUTER) as sock:
        line.say(sock.bind_to_random_port(f"tcp://{HOST}"))
        while not (line.is_over() and not sock.poll(0)):
            while sock.poll(100):
                sock.send_multipart(sock.recv_multipart())


ENDS: dict[str, tuple[Take, Give]] = {
    "rpc-rnic": (take_rnic, give_rnic),
    "rpc-grpc": (take_grpc, give_grpc),
    "rpc-zmq": (take_zmq, give_zmq),
}

if __name__ == "__main__":
    main(ENDS)
