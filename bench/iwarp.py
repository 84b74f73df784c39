# SPDX-License-Identifier: Apache-2.0
"""iWARP: RDMA over TCP through the loopback interface, beside bare TCP and what else goes by it."""

from __future__ import annotations

from functools import partial

import peers
from procs import Values, pair
from stats import Rounds
from tables import (
    GBYTES,
    KIB,
    MEAN,
    MEDIAN,
    MIB,
    OPS,
    PER_OP,
    RATE,
    SIZE_NAMES,
    Measurements,
    Row,
    Setting,
    Table,
    Target,
    at_least,
    at_most,
    native_pair,
    python_end,
    shape,
    words,
)

SIZES = (64 * KIB, MIB)
MESSAGES = (8, 64 * KIB, MIB)
CRCS = {"with CRCs": 1, "without": 0}
UCX_OPS = ("write", "send")  # ucp_get of small messages hangs in UCX 1.13's tcp
CHAIN = 32


def python_post(s: Setting) -> Values:
    server = [str(s.programs["native"]), "FD", "serve", "sleep", "iwarp=1"]
    return pair(server, python_end("post", *words(s, {"chain": CHAIN, "depth": 512, "iwarp": 1})))


def python_pingpong(s: Setting) -> Values:
    options = words(s, {"size": 8, "iwarp": 1})
    return pair(python_end("echo", *options), python_end("pingpong", *options))


def streams(s: Setting) -> Measurements:
    found: Measurements = {}
    for size in SIZES:
        found[f"iwarp iperf3 {size}"] = partial(peers.iperf3, size, s.seconds)
        for op, server in OPS.items():
            for how, crc in CRCS.items():
                found[f"iwarp {op} {size} {how}"] = partial(
                    native_pair, s, server, op, iwarp=1, crc=crc, **shape(size)
                )
            if op in UCX_OPS:
                test = peers.UCX_STREAM[op]
                found[f"iwarp ucx {op} {size}"] = partial(peers.ucx, peers.UCX_TCP, test, size, s.seconds)
    return found


def latencies(s: Setting) -> Measurements:
    found: Measurements = {}
    for size in MESSAGES:
        inlined = int(size == 8)
        found[f"iwarp send latency {size}"] = partial(
            native_pair, s, "echo", "send_pingpong", iwarp=1, size=size, inline=inlined
        )
        found[f"iwarp libfabric latency {size}"] = partial(peers.fi_pingpong, "tcp", size, s.seconds)
        found[f"iwarp ucx latency {size}"] = partial(peers.ucx, peers.UCX_TCP, "tag_lat", size, s.seconds)
    found["iwarp tcp latency"] = partial(peers.bare_pingpong, s.programs["udp"], s.seconds, tcp=True)
    found["iwarp write latency"] = partial(native_pair, s, "memory", "memory_pingpong", iwarp=1)
    found["iwarp ucx write latency"] = partial(peers.ucx, peers.UCX_TCP, "ucp_put_lat", 8, s.seconds)
    found["iwarp read latency"] = partial(native_pair, s, "sleep", "read_latency", iwarp=1)
    return found


def rates(s: Setting) -> Measurements:
    options = {"iwarp": 1, "size": 8, "inline": 1, "chain": CHAIN, "depth": 512}
    return {
        "iwarp rate": partial(native_pair, s, "sleep", "write", **options),
        "iwarp ucx rate": partial(peers.ucx, peers.UCX_TCP, "ucp_put_bw", 8, s.seconds),
        "iwarp python post": partial(python_post, s),
        "iwarp python pingpong": partial(python_pingpong, s),
    }


def measurements(s: Setting) -> Measurements:
    return streams(s) | latencies(s) | rates(s)


STREAM_ROWS = [
    Row(
        f"{op.upper()} {SIZE_NAMES[size]}, {how}",
        GBYTES,
        f"iwarp {op} {size} {how}",
        {"iperf3": f"iwarp iperf3 {size}"} | ({"UCX tcp": f"iwarp ucx {op} {size}"} if op in UCX_OPS else {}),
    )
    for op in OPS
    for size in SIZES
    for how in CRCS
]
SEND_8 = Row(
    "SEND 8 B, half round trip",
    MEDIAN,
    "iwarp send latency 8",
    {"TCP": "iwarp tcp latency", "UCX tcp": "iwarp ucx latency 8"},
)
LATENCY_ROWS = [
    SEND_8,
    Row(
        "WRITE 8 B seen in memory, half round trip",
        MEDIAN,
        "iwarp write latency",
        {"TCP": "iwarp tcp latency", "UCX tcp": "iwarp ucx write latency"},
    ),
    Row("READ 8 B", MEDIAN, "iwarp read latency"),
    *(
        Row(
            f"SEND {SIZE_NAMES[size]}, half round trip, mean",
            MEAN,
            f"iwarp send latency {size}",
            {"libfabric tcp": f"iwarp libfabric latency {size}", "UCX tcp": f"iwarp ucx latency {size}"},
        )
        for size in MESSAGES
    ),
]
RATE_ROW = Row(f"8-byte WRITEs in chains of {CHAIN}", RATE, "iwarp rate", {"UCX tcp": "iwarp ucx rate"})
PYTHON_ROWS = [
    Row(f"post + poll, 8-byte WRITEs in chains of {CHAIN}", PER_OP, "iwarp python post"),
    Row("message of 8 B, round trip", MEDIAN, "iwarp python pingpong"),
]


def tables() -> list[Table]:
    return [
        Table(
            "iWARP: bandwidth",
            "One way over loopback, payload that arrived. WRITE and READ targets sleep; the receiver of "
            "SENDs polls. iperf3: one TCP stream, writes of the message size, no CRC.",
            ("iperf3", "UCX tcp"),
            STREAM_ROWS,
        ),
        Table(
            "iWARP: latency",
            "With CRCs. TCP: 8 bytes to and fro, both ends spinning on sockets. Medians, unless something "
            "else is said.",
            ("TCP", "UCX tcp", "libfabric tcp"),
            LATENCY_ROWS,
        ),
        Table(
            "iWARP: rate of 8-byte WRITEs",
            "Inline, the last of a chain signaled, at most 512 outstanding. UCX: ucp_put_bw of 8 bytes.",
            ("UCX tcp",),
            [RATE_ROW],
        ),
        Table("iWARP: from Python", "As over RoCE: reusable work requests.", (), PYTHON_ROWS),
    ]


def ahead() -> list[Target]:
    """Of UCX's tcp and libfabric's in every row that has them."""
    found = []
    for row in [*STREAM_ROWS, *LATENCY_ROWS, RATE_ROW]:
        for column in ("UCX tcp", "libfabric tcp"):
            if column not in row.peers:
                continue
            bound = at_most if row.unit in (MEDIAN, MEAN) else at_least
            what = f"iWARP: {row.title}, {column.replace(' ', chr(39) + 's ')}"
            found.append(bound(1.0, what, row.unit, row.key, row.peers[column]))
    return found


def targets() -> list[Target]:
    floor = {"with CRCs": 0.9, "without": 1.0}
    return [
        *(
            at_least(
                floor[how],
                f"iWARP: {op.upper()} {SIZE_NAMES[size]}, {how}, iperf3's one stream",
                GBYTES,
                f"iwarp {op} {size} {how}",
                f"iwarp iperf3 {size}",
            )
            for op in OPS
            for size in SIZES
            for how in CRCS
        ),
        at_most(1.3, "iWARP: 8-byte SEND, bare TCP", MEDIAN, SEND_8.key, "iwarp tcp latency"),
        *ahead(),
        at_most(1.0, f"iWARP: from Python, post + poll in chains of {CHAIN}", PER_OP, "iwarp python post"),
    ]


def notes(rounds: Rounds) -> dict[str, list[str]]:
    """None."""
    del rounds
    return {}
