# SPDX-License-Identifier: Apache-2.0
"""The patterns of rnic.patterns, and the tools made of them, each beside what it replaces."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

import copying
import dask_transfer
from build import HERE
from plots import Line, Panel, Picture
from procs import AbsentError, Values, pair
from stats import Rounds
from tables import (
    GBYTES,
    KIB,
    MEDIAN,
    MIB,
    PER_OP,
    PROCESSOR,
    RATE,
    SIZE_NAMES,
    WIRE,
    Measurements,
    Row,
    Setting,
    Table,
    Target,
    Unit,
    at_least,
    words,
)

SIZES = (64, 4 * KIB, 64 * KIB)
LONG = (4 * KIB, 16 * KIB, 64 * KIB, MIB, 16 * MIB)
SIDES = {"eager": "eager", "write": "a bare WRITE"}
WAYS: dict[str, tuple[str, ...]] = {"same host": (), "network path": WIRE}
STREAMS = {"ring": "ring", "ring-many": "ring, 64 at a time", "channel": "send-receive"}
CROWDS = {"many": "a ring of many writers, with one", "pubsub": "publish and subscribe, with one"}
THINK = {0: "answered at once", 200: "answered after 200 us"}  # us
PAUSES = (0, 20, 50, 100, 200, 500)  # us, of the picture
WAITS = ("poll", "event", "adaptive")
CALLS = (1, 64)  # outstanding
PEERS = {"grpc": "gRPC", "zmq": "pyzmq"}
MODULES = {"rpc-grpc": "grpc", "rpc-zmq": "zmq"}


def sides(size: int) -> dict[str, str]:
    """What a long message is compared with; a channel takes none of 16 MiB as it is."""
    return {what: title for what, title in SIDES.items() if what != "eager" or size < 16 * MIB}


def run(s: Setting, what: str, way: str, **options: object) -> Values:
    if (module := MODULES.get(what)) and find_spec(module) is None:
        raise AbsentError(f"Python has no module {module}")
    program = [
        *WAYS[way],
        sys.executable,
        str(HERE / ("callend.py" if what.startswith("rpc") else "patternend.py")),
        "FD",
    ]
    given = words(s, options)
    return pair([*program, "take", what, *given], [*program, "give", what, *given])


def one_way(s: Setting, way: str) -> Measurements:
    def of(what: str, **options: object) -> Callable[[], Values]:
        return partial(run, s, what, way, **options)

    streams = {f"{what} {size}": of(what, size=size) for size in SIZES for what in STREAMS}
    streams |= {f"{what} 64": of(what, size=64) for what in CROWDS}
    writes = {what: of(what, size=8) for what in ("signaled", "every64", "chained")}
    waits = {f"wait {how} {think}": of(f"wait-{how}", think=think) for think in PAUSES for how in WAITS}
    long = {f"{what} {size}": of(what, size=size) for size in LONG for what in ("announced", *sides(size))}
    calls = {f"rpc {n}": of("rpc-rnic", outstanding=n) for n in CALLS}
    return {f"{way} {name}": call for name, call in (streams | writes | long | waits | calls).items()}


def measurements(s: Setting) -> Measurements:
    found: Measurements = {}
    for way in WAYS:
        found |= one_way(s, way)
    for n in CALLS:
        for who in PEERS:
            found[f"{who} {n}"] = partial(run, s, f"rpc-{who}", "same host", outstanding=n)
    return found | dask_transfer.measurements(s) | copying.measurements(s)


def stream_rows(way: str) -> list[Row]:
    return [
        Row(
            f"{STREAMS[what]}, {SIZE_NAMES.get(size, f'{size} B')}",
            RATE,
            f"{way} {what} {size}",
            {"send-receive": f"{way} channel {size}"},
        )
        for size in SIZES
        for what in ("ring", "ring-many")
    ] + [
        Row(f"{title}, 64 B", RATE, f"{way} {what} 64", {"send-receive": f"{way} channel 64"})
        for what, title in CROWDS.items()
    ]


def queue_rows(way: str) -> list[Row]:
    titles = {"every64": "every 64th signaled", "chained": "and in chains of 64"}
    return [
        Row(title, PER_OP, f"{way} {what}", {"each signaled": f"{way} signaled"})
        for what, title in titles.items()
    ]


def long_rows(way: str) -> list[Row]:
    return [
        Row(
            f"announced, {SIZE_NAMES[size]}",
            GBYTES,
            f"{way} announced {size}",
            {title: f"{way} {what} {size}" for what, title in sides(size).items()},
        )
        for size in LONG
    ]


def wait_rows(way: str) -> list[Row]:
    found = []
    for unit, what in ((MEDIAN, "latency"), (PROCESSOR, "processor time")):
        for think, title in THINK.items():
            for how in ("adaptive", "event"):
                peers = {"poll": f"{way} wait poll {think}"}
                found.append(Row(f"{what}, {how}, {title}", unit, f"{way} wait {how} {think}", peers))
    return found


def call_rows(way: str) -> list[Row]:
    return [
        Row(
            f"calls of 64 B, {outstanding} outstanding",
            RATE,
            f"{way} rpc {outstanding}",
            {title: f"{who} {outstanding}" for who, title in PEERS.items()},
        )
        for outstanding in CALLS
    ]


def tables() -> list[Table]:
    found = []
    for way in WAYS:
        found += [
            Table(
                f"Patterns, {way}: ring",
                "Records from one process to another, which takes each. send-receive: "
                "rnic.patterns.credits, one message each. Ring: put(), and put_many() of 64.",
                ("send-receive",),
                stream_rows(way),
            ),
            Table(
                f"Patterns, {way}: a send queue",
                "WRITEs of 8 bytes by rnic.patterns.chain, polled.",
                ("each signaled",),
                queue_rows(way),
            ),
            Table(
                f"Patterns, {way}: rendezvous",
                "Messages into an array, until the sender knows that the peer has it. Announced: written "
                "where the receiver waits, or READ by it. Eager: SENDs of 4 KiB, copied at both ends, and an "
                "answer.",
                tuple(SIDES.values()),
                long_rows(way),
            ),
            Table(
                f"Patterns, {way}: waits",
                "Doorbells to and fro, half a round trip less the other end's pause; processor time of one "
                "end, engine included.",
                ("poll",),
                wait_rows(way),
            ),
            Table(
                f"Patterns, {way}: calls",
                "rnic.patterns.rpc over rnic.connect, a server and a client in a thread each. gRPC without "
                "protobuf, and pyzmq's DEALER and ROUTER: TCP over loopback.",
                tuple(PEERS.values()),
                call_rows(way),
            ),
        ]
    return found + dask_transfer.tables() + copying.tables()


def targets() -> list[Target]:
    found: list[Target] = []
    for way in WAYS:
        text = f"{way}: ring, 64 B, 64 at a time, send-receive"
        found.append(at_least(2.0, text, RATE, f"{way} ring-many 64", f"{way} channel 64"))
        text = f"{way}: rendezvous, 16 MiB, a bare WRITE"
        size = 16 * MIB
        found.append(at_least(0.9, text, GBYTES, f"{way} announced {size}", f"{way} write {size}"))
    return found + dask_transfer.targets() + copying.targets()


def pictures() -> list[Picture]:
    def panel(title: str, unit: Unit) -> Panel:
        lines = [Line(how, PAUSES, [f"same host wait {how} {think}" for think in PAUSES]) for how in WAITS]
        return Panel(title, "pause of the other end, us", unit, lines)

    return [Picture("waits.svg", [panel("latency", MEDIAN), panel("processor time of an end", PROCESSOR)])]


def notes(_: Rounds) -> dict[str, list[str]]:
    return {}
