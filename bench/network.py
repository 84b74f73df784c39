# SPDX-License-Identifier: Apache-2.0
"""The network path: RoCEv2 over UDP through the loopback interface, beside what else goes that way."""

from __future__ import annotations

from functools import partial
from statistics import median

import peers
from procs import Values, pair
from stats import Rounds, spread
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
    STREAMS,
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

STOCK = 212992  # net.core.rmem_max and wmem_max of stock Linux
LIMITS = (STOCK, STOCK // 2)
CHAIN = 32
CHAINS = (CHAIN, 2 * CHAIN)
MESSAGES = (8, 64 * KIB, MIB)
UCX_OPS = ("write", "send")  # ucp_get of small messages hangs in UCX 1.13's tcp
P99 = Unit("us", "p99_us")
LOSS = (
    "requests_resent",
    "duplicate_requests",
    "out_of_sequence",
    "timeouts",
    "nak_seq_received",
    "tx_errors",
)


def python_target(s: Setting, how: str, **options: object) -> Values:
    return pair(python_end("target", how), [str(s.programs["native"]), "FD", "read", *words(s, options)])


def python_post(s: Setting) -> Values:
    server = [str(s.programs["native"]), "FD", "serve", "sleep", f"mtu={s.mtu}"]
    return pair(server, python_end("post", *words(s, {"chain": CHAIN, "depth": 512})))


def native_post(s: Setting, chain: int, depth: int) -> Values:
    found = native_pair(s, "sleep", "write", size=8, inline=1, chain=chain, depth=depth)
    return found | {"us_per_operation": 1e6 / found["messages_per_s"]}


def streams(s: Setting) -> Measurements:
    found: Measurements = {}
    for size in STREAMS:
        found[f"iperf3 {size}"] = partial(peers.iperf3, size, s.seconds)
        for op, server in OPS.items():
            found[f"{op} {size}"] = partial(native_pair, s, server, op, **shape(size))
            if op in UCX_OPS:
                test = peers.UCX_STREAM[op]
                found[f"ucx {op} {size}"] = partial(peers.ucx, peers.UCX_TCP, test, size, s.seconds)
        for gso in (True, False):
            key = f"udp {'gso' if gso else 'single'} {size}"
            found[key] = partial(peers.udp_stream, s.programs["udp"], size, s.seconds, gso=gso)
    return found


def latencies(s: Setting) -> Measurements:
    found: Measurements = {}
    for size in MESSAGES:
        inlined = int(size == 8)
        found[f"send latency {size}"] = partial(
            native_pair, s, "echo", "send_pingpong", size=size, inline=inlined
        )
        found[f"libfabric latency {size}"] = partial(peers.fi_pingpong, "tcp", size, s.seconds)
        found[f"ucx send latency {size}"] = partial(peers.ucx, peers.UCX_TCP, "tag_lat", size, s.seconds)
    found["udp latency"] = partial(peers.bare_pingpong, s.programs["udp"], s.seconds, tcp=False)
    found["write latency"] = partial(native_pair, s, "memory", "memory_pingpong")
    found["ucx write latency"] = partial(peers.ucx, peers.UCX_TCP, "ucp_put_lat", 8, s.seconds)
    found["tcp latency"] = partial(peers.bare_pingpong, s.programs["udp"], s.seconds, tcp=True)
    found["write completion"] = partial(native_pair, s, "sleep", "write_latency", inline=1)
    found["read latency"] = partial(native_pair, s, "sleep", "read_latency")
    found["atomic latency"] = partial(native_pair, s, "sleep", "atomic_latency")
    found["ucx atomic latency"] = partial(peers.ucx, peers.UCX_TCP, "ucp_fadd", 8, s.seconds)
    return found


def rates(s: Setting) -> Measurements:
    found: Measurements = {}
    for chain in CHAINS:
        found[f"rate {chain}"] = partial(native_post, s, chain, 512)
    found["python post"] = partial(python_post, s)
    found["ucx rate"] = partial(peers.ucx, peers.UCX_TCP, "ucp_put_bw", 8, s.seconds)
    found["udp rate"] = partial(peers.udp_stream, s.programs["udp"], 8, s.seconds, gso=False)
    return found


def served(s: Setting) -> Measurements:
    """READs from a process that does something else."""
    return {
        "read native sleep": partial(native_pair, s, "sleep", "read", **shape(MIB)),
        "read python sleep": partial(python_target, s, "sleep", **shape(MIB)),
        "read native burn": partial(native_pair, s, "burn", "read", **shape(MIB)),
        "read python hold": partial(python_target, s, "hold", **shape(MIB)),
    }


def limited(s: Setting) -> Measurements:
    return {
        f"{op} limit {2 * limit}": partial(native_pair, s, server, op, bufmax=limit, **shape(MIB))
        for op, server in OPS.items()
        for limit in LIMITS
    }


def measurements(s: Setting) -> Measurements:
    return streams(s) | latencies(s) | rates(s) | served(s) | limited(s)


STREAM_ROWS = [
    Row(
        f"{op.upper()} {SIZE_NAMES[size]}",
        GBYTES,
        f"{op} {size}",
        {"iperf3": f"iperf3 {size}", "UDP, GSO": f"udp gso {size}", "UDP": f"udp single {size}"}
        | ({"UCX tcp": f"ucx {op} {size}"} if op in UCX_OPS else {}),
    )
    for op in OPS
    for size in STREAMS
]
BARE = {"UDP": "udp latency", "TCP": "tcp latency"}
LATENCY_ROWS = [
    Row("SEND, half round trip", MEDIAN, "send latency 8", BARE | {"UCX tcp": "ucx send latency 8"}),
    Row(
        "WRITE seen in memory, half round trip",
        MEDIAN,
        "write latency",
        BARE | {"UCX tcp": "ucx write latency"},
    ),
    Row("WRITE, to its completion", MEDIAN, "write completion"),
    Row("READ", MEDIAN, "read latency"),
    Row("FETCH_AND_ADD", MEDIAN, "atomic latency", {"UCX tcp": "ucx atomic latency"}),
    *(
        Row(
            f"SEND {SIZE_NAMES[size]}, half round trip, mean",
            MEAN,
            f"send latency {size}",
            {"libfabric tcp": f"libfabric latency {size}", "UCX tcp": f"ucx send latency {size}"},
        )
        for size in MESSAGES
    ),
]
RATE_ROWS = [
    Row(f"WRITE in chains of {n}", RATE, f"rate {n}", {"UCX tcp": "ucx rate", "UDP": "udp rate"})
    for n in CHAINS
]
SERVED_ROWS = [
    Row("READ from a process that sleeps", GBYTES, "read python sleep", {"native": "read native sleep"}),
    Row("READ from a process that computes", GBYTES, "read python hold", {"native": "read native burn"}),
]
PYTHON_ROWS = [
    Row("post + poll, 8-byte WRITEs in chains of 32", PER_OP, "python post", {"native": f"rate {CHAIN}"}),
    *SERVED_ROWS,
]
LIMITED_ROWS = [
    Row(
        f"{op.upper()} 1 MiB, {2 * limit:,} bytes granted",
        GBYTES,
        f"{op} limit {2 * limit}",
        {"full buffers": f"{op} {MIB}"},
    )
    for op in OPS
    for limit in LIMITS
]


def tables() -> list[Table]:
    return [
        Table(
            "Network path: bandwidth",
            "One way, payload that arrived. WRITE and READ targets sleep; the receiver of SENDs polls. "
            "iperf3: one TCP stream, writes of the message size. UDP: no flow control, no content, both ends "
            "spinning. UCX has no column for READ: ucp_get of small messages hangs in UCX 1.13's tcp.",
            ("iperf3", "UCX tcp", "UDP, GSO", "UDP"),
            STREAM_ROWS,
        ),
        Table(
            "Network path: latency",
            "Of 8 bytes, median, where nothing else is said. Both ends poll in half round trips; in the "
            "others the target sleeps. libfabric tells a mean alone, of one message at a time.",
            ("UDP", "TCP", "UCX tcp", "libfabric tcp"),
            LATENCY_ROWS,
        ),
        Table(
            "Network path: rate of 8-byte WRITEs",
            "Inline, the last of a chain signaled, at most 512 outstanding. UCX: ucp_put_bw of 8 bytes; UDP: "
            "datagrams of 8 bytes.",
            ("UCX tcp", "UDP"),
            RATE_ROWS,
        ),
        Table(
            "Network path: from Python",
            "Reusable SendWRs, time from first post to last completion. The computing processes keep a "
            "processor busy: the Python one in a loop that holds the GIL, the native one in a C loop.",
            ("native",),
            PYTHON_ROWS,
        ),
        Table(
            "Network path: limited socket buffers",
            "As where net.core.rmem_max and wmem_max are 212,992: the kernel grants twice what is asked for "
            "(425,984); and half of that, so that getsockopt says 212,992.",
            ("full buffers",),
            LIMITED_ROWS,
        ),
    ]


def beside_ucx() -> list[Target]:
    """Three times UCX's tcp in every row that has it."""
    bound, column = 3.0, "UCX tcp"
    found = []
    for row in [*STREAM_ROWS, *LATENCY_ROWS, *RATE_ROWS]:
        if column not in row.peers:
            continue
        what = f"network: {row.title}, UCX's tcp"
        if row.unit in (MEDIAN, MEAN):
            found.append(at_most(round(1 / bound, 3), what, row.unit, row.key, row.peers[column]))
        else:
            found.append(at_least(bound, what, row.unit, row.key, row.peers[column]))
    return found


def targets() -> list[Target]:
    return [
        at_least(1.2, "network: WRITE 1 MiB, iperf3's one stream", GBYTES, f"write {MIB}", f"iperf3 {MIB}"),
        at_most(1.3, "network: 8-byte SEND, bare UDP", MEDIAN, "send latency 8", "udp latency"),
        at_most(1.3, "network: 8-byte WRITE, bare UDP", MEDIAN, "write latency", "udp latency"),
        *beside_ucx(),
        at_least(1.0, f"network: 8-byte WRITEs in chains of {CHAIN}", RATE, f"rate {CHAIN}"),
        at_most(1.0, f"network: from Python, post + poll in chains of {CHAIN}", PER_OP, "python post"),
    ]


# ---------------------------------------------------------------- notes


def loss(rounds: Rounds) -> list[str]:
    """Per row of the limited buffers: what was sent again."""
    found = []
    for row in LIMITED_ROWS:
        runs = [r[row.key] for r in rounds if "client" in r.get(row.key, {})]
        if not runs:
            continue
        ends = [run[end] for run in runs for end in ("client", "server")]
        counts = {name: sum(int(end.get(name, 0)) for end in ends) for name in LOSS}
        sent = sum(int(end.get("tx_packets", 0)) for end in ends)
        shown = ", ".join(f"{name} {count}" for name, count in counts.items())
        found.append(
            f"{row.title} (getsockopt: receive {runs[0]['rcvbuf']:,}, send {runs[0]['sndbuf']:,}): "
            f"{sent} packets, {shown}"
        )
    return found


def cpu(rounds: Rounds) -> list[str]:
    """Whose processor time serves READs: the server's engine, or its main thread."""
    found = []
    for row in SERVED_ROWS:
        for name, key in ({"Python": row.key} | row.peers).items():
            runs = [r[key]["server"] for r in rounds if "server" in r.get(key, {})]
            if runs:
                main, engine = (
                    median(float(run[f"{who}_cpu_s"]) for run in runs) for who in ("main", "engine")
                )
                found.append(f"{row.title}, {name}: main thread {main:.3f} s, engine {engine:.3f} s")
    return found


def tails(rounds: Rounds) -> list[str]:
    found = []
    for row in LATENCY_ROWS:
        for name, key in ({"rnic": row.key} | {n: k for n, k in row.peers.items() if n == "UDP"}).items():
            value = spread(rounds, key, P99)
            if value:
                found.append(f"{row.title}, {name}: {value.text(2)} us")
    return list(dict.fromkeys(found))


def notes(rounds: Rounds) -> dict[str, list[str]]:
    return {
        "99th percentiles": tails(rounds),
        "Processor time of the process that serves READs": cpu(rounds),
        "Loss with limited buffers, all rounds (a duplicate was a probe: not lost)": loss(rounds),
    }
