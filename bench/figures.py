# SPDX-License-Identifier: Apache-2.0
"""What is measured, in which order, and which figure stands beside which.

A measurement runs once a round and gives named values.  A row of a table takes one value of rnic's
measurement and one of each peer's; what is compared stands close together in a round, so that both meet the
same machine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import peers
from procs import Values, pair

HERE = Path(__file__).resolve().parent
KIB, MIB = 1 << 10, 1 << 20
STOCK = 212992  # net.core.rmem_max and wmem_max of stock Linux
CHAIN = 32

# size: (outstanding, in one post)
STREAMS = {4 * KIB: (128, 16), 64 * KIB: (32, 4), MIB: (8, 1)}
SIZE_NAMES = {4 * KIB: "4 KiB", 64 * KIB: "64 KiB", MIB: "1 MiB"}
OPS = {"write": "sleep", "send": "sink", "read": "sleep"}
UCX_BANDWIDTH = {"write": "ucp_put_bw", "send": "tag_bw"}


@dataclass(frozen=True, slots=True)
class Unit:
    """How a value is shown; factor turns what was measured into it."""

    text: str
    value: str
    factor: float = 1.0
    digits: int = 2


GBYTES = Unit("GB/s", "gbytes_per_s")
MEDIAN = Unit("us", "median_us")
RATE = Unit("M/s", "messages_per_s", 1e-6, 3)
PER_OP = Unit("us/op", "us_per_operation", 1.0, 3)


@dataclass(frozen=True, slots=True)
class Row:
    title: str
    unit: Unit
    key: str  # rnic's measurement
    peers: dict[str, str] = field(default_factory=dict)  # column: measurement


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    note: str
    columns: tuple[str, ...]
    rows: list[Row]


@dataclass(frozen=True, slots=True)
class Target:
    """value(key) / value(peer), or value(key) alone, against a bound."""

    text: str
    key: str
    unit: Unit
    bound: float
    at_least: bool
    peer: str = ""


@dataclass(frozen=True, slots=True)
class Setting:
    native: Path
    udp: Path
    seconds: float
    mtu: int


Measurements = dict[str, Callable[[], Values]]


def native_pair(s: Setting, server: str, test: str, **options: object) -> Values:
    words = [f"{name}={value}" for name, value in ({"seconds": s.seconds, "mtu": s.mtu} | options).items()]
    program = str(s.native)
    return pair([program, "FD", "serve", server, *words], [program, "FD", test, *words])


def python_target(s: Setting, how: str, **options: object) -> Values:
    words = [f"{name}={value}" for name, value in ({"seconds": s.seconds} | options).items()]
    server = [sys.executable, str(HERE / "pyend.py"), "FD", "target", how]
    return pair(server, [str(s.native), "FD", "read", *words])


def python_post(s: Setting, depth: int) -> Values:
    client = [sys.executable, str(HERE / "pyend.py"), "FD", "post", str(s.seconds), str(CHAIN), str(depth)]
    return pair([str(s.native), "FD", "serve", "sleep", f"mtu={s.mtu}"], client)


def native_post(s: Setting, chain: int, depth: int) -> Values:
    found = native_pair(s, "sleep", "write", size=8, inline=1, chain=chain, depth=depth)
    return found | {"us_per_operation": 1e6 / found["messages_per_s"]}


def measurements(s: Setting) -> Measurements:
    """All of them, in the order of a round."""
    found: Measurements = {}
    for size, (depth, chain) in STREAMS.items():
        shape = {"size": size, "depth": depth, "chain": chain}
        found[f"iperf3 {size}"] = partial(peers.iperf3, size, s.seconds)
        for op, server in OPS.items():
            found[f"{op} {size}"] = partial(native_pair, s, server, op, **shape)
            if op in UCX_BANDWIDTH:
                found[f"ucx {op} {size}"] = partial(peers.ucx, UCX_BANDWIDTH[op], size)
        for gso in (True, False):
            key = f"udp {'gso' if gso else 'single'} {size}"
            found[key] = partial(peers.udp_stream, s.udp, size, s.seconds, gso=gso)
    found["send latency"] = partial(native_pair, s, "echo", "send_pingpong", inline=1)
    found["udp latency"] = partial(peers.udp_pingpong, s.udp, s.seconds)
    found["ucx send latency"] = partial(peers.ucx, "tag_lat", 8)
    found["write latency"] = partial(native_pair, s, "memory", "memory_pingpong")
    found["ucx write latency"] = partial(peers.ucx, "ucp_put_lat", 8)
    found["write completion"] = partial(native_pair, s, "sleep", "write_latency", inline=1)
    found["read latency"] = partial(native_pair, s, "sleep", "read_latency")
    found["atomic latency"] = partial(native_pair, s, "sleep", "atomic_latency")
    found["ucx atomic latency"] = partial(peers.ucx, "ucp_fadd", 8)
    for chain in (CHAIN, 2 * CHAIN):
        found[f"rate {chain}"] = partial(native_post, s, chain, 512)
    found["python post"] = partial(python_post, s, 512)
    found["ucx rate"] = partial(peers.ucx, "ucp_put_bw", 8)
    found["udp rate"] = partial(peers.udp_stream, s.udp, 8, s.seconds, gso=False)
    big = {"size": MIB, "depth": 8, "chain": 1}
    found["read native sleep"] = partial(native_pair, s, "sleep", "read", **big)
    found["read python sleep"] = partial(python_target, s, "sleep", **big)
    found["read native burn"] = partial(native_pair, s, "burn", "read", **big)
    found["read python hold"] = partial(python_target, s, "hold", **big)
    for op, server in OPS.items():
        for limit in (STOCK, STOCK // 2):
            found[f"{op} limit {2 * limit}"] = partial(native_pair, s, server, op, bufmax=limit, **big)
    return found


def tables() -> list[Table]:
    bandwidth = [
        Row(
            f"{op.upper()} {SIZE_NAMES[size]}",
            GBYTES,
            f"{op} {size}",
            {"iperf3": f"iperf3 {size}", "UDP, GSO": f"udp gso {size}", "UDP": f"udp single {size}"}
            | ({"UCX tcp": f"ucx {op} {size}"} if op in UCX_BANDWIDTH else {}),
        )
        for op in OPS
        for size in STREAMS
    ]
    udp = {"UDP": "udp latency"}
    latency = [
        Row("SEND, half round trip", MEDIAN, "send latency", udp | {"UCX tcp": "ucx send latency"}),
        Row(
            "WRITE seen in memory, half round trip",
            MEDIAN,
            "write latency",
            udp | {"UCX tcp": "ucx write latency"},
        ),
        Row("WRITE, to its completion", MEDIAN, "write completion"),
        Row("READ", MEDIAN, "read latency"),
        Row("FETCH_AND_ADD", MEDIAN, "atomic latency", {"UCX tcp": "ucx atomic latency"}),
    ]
    rate = [
        Row(f"WRITE in chains of {n}", RATE, f"rate {n}", {"UCX tcp": "ucx rate", "UDP": "udp rate"})
        for n in (CHAIN, 2 * CHAIN)
    ]
    python = [
        Row("post + poll, 8-byte WRITEs in chains of 32", PER_OP, "python post", {"native": f"rate {CHAIN}"}),
        Row("READ from a process that sleeps", GBYTES, "read python sleep", {"native": "read native sleep"}),
        Row("READ from a process that computes", GBYTES, "read python hold", {"native": "read native burn"}),
    ]
    limited = [
        Row(
            f"{op.upper()} 1 MiB, {2 * limit:,} bytes granted",
            GBYTES,
            f"{op} limit {2 * limit}",
            {"full buffers": f"{op} {MIB}"},
        )
        for op in OPS
        for limit in (STOCK, STOCK // 2)
    ]
    return [
        Table(
            "Bandwidth",
            "One way, payload that arrived. WRITE and READ targets sleep; the receiver of SENDs polls. "
            "iperf3: one TCP stream, writes of the message size. UDP: no flow control, no content, both ends "
            "spinning. UCX has no column for READ: ucp_get of small messages hangs in UCX 1.13's tcp.",
            ("iperf3", "UCX tcp", "UDP, GSO", "UDP"),
            bandwidth,
        ),
        Table(
            "Latency of 8 bytes",
            "Median. Both ends poll in the first two rows; in the others the target sleeps.",
            ("UDP", "UCX tcp"),
            latency,
        ),
        Table(
            "Rate of 8-byte WRITEs",
            "Inline, the last of a chain signaled, at most 512 outstanding. UCX: ucp_put_bw of 8 bytes; UDP: "
            "datagrams of 8 bytes.",
            ("UCX tcp", "UDP"),
            rate,
        ),
        Table(
            "From Python",
            "Reusable SendWRs, time from first post to last completion. The computing processes keep a "
            "processor busy: the Python one in a loop that holds the GIL, the native one in a C loop.",
            ("native",),
            python,
        ),
        Table(
            "Limited socket buffers",
            "As where net.core.rmem_max and wmem_max are 212,992: the kernel grants twice what is asked for "
            "(425,984); and half of that, so that getsockopt says 212,992.",
            ("full buffers",),
            limited,
        ),
    ]


TARGETS = [
    Target("1 MiB WRITE at least iperf3's single stream", f"write {MIB}", GBYTES, 1.0, True, f"iperf3 {MIB}"),
    Target("1 MiB WRITE at least twice UCX's tcp", f"write {MIB}", GBYTES, 2.0, True, f"ucx write {MIB}"),
    Target(
        "8-byte SEND half round trip at most 1.5 x bare UDP",
        "send latency",
        MEDIAN,
        1.5,
        False,
        "udp latency",
    ),
    Target("at least 1 M 8-byte WRITEs/s in chains of 32", f"rate {CHAIN}", RATE, 1.0, True),
    Target("from Python at most 1 us/op, post + poll in chains of 32", "python post", PER_OP, 1.0, False),
]
