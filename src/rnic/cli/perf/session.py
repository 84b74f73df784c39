# SPDX-License-Identifier: Apache-2.0
"""Both ends, from the first word on the line to the last result."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from rnic import Device
from rnic.cli.endpoint import device_of, is_iwarp
from rnic.cli.params import Failure, printable
from rnic.cli.perf import report
from rnic.cli.perf.end import End
from rnic.cli.perf.line import QUIET, Line, Message
from rnic.cli.perf.plan import Plan
from rnic.cli.perf.progress import Progress
from rnic.cli.perf.samples import Samples
from rnic.cli.signals import Ended
from rnic.records import Record

VERSION = 4  # of what the ends say to each other
CLEARING = 30.0  # seconds in which the other end fills its memory with zeros
KINDS = ("RoCE", "iWARP")
SLOWER = 10  # times that the other direction may take
Result = tuple[int, int, float]
"""Operations, ns, operations a second at the peak."""
Show = Callable[[report.Record], None]
NONSENSE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What comes of messages that have the wrong things in them."""


class Where(Record):
    """What an end decides for itself."""

    device: str | None = None
    gid_index: int | None = None
    patience: float = QUIET
    """Seconds for a server to begin: one that is started now needs more."""


class Usage:
    """CPU time of this process, and what its device counted, since this was made."""

    def __init__(self, end: End) -> None:
        self.end, self.counters = end, end.counters()
        self.began, self.all, self.own = self._read()

    @staticmethod
    def _read() -> tuple[float, float, float]:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return time.perf_counter(), usage.ru_utime + usage.ru_stime, time.thread_time()

    def cpu(self) -> dict[str, float]:
        """Percent of one processor; the process has the device's thread, too."""
        now, everything, own = self._read()
        seconds = max(now - self.began, 1e-9)
        return {
            "percent": round(100 * (everything - self.all) / seconds, 1),
            "main_thread_percent": round(100 * (own - self.own) / seconds, 1),
        }

    def counted(self) -> dict[str, int]:
        """What has grown."""
        now = self.end.counters()
        return {name: now[name] - before for name, before in self.counters.items() if now[name] != before}


@contextmanager
def telling(line: Line) -> Iterator[None]:
    """The other end hears why this one goes."""
    try:
        yield
    except (KeyboardInterrupt, Ended):
        _tell(line, "interrupted")
        raise
    except (Failure, OSError) as error:
        _tell(line, error.message if isinstance(error, Failure) else str(error))
        raise
    except NONSENSE as error:
        _tell(line, "it said what makes no sense")
        raise Failure(f"the {line.peer} said what makes no sense: {printable(repr(error))}") from error


def _tell(line: Line, text: str) -> None:
    with suppress(Failure):  # it is gone, and that is what the error says
        line.say("error", text=text)


# ---------------------------------------------------------------------- client


def client(line: Line, plan: Plan, where: Where, show: Show, progress: Progress) -> None:
    """Measure each size, show each row, tell the server."""
    with ExitStack() as stack, telling(line):  # told first: queue pairs that go before it would be news, too
        stack.callback(progress.clear)
        device = device_of(where.device, line.sock.getsockname())
        line.say("hello", version=VERSION, plan=plan.to_json(), device=device.name, iwarp=is_iwarp(device))
        told = line.hear("hello", where.patience)
        end = End(plan, line, stack, True, where.device, where.gid_index)
        end.loops.tick = progress.tick
        ends = {
            "client": report.machine() | {"device": end.ctx.name},
            "server": told["machine"] | {"device": end.peer_device},
        }
        rows = []
        for size in plan.sizes:
            progress.begin(size)
            record = report.setting(plan, size) | measure(end, size) | {"mtu": end.mtu} | ends
            progress.clear()
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
    line.hear("ready", CLEARING)
    usage = Usage(end)
    if end.run(size):
        line.hear("over")  # too early, and so it is an error
        raise Failure("the server ended too early")
    cpu, counted = usage.cpu(), usage.counted()
    result = end.loops.result()
    line.say("over")
    if plan.bidirectional and plan.what.receives:
        end.sink(size)
    operations, ns, _ = result
    slowest = SLOWER * ns / 1e9 if plan.bidirectional else 0
    told = line.hear("over", QUIET + slowest)
    record: report.Record = {"iterations": operations, "seconds": ns / 1e9}
    record |= results(end, size, result, told["streamed"])
    return record | {
        "transport": report.transport(counted, is_iwarp=end.is_iwarp),
        "cpu": {"client": cpu, "server": told["cpu"]},
        "counters": {"client": counted, "server": told["counted"]},
    }


def results(end: End, size: int, result: Result, streamed: Result | None) -> report.Record:
    """The figures; `streamed` is the result of the other direction."""
    plan, (operations, ns, peak) = end.plan, result
    if plan.is_latency:
        timestamp = {"source": end.clock, "ns": round(end.loops.stamp_ns, 1)}
        samples = Samples(**end.loops.histogram())
        return report.latencies(plan, size, samples, ns) | {"timestamp": timestamp}
    mine = report.rates(size, operations, ns, peak)
    sum_of = report.both(mine, report.rates(size, *streamed)) if streamed else mine
    return report.NO_LATENCY | sum_of


# ---------------------------------------------------------------------- server


def server(line: Line, mine: dict[str, Any], where: Where, show: Show) -> None:
    """Serve one client; `mine` are the fields of a plan that this end was given."""
    with ExitStack() as stack, telling(line):
        told = line.hear("hello")
        if told["version"] != VERSION:
            theirs = printable(told["version"])
            raise Failure(f"the client speaks version {theirs}, this is {VERSION}: the releases differ")
        plan = Plan.of_json(told["plan"])
        agree(mine, where, plan)
        agree_on_kind(told, device_of(where.device, line.sock.getsockname()))
        line.say("hello", machine=report.machine())
        end = End(plan, line, stack, False, where.device, where.gid_index)
        for size in plan.sizes:
            serve(end, size)
        rows = line.hear("results", None)["rows"]
        if [type(row) for row in rows] != [dict] * len(plan.sizes):
            raise ValueError("not a row for each size")
        line.say("results")
        for record in rows:
            show(record)


def agree(mine: dict[str, Any], where: Where, plan: Plan) -> None:
    """What the server was given is what the client asks for, and means something there."""
    theirs = plan.to_json()
    for name, value in mine.items():
        if theirs[name] != value:
            raise Failure(f"{name} is {shown(value)} at the server, {shown(theirs[name])} at the client")
    if plan.cm and where.gid_index is not None:
        raise Failure("-R: RDMA-CM chooses by address: -x of the server does not go with it")


def agree_on_kind(told: Message, own: Device) -> None:
    """Both ends have a device of one kind: a queue pair of the other kind would be waited for in vain."""
    theirs, iwarp = printable(str(told["device"])), bool(told["iwarp"])
    if iwarp != is_iwarp(own):
        raise Failure(
            f"the client's device {theirs} is {KINDS[iwarp]}, the server's {own.name} is {KINDS[not iwarp]}: "
            "give both ends -d of one kind"
        )


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
        raise Failure(f"the client runs {printable(told['size'])} bytes, {size} are next")
    end.clear()
    if end.rx_depth:
        end.loops.fill()
    line.say("ready")
    usage = Usage(end)
    streamed: Result | None = None
    if plan.loop_name(False) is not None:
        end.run(size)
    if plan.bidirectional:
        streamed = end.loops.result()
        if plan.what.receives:
            end.sink(size)
    line.hear("over", None)
    line.say("over", cpu=usage.cpu(), counted=usage.counted(), streamed=streamed)
