# SPDX-License-Identifier: Apache-2.0
"""Changes of the solution that no receiver can turn down, and why; and what iWARP makes of some others."""

from __future__ import annotations

SAME = "the receiver gets the same bytes in the same places"
ALLOWED = "the protocol allows it"
NEVER = "the receiver never sends what this looks for"
FAILURE = "no work request fails unless another step is wrong, and that step is found"
ENDS = "the sender ends with a failure all the same"
ARGUMENT = "the grader gives this argument always"

EQUIVALENT: dict[tuple[str, str], str] = {
    (
        "connect",
        "tries its requests once only",
    ): "nothing is lost between the two; the grader does not lose it either",
    (
        "connect",
        "makes the queue pair before the route is resolved",
    ): "a queue pair needs the device, not the route",
    (
        "connect",
        "lets the receiver try its SENDs once only",
    ): "a sender that posts its receives in time needs no retry",
    ("ask", "does not look how the SEND ended"): FAILURE,
    ("ask", "does not look how the receive ended"): FAILURE,
    ("ask", "waits for the answer before the SEND's completion"): ALLOWED,
    ("ask", "has room for 4096 bytes"): ALLOWED,
    ("ask", "sends inline"): SAME,
    ("ask", "sends solicited"): "the receiver is woken by every message",
    ("ask", 'without `sys.exit(f"SEND: {sent.explain()}")`'): FAILURE,
    ("ask", 'without `sys.exit(f"receive: {received.explain()}")`'): FAILURE,
    ("announcement", "type and version are swapped"): "both are 1",
    ("write", "twice, with two waits"): SAME,
    ("write", "does not look how it ended"): FAILURE,
    ("write", 'without `sys.exit(f"RDMA WRITE: {written.explain()}")`'): FAILURE,
    ("transfer", "pieces begin one byte apart too near"): SAME,
    ("transfer", "pieces end one byte late"): SAME,
    ("transfer", "the last piece is written first"): SAME,
    ("transfer", "DONE has something in its reserved field"): "reserved fields are not looked at",
    ("secret_key", "looks only whether the verdict is good"): NEVER,
    ("secret_key", "does not look whether it is a key"): NEVER,
    ("secret_key", "ends with exit code 0 when there is no key"): NEVER,
    ("secret_key", 'without `sys.exit("the receiver gives no key")`'): NEVER,
    ("kind", 'without `sys.exit("the receiver refuses: " + message[8:].rstrip(b"\\0").decode())`'): ENDS,
    ("module", "`128` -> `129` in `MESSAGE_BYTES = 128  # no message is longer`"): ALLOWED,
    ("module", "`1` -> `2` in `CHUNK_BYTES = 1 << 20  # of the file, at most, in one RDMA WRITE`"): SAME,
    ("module", "`20` -> `21` in `CHUNK_BYTES = 1 << 20  # of the file, at most, in one RDMA WRITE`"): SAME,
    ("module", "`20` -> `19` in `CHUNK_BYTES = 1 << 20  # of the file, at most, in one RDMA WRITE`"): SAME,
    (
        "kind",
        '`+` -> `-` in `sys.exit("the receiver refuses: " + message[8:].rstrip(b"\\0").decode())`',
    ): ENDS,
    (
        "kind",
        '`8` -> `9` in `sys.exit("the receiver refuses: " + message[8:].rstrip(b"\\0").decode())`',
    ): ENDS,
    (
        "kind",
        '`8` -> `7` in `sys.exit("the receiver refuses: " + message[8:].rstrip(b"\\0").decode())`',
    ): ENDS,
    ("main", '`True` -> `False` in `parser.add_argument("--id", required=True)`'): ARGUMENT,
    ("main", '`7471` -> `7472` in `parser.add_argument("--port", type=int, default=7471)`'): ARGUMENT,
    ("main", '`7471` -> `7470` in `parser.add_argument("--port", type=int, default=7471)`'): ARGUMENT,
    ("main", "disconnects before it prints the key"): ALLOWED,
    ("main", "disconnects twice"): "to disconnect twice does nothing",
    ("main", "without `cm_id.disconnect()`"): "destroy() disconnects, too",
    ("main", "without `cm_id.destroy()`"): "the end of the process gives all back",
}

OVER_IWARP: dict[tuple[str, str], str] = {
    ("ask", "posts two receives"): "id, with empty",  # memory that is gone is told late
    ("write", "twice, with one wait"): "done, with 1 byte",  # likewise
    ("transfer", "a chunk has one byte less than the region"): "done, with 1 region",  # DONE lies there
}
"""Changes that fail at another step there."""
