# SPDX-License-Identifier: Apache-2.0
"""The local path: two processes of one host, by shared memory, beside memcpy, UCX, libfabric and mpi4py."""

from __future__ import annotations

from functools import partial

import peers
from procs import Values, pair
from tables import (
    GBYTES,
    KIB,
    MEAN,
    MEDIAN,
    MIB,
    OPS,
    SIZE_NAMES,
    Measurements,
    Row,
    Setting,
    Table,
    Target,
    Unit,
    at_least,
    at_most,
    native_pair,
    python_end,
    shape,
    words,
)

SIZES = (64 * KIB, MIB)
# what: (what the serving end does, rnic's test, UCX's, bytes)
PINGPONGS = {
    "write latency": ("memory", "memory_pingpong", "ucp_put_lat", 8),
    "send latency": ("echo", "send_pingpong", "tag_lat", 8),
    "send latency 64 KiB": ("echo", "send_pingpong", "tag_lat", 64 * KIB),
}
# what is put from Python: (bytes, how many before one waits)
PUTS = {
    "8 B": (8, 1),
    "8 B, 32 at a time": (8, 32),
    "64 KiB": (64 * KIB, 1),
    "64 KiB, 16 at a time": (64 * KIB, 16),
}


def python_put(s: Setting, size: int, chain: int) -> Values:
    options = words(s, {"size": size, "chain": chain, "local": 1})
    return pair([str(s.programs["native"]), "FD", "serve", "sleep", "local=1"], python_end("put", *options))


def python_pingpong(s: Setting, size: int) -> Values:
    options = words(s, {"size": size, "local": 1})
    return pair(python_end("echo", *options), python_end("pingpong", *options))


def measurements(s: Setting) -> Measurements:
    found: Measurements = {}
    for size in SIZES:
        found[f"local memcpy {size}"] = partial(peers.memcpy, s.programs["copy"], size, s.seconds)
        for op, server in OPS.items():
            found[f"local {op} {size}"] = partial(native_pair, s, server, op, local=1, **shape(size))
            found[f"local ucx {op} {size}"] = partial(
                peers.ucx, peers.UCX_SHM, peers.UCX_STREAM[op], size, s.seconds
            )
    for name, (server, test, ucx, size) in PINGPONGS.items():
        inlined = int(size == 8)
        found[f"local {name}"] = partial(native_pair, s, server, test, local=1, size=size, inline=inlined)
        found[f"local ucx {name}"] = partial(peers.ucx, peers.UCX_SHM, ucx, size, s.seconds)
        if "send" in name:
            found[f"local libfabric {name}"] = partial(peers.fi_pingpong, "shm", size, s.seconds)
    for name, (size, window) in PUTS.items():
        found[f"local python put {name}"] = partial(python_put, s, size, window)
        found[f"local mpi put {name}"] = partial(peers.mpi, "put", size, window, s.seconds)
    found["local python pingpong"] = partial(python_pingpong, s, 8)
    found["local mpi pingpong"] = partial(peers.mpi, "pingpong", 8, 1, s.seconds)
    return found


def stream_row(op: str, size: int) -> Row:
    beside = {"UCX": f"local ucx {op} {size}", "memcpy": f"local memcpy {size}"}
    put = {"UCX put": f"local ucx write {size}"} if op == "read" else {}
    return Row(f"{op.upper()} {SIZE_NAMES[size]}", GBYTES, f"local {op} {size}", beside | put)


def pingpong_row(name: str, unit: Unit, how: str) -> Row:
    beside = {"UCX": f"local ucx {name}"}
    if "send" in name and unit is MEAN:
        beside["libfabric shm"] = f"local libfabric {name}"
    verb, _, size = name.partition(" latency")
    return Row(f"{verb.upper()} {size.strip() or '8 B'}, {how}", unit, f"local {name}", beside)


def python_rows() -> list[Row]:
    puts = [
        Row(
            f"put {name}",
            MEDIAN if size == 8 else GBYTES,
            f"local python put {name}",
            {"mpi4py": f"local mpi put {name}"},
        )
        for name, (size, _) in PUTS.items()
    ]
    beside = {"mpi4py": "local mpi pingpong"}
    return [*puts, Row("message of 8 B, round trip", MEDIAN, "local python pingpong", beside)]


def tables() -> list[Table]:
    return [
        Table(
            "Same host: bandwidth",
            "Shared memory, alloc_mr at both ends; one source and one destination over and over, for memcpy "
            "too, in memory of the same kind, so that 64 KiB lie in the second cache and 1 MiB, where it is "
            "large, in the third. WRITE and READ targets sleep; the receiver of SENDs polls and gets every "
            "message into the same buffer. UCX: ucx_perftest over posix and cma; put for WRITE, tagged "
            "messages for SEND, get, one at a time, for READ.",
            ("UCX", "UCX put", "memcpy"),
            [stream_row(op, size) for op in OPS for size in SIZES],
        ),
        Table(
            "Same host: latency",
            "Half a round trip; both ends poll, for a WRITE the memory itself. UCX's median is of its last "
            "2,048 round trips, rnic's of the whole time; libfabric tells a mean alone. A mean has all "
            "in it, also what else the machine did.",
            ("UCX", "libfabric shm"),
            [
                pingpong_row(name, unit, how)
                for name in PINGPONGS
                for unit, how in ((MEDIAN, "median"), (MEAN, "mean"))
            ],
        ),
        Table(
            "Same host: from Python",
            "Medians over batches of some 2 ms, timed by the same lines on both sides. rnic: post_send of "
            "reusable work requests and poll until the completion; a receive is posted for each message. "
            "mpi4py: Put and Flush in a passive epoch, to a window of MPI's own; Send and Recv of a buffer.",
            ("mpi4py",),
            python_rows(),
        ),
    ]


def targets() -> list[Target]:
    write, send, ucx = "local write latency", "local send latency", "same host: 8-byte"
    found = []
    for unit, how in ((MEDIAN, "median"), (MEAN, "mean")):
        found += [
            at_most(1.3, f"{ucx} WRITE, UCX's put, {how}", unit, write, "local ucx write latency"),
            at_most(1.0, f"{ucx} SEND, UCX's tagged message, {how}", unit, send, "local ucx send latency"),
        ]
    found.append(
        at_most(1.0, f"{ucx} SEND, libfabric's shm, mean", MEAN, send, "local libfabric send latency")
    )
    for op in ("write", "read"):
        for size in SIZES:
            what = f"same host: {op.upper()} {SIZE_NAMES[size]}"
            found += [
                at_least(0.9, f"{what}, UCX's put", GBYTES, f"local {op} {size}", f"local ucx write {size}"),
                at_least(0.9, f"{what}, memcpy", GBYTES, f"local {op} {size}", f"local memcpy {size}"),
            ]
    big, put, mpi = 64 * KIB, "local python put", "local mpi put"
    what = "same host: SEND 64 KiB, UCX's tagged message"
    return [
        *found,
        at_least(2.0, what, GBYTES, f"local send {big}", f"local ucx send {big}"),
        at_most(1.0, "from Python: put of 8 B, mpi4py's", MEDIAN, f"{put} 8 B", f"{mpi} 8 B"),
        at_most(
            0.5,
            "from Python: message of 8 B there and back, mpi4py's",
            MEDIAN,
            "local python pingpong",
            "local mpi pingpong",
        ),
        *(
            at_least(1.0, f"from Python: put of {name}, mpi4py's", GBYTES, f"{put} {name}", f"{mpi} {name}")
            for name, (size, _) in PUTS.items()
            if size > 8
        ),
    ]
