# SPDX-License-Identifier: Apache-2.0
"""Both ends, from the first word on the line to the last result."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from rnic.cli.params import Failure
from rnic.cli.perf import report
from rnic.cli.perf.end import End
from rnic.cli.perf.line import QUIET, Line
from rnic.cli.perf.plan import Plan
from rnic.cli.perf.samples import Samples

VERSION = 1
Show = Callable[[report.Record], None]


@dataclass(frozen=True, slots=True)
class Where:
    """What an end decides for itself."""

    device: str | None = None
    gid_index: int | None = None
    patience: float = QUIET
    """Seconds for a server to begin: one that is started now needs more."""


class Cpu:
    """CPU time of this process since it was made."""

    def __init__(self) -> None:
        self.began, self.used = time.perf_counter(), self._used()

    @staticmethod
    def _used() -> float:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return usage.ru_utime + usage.ru_stime

    def busy(self) -> float:
        """CPUs that it kept busy; the engine's thread counts, too."""
        return round((self._used() - self.used) / max(time.perf_counter() - self.began, 1e-9), 3)


@contextmanager
def telling(line: Line) -> Iterator[None]:
    """The other end hears why this one goes."""
    try:
        yield
    except KeyboardInterrupt:
        _tell(line, "interrupted")
        raise
    except (Failure, OSError) as error:
        _tell(line, error.message if isinstance(error, Failure) else str(error))
        raise
    except (KeyError, TypeError, ValueError) as error:
        _tell(line, "it said what makes no sense")
        raise Failure(f"the {line.peer} said what makes no sense: {error!r}") from error


def _tell(line: Line, text: str) -> None:
    with suppress(Failure):  # it is gone, and that is what the error says
        line.say("error", text=text)


# ---------------------------------------------------------------------- client


def client(line: Line, plan: Plan, where: Where, show: Show) -> None:
    """Measure each size, show each row, tell the server."""
    with telling(line), ExitStack() as stack:
        line.say("hello", version=VERSION, plan=plan.to_json())
        told = line.hear("hello", where.patience)
        end = End(plan, line, stack, True, where.device, where.gid_index)
        common = {"test": plan.test, "metric": plan.metric, "loop": plan.loop, "device": end.ctx.name}
        rows = []
        for size in plan.sizes:
            record = measure(end, size)
            record |= common | {
                "mtu": end.mtu,
                "queue_pairs": plan.qps,
                "events": plan.events,
                "bidirectional": plan.bidirectional,
                "connected_by": "RDMA-CM" if plan.cm else "TCP",
                "client": report.versions(),
                "server": told["versions"],
            }
            show(record)
            rows.append(record)
        line.say("results", rows=rows)
        line.hear("results")


def measure(end: End, size: int) -> report.Record:
    """One size."""
    line, plan = end.line, end.plan
    end.clear()
    if end.rx_depth:
        end.loops.fill()
    line.say("run", size=size)
    line.hear("ready", 30.0)
    before, cpu = end.counters(), Cpu()
    if end.run(size):
        line.hear("over")  # too early, and so it is an error
        raise Failure("the server ended too early")
    busy, after = cpu.busy(), end.counters()
    operations, ns, peak = end.loops.result()
    samples = Samples(**end.loops.histogram()) if plan.is_latency else None
    line.say("over")
    if plan.bidirectional and plan.what.receives:
        end.sink(size)
    told = line.hear("over", None)
    record: report.Record = {"bytes": size, "iterations": operations, "seconds": ns / 1e9}
    if samples is not None:
        record["latency_us"] = report.latency(plan, samples)
        record["latency_is"] = report.meaning(plan)
        record["messages_per_s"] = operations * (2 if plan.halves else 1) * 1e9 / max(ns, 1)
        record["bandwidth_bytes_per_s"] = record["messages_per_s"] * size
    else:
        record |= report.rates(size, operations, ns, peak)
        if plan.bidirectional:
            record |= both(record, report.rates(size, *told["streamed"]))
    record["way"] = report.way(before, after)
    record["cpus_busy"] = {"client": busy, "server": told["busy"]}
    return record


def both(mine: report.Record, theirs: report.Record) -> report.Record:
    """The sum of what both ends streamed, as perftest prints it."""
    return {name: mine[name] + value for name, value in theirs.items()}


# ---------------------------------------------------------------------- server


def server(
    line: Line, mine: dict[str, Any], where: Where, show: Callable[[Plan, list[report.Record]], None]
) -> None:
    """Serve one client; `mine` are the fields of a plan that this end was given."""
    with telling(line), ExitStack() as stack:
        told = line.hear("hello")
        if told["version"] != VERSION:
            raise Failure(
                f"the client speaks version {told['version']}, this is {VERSION}: the releases differ"
            )
        plan = Plan.of_json(told["plan"])
        agree(mine, plan)
        line.say("hello", versions=report.versions())
        end = End(plan, line, stack, False, where.device, where.gid_index)
        for size in plan.sizes:
            serve(end, size)
        results = line.hear("results", None)
        line.say("results")
        show(plan, results["rows"])


def agree(mine: dict[str, Any], plan: Plan) -> None:
    """What the server was given is what the client asks for."""
    theirs = plan.to_json()
    for name, value in mine.items():
        if theirs[name] != value:
            raise Failure(f"{name} is {shown(value)} at the server, {shown(theirs[name])} at the client")


def shown(value: object) -> str:
    """For the sentence above."""
    if isinstance(value, tuple):
        return " ".join(map(str, value)) if len(value) < 4 else "all"
    return str(value)


def serve(end: End, size: int) -> None:
    """One size."""
    line, plan = end.line, end.plan
    told = line.hear("run", None)
    if told["size"] != size:
        raise Failure(f"the client runs {told['size']} bytes, {size} are next")
    end.clear()
    if end.rx_depth:
        end.loops.fill()
    line.say("ready")
    cpu = Cpu()
    streamed: tuple[int, int, float] | None = None
    if plan.loop_name(False) is not None:
        end.run(size)
    if plan.bidirectional:
        streamed = end.loops.result()
        if plan.what.receives:
            end.sink(size)
    line.hear("over", None)
    line.say("over", busy=cpu.busy(), streamed=streamed)
