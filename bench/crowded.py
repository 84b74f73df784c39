# SPDX-License-Identifier: Apache-2.0
"""rnic beside other work: both ends on one processor, on two that other programs use, on two free ones."""

from __future__ import annotations

import os
import re
import resource
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial

import existing
import idle
import peers
from build import HERE
from existing import EACH, OFF, RNIC
from network import P99
from procs import AbsentError, BrokenError, Values, free_port, pair, process
from stats import Rounds
from tables import (
    MEAN,
    MEDIAN,
    PROCESSOR,
    WIRE,
    Measurements,
    Row,
    Setting,
    Table,
    Target,
    Unit,
    native_pair,
)

SWITCHES = Unit("an echo", "switches", 1.0, 1)
UNITS = {"p50": MEDIAN, "p99": P99, "mean": MEAN, "switches": SWITCHES}
# what the ends have: (title, how many processors, whether a program spins on each)
PLACES = {
    "one": ("one processor for both ends", 1, False),
    "spun": ("two processors, on each of which a program spins", 2, True),
    "free": ("two free processors", 2, False),
}
# of connend.py: (title, its operation, its face, what stands before the command)
ENDS: dict[str, tuple[str, str, str, tuple[str, ...]]] = {
    "local": ("rnic.connect, same host", "echo", "sync", ()),
    "tcp": ("TCP", "echo", "tcp", ()),
    "udp": ("rnic.connect, UDP", "echo", "sync", WIRE),
    "pipe": ("pipe", "echo", "pipe", ()),
    "iwarp": ("rnic.connect, iWARP", "echo", "sync", ("env", "RNIC_TRANSPORT=iwarp")),
    "add": ("rnic.connect, fetch_add in a bytearray", "add", "sync", ()),
    "aio": ("rnic.aio, same host", "echo", "aio", ()),
    "streams": ("asyncio streams", "echo", "streams", ()),
}
BESIDE = dict.fromkeys(("local", "udp", "iwarp", "add"), ("tcp", "pipe")) | {"aio": ("streams",)}
PROGRAMS = {
    "rnic pingpong rc -e": (RNIC, "pingpong", "rc"),
    "ibv_rc_pingpong -e": (RNIC, "run", "ibv_rc_pingpong"),
}


@contextmanager
def occupied(place: str) -> Iterator[list[str]]:
    """The command that keeps to its processors; while programs spin there, if any do.

    They end with this process, whatever ends it.
    """
    _, wanted, spun = PLACES[place]
    mine = [str(number) for number in sorted(os.sched_getaffinity(0))[:wanted]]
    if len(mine) < wanted:
        raise AbsentError("a second processor")
    spin = f"import os\nwhile os.getppid() == {os.getpid()}:\n    for _ in range(1_000_000): pass"
    with ExitStack() as stack:
        for number in mine if spun else []:
            stack.enter_context(process(["taskset", "-c", number, sys.executable, "-c", spin]))
        yield ["taskset", "-c", ",".join(mine)]


def run(s: Setting, place: str, name: str) -> Values:
    _, what, face, around = ENDS[name]
    with occupied(place) as keeping:
        program = [*keeping, *around, sys.executable, str(HERE / "connend.py"), "FD"]
        return pair([*program, "serve", face], [*program, what, face, f"seconds={s.seconds}", "each=1"])


def exchanges(place: str, program: tuple[str, ...], count: int) -> tuple[float, int]:
    """Mean of an exchange in us, and the context switches of both ends from their start to their end."""
    port = free_port()
    options = ["-e", "-d", "roce_lo", "-g", "0", "-s", "8", "-n", str(count), "-p", str(port)]
    with occupied(place) as keeping:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        both = [*keeping, *program, *options]
        said = peers.serve(both, [*both, "127.0.0.1"], port, {})
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    mean = re.search(r"([\d.]+) usec/iter", said)
    if mean is None:
        raise BrokenError(f"{program[-1]} printed no figures")
    switched = after.ru_nvcsw + after.ru_nivcsw - before.ru_nvcsw - before.ru_nivcsw
    return float(mean[1]), switched


@cache
def starting(place: str, program: tuple[str, ...]) -> int:
    return exchanges(place, program, 1)[1]


def pingpong(s: Setting, place: str, program: tuple[str, ...]) -> Values:
    if "run" in program:
        peers.need(program[-1])

    def some(count: int) -> Values:
        mean, switched = exchanges(place, program, count)
        each = max(0, switched - starting(place, program)) / count
        return {"mean_us": mean, "switches": each, "took_s": mean * count * 1e-6}

    return peers.counted((place, *program), s.seconds, some)


def measurements(s: Setting) -> Measurements:
    found: Measurements = {}
    for place in PLACES:
        for name in ENDS:
            found[f"crowded {place} {name}"] = partial(run, s, place, name)
        for name, program in PROGRAMS.items():
            found[f"crowded {place} {name}"] = partial(pingpong, s, place, program)
    return found | {
        "crowded send": partial(native_pair, s, "echo", "send_pingpong", size=8, inline=1),
        "crowded bare udp": partial(peers.bare_pingpong, s.programs["udp"], s.seconds, tcp=False),
        "crowded ib_write_lat": partial(existing.perftest, "write", "lat", 8, OFF, s.seconds),
        "crowded rnic perf": partial(existing.rnic_perf, "write", "lat", 8, OFF, s.seconds),
        "crowded cmtime": existing.cmtime,
        "crowded ucmatose": partial(existing.ucmatose, RNIC, "ucmatose"),
        "crowded idle": partial(idle.run, s, "aio", idle=idle.MANY),
    }


def echo_rows(place: str) -> list[Row]:
    def key(name: str) -> str:
        return f"crowded {place} {name}"

    found = [
        Row(f"{ENDS[name][0]}: {what}", unit, key(name), {ENDS[other][0]: key(other) for other in others})
        for name, others in BESIDE.items()
        for what, unit in UNITS.items()
    ]
    found += [
        Row(f"{name}: {what}", UNITS[what], key(name), {"TCP": key("tcp")})
        for name in PROGRAMS
        for what in ("mean", "switches")
    ]
    return found


def tables() -> list[Table]:
    note = (
        "8 bytes and their echo, each timed alone; and its context switches, of all threads of both "
        "processes, voluntary or not. From Python: TCP by blocking sockets with TCP_NODELAY, a pipe of "
        "multiprocessing, asyncio's streams over TCP. Programs that wait for events, in C where they are not "
        "rnic's, tell a mean alone. A fetch_add goes there and back as an echo does."
    )
    return [
        *(
            Table(f"Echoes: {title}", note, ("TCP", "pipe", "asyncio streams"), echo_rows(place))
            for place, (title, _, _) in PLACES.items()
        ),
        Table(
            "Quiet, and idle",
            "The machine has nothing else to do. SEND and bare UDP: half a round trip, both ends poll. "
            "ib_write_lat under `rnic run`. cmtime under `rnic run`, of many connections what each takes of "
            "the whole time. Processor time: of both processes together.",
            ("UDP", "rnic perf", "rnic ucmatose"),
            [
                Row("SEND 8 B by UDP: p50", MEDIAN, "crowded send", {"UDP": "crowded bare udp"}),
                Row("SEND 8 B by UDP: p99", P99, "crowded send", {"UDP": "crowded bare udp"}),
                Row(
                    "ib_write_lat 8 B by UDP: p50",
                    MEDIAN,
                    "crowded ib_write_lat",
                    {"rnic perf": "crowded rnic perf"},
                ),
                Row("cmtime: a connection", EACH, "crowded cmtime", {"rnic ucmatose": "crowded ucmatose"}),
                Row(f"{idle.MANY:,} idle connections in one loop of asyncio", PROCESSOR, "crowded idle"),
            ],
        ),
    ]


def targets() -> list[Target]:
    """None: the ratios are told as they are."""
    return []


def notes(rounds: Rounds) -> dict[str, list[str]]:
    """None."""
    del rounds
    return {}
