# SPDX-License-Identifier: Apache-2.0
"""`rnic perf`: the command line, and what of it does not fit together."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import click
from click.core import ParameterSource

from rnic.cli import exchange, params
from rnic.cli.params import Failure
from rnic.cli.perf import plan as plans
from rnic.cli.perf import report, session
from rnic.cli.perf.line import QUIET, Line
from rnic.cli.perf.plan import Plan

HERE = "127.0.0.1"
START = 30.0  # seconds for an interpreter to start, on a busy machine
SERVERS_OWN = {"test", "metric", "host", "local", "port", "device", "gid_index", "as_json", "listener"}


@click.command()
@click.argument("test", type=click.Choice(list(plans.TESTS)))
@click.argument("metric", type=click.Choice(plans.METRICS))
@click.argument("host", required=False)
@click.option("--local", is_flag=True, help="Start the server, too: both ends on this host.")
@click.option(
    "-s",
    "--size",
    type=params.size(plans.MAX_SIZE),
    help="Bytes in a message [bw: 64K, lat: 2, rate: 8; atomics: 8].",
)
@click.option("-a", "--all", "all_sizes", is_flag=True, help="All sizes: powers of two from 2 to 8 MiB.")
@click.option(
    "-n",
    "--iters",
    type=params.number(1),
    help="Operations of each queue pair [bw: 5000, lat: 10000, rate: 100000].",
)
@click.option(
    "-D", "--duration", type=click.FloatRange(0.01, 86400), help="Measure for so many seconds instead."
)
@click.option("-q", "--qp", "qps", type=params.number(1, 1024), default=1, help="bw, rate: queue pairs [1].")
@click.option(
    "-t",
    "--tx-depth",
    "depth",
    type=params.number(1, 16384),
    default=plans.DEFAULT_DEPTH,
    help="bw, rate: operations on their way, of each queue pair [128].",
)
@click.option(
    "-m",
    "--mtu",
    type=click.Choice(["256", "512", "1024", "2048", "4096"]),
    help="Path MTU [what both ports have].",
)
@click.option("-e", "--events", is_flag=True, help="Sleep on completion events instead of polling.")
@click.option("--bidirectional", is_flag=True, help="bw: both ends at once; their sum is shown.")
@click.option("-R", "--rdma-cm", "cm", is_flag=True, help="Connect the queue pairs by RDMA-CM.")
@click.option(
    "-I",
    "--inline-size",
    "inline",
    type=params.number(0, 4096),
    help="Messages up to so many bytes go INLINE [bw: 0, lat and rate: 64].",
)
@click.option(
    "--loop",
    type=click.Choice(["native", "python"]),
    default="native",
    help="The loops that post and poll: compiled, or by the Python API [native].",
)
@click.option("-d", "--ib-dev", "device", help="Device [that of the TCP connection's local address].")
@click.option(
    "-x", "--gid-index", type=params.number(0, 255), help="Index of the local GID [the local address]."
)
@click.option(
    "-p", "--port", type=params.number(0, 65535), default=18515, help="TCP port of the server [18515]."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each size.")
@click.option("--listener", type=int, hidden=True)
@click.pass_context
def perf(context: click.Context, /, **given: Any) -> None:
    """Measure bandwidth (bw), latency (lat) or message rate (rate) of an operation, as perftest does.

    \b
    rnic perf write lat --local             both ends on this host
    rnic perf write lat                     a server; then, on the other side,
    rnic perf write lat HOST                its client, which decides what is measured

    A server that is given options insists on them; -d, -x, -p and --json are each end's own.

    Latency of send, write and write-imm is half of a round trip, the answer being the same operation; of
    read and atomics it is the time from the post to the completion. The target of write polls
    its memory for the last byte, as in ib_write_lat, and the completion queue now and then, which makes progress on the wire.

    bw posts operations one by one, rate in chains of 32; one in 16 or 32 is signaled. A tenth of what
    is measured runs before as a warm-up. MB are 2^20 bytes; a peak is the best 10 ms. Latencies are in
    microseconds; their samples are kept in buckets 1.6 % wide.

    Peers on one host reach each other by shared memory unless RNIC_LOCAL=off; --json tells the way.
    """
    explicit = {name for name in given if context.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    refuse(given, explicit)
    plan = plan_of(given)
    where = session.Where(given["device"], given["gid_index"])
    if given["listener"] is not None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it has heard it, too
        serve_once(socket.socket(fileno=given["listener"]), {}, where, given)
    elif given["local"]:
        measure_here(plan, where, given)
    elif given["host"] is None:
        with exchange.listen(given["port"]) as listener:
            if given["port"] == 0:
                click.echo(f"listening on port {listener.getsockname()[1]}", err=True)
            serve_once(listener, insisted(plan, explicit), where, given)
    else:
        with exchange.connect(given["host"], given["port"], QUIET) as sock:
            measure(Line(sock, "server"), plan, where, given)


# ---------------------------------------------------------------------- the command line


def refuse(given: dict[str, Any], explicit: set[str]) -> None:
    """Raises for what has no meaning, so that nothing is ignored."""
    lat, atomic = given["metric"] == "lat", given["test"] in plans.ATOMICS
    inlines = plans.TESTS[given["test"]].opcode not in (plans.Op.RDMA_READ,) and not atomic
    rules = [
        (given["local"] and given["host"], "--local starts the server itself: HOST does not go with it"),
        (given["local"] and "port" in explicit, "--local chooses a port itself: -p does not go with it"),
        (given["host"] and given["port"] == 0, "a client needs the server's port, and 0 is none"),
        (given["all_sizes"] and given["size"] is not None, "-a is all sizes, -s one: choose"),
        (given["size"] == 0, "-s 0: a message without bytes is nothing to measure"),
        (given["iters"] and given["duration"], "-n counts operations, -D seconds: choose"),
        (atomic and given["size"] not in (None, 8), "atomics are of 8 bytes: -s can say nothing else"),
        (atomic and given["all_sizes"], "atomics are of 8 bytes: -a does not go with them"),
        (lat and "qps" in explicit, "a latency is one queue pair's: -q is for bw and rate"),
        (lat and "depth" in explicit, "a latency is of one operation at a time: -t is for bw and rate"),
        (given["bidirectional"] and given["metric"] != "bw", "--bidirectional is for bw"),
        (
            given["events"] and lat and given["test"] == "write",
            "-e: the target of write polls its memory, where no event tells of news; write-imm has events",
        ),
        ("inline" in explicit and not inlines, f"-I: {given['test']} carries nothing that could go INLINE"),
        (given["cm"] and "mtu" in explicit, "-R: RDMA-CM agrees on the MTU, -m does not go with it"),
        (given["cm"] and "gid_index" in explicit, "-R: RDMA-CM takes the GID of the address, not that of -x"),
        (given["cm"] and "device" in explicit, "-R: RDMA-CM takes the device of the address, not that of -d"),
    ]
    for wrong, why in rules:
        if wrong:
            raise click.UsageError(why)


def plan_of(given: dict[str, Any]) -> Plan:
    """With what was not given filled in."""
    metric, atomic = given["metric"], given["test"] in plans.ATOMICS
    size = given["size"] or (plans.ATOMIC_SIZE if atomic else plans.DEFAULT_SIZES[metric])
    inline = plans.DEFAULT_INLINE[metric] if given["inline"] is None else given["inline"]
    return Plan(
        test=given["test"],
        metric=metric,
        sizes=plans.ALL_SIZES if given["all_sizes"] else (size,),
        iterations=0 if given["duration"] else given["iters"] or plans.DEFAULT_ITERATIONS[metric],
        duration=given["duration"] or 0.0,
        qps=given["qps"],
        depth=given["depth"],
        mtu=int(given["mtu"] or 0),
        events=given["events"],
        bidirectional=given["bidirectional"],
        cm=given["cm"],
        inline=inline,
        loop=given["loop"],
    )


def insisted(plan: Plan, explicit: set[str]) -> dict[str, Any]:
    """The fields of the plan that a server was given."""
    names = {"size": "sizes", "all_sizes": "sizes", "iters": "iterations"}
    fields = {names.get(name, name) for name in explicit - SERVERS_OWN} | {"test", "metric"}
    record = plan.to_json()
    return {name: record[name] for name in sorted(fields)}


# ---------------------------------------------------------------------- the ends


def measure(line: Line, plan: Plan, where: session.Where, given: dict[str, Any]) -> None:
    """The client."""
    if not given["as_json"]:
        click.echo(heading(plan))
        click.echo(report.head(plan))
    session.client(line, plan, where, lambda record: click.echo(text_of(record, given["as_json"])))


def heading(plan: Plan) -> str:
    """What is measured, for people."""
    sizes = f"{plan.test} {plan.metric}, {plan.loop} loop, {plan.qps} queue pair{'s' * (plan.qps > 1)}"
    return f"{sizes}; {report.meaning(plan)}"


def text_of(record: report.Record, as_json: bool) -> str:
    """A row, or an object."""
    return json.dumps(record) if as_json else report.row(record)


def serve_once(
    listener: socket.socket, mine: dict[str, Any], where: session.Where, given: dict[str, Any]
) -> None:
    """The server: one client, whose results it shows, too."""

    def show(plan: Plan, rows: list[report.Record]) -> None:
        if not given["as_json"]:
            click.echo(f"{heading(plan)}\n{report.head(plan)}")
        for record in rows:
            click.echo(text_of(record, given["as_json"]))

    with exchange.accept(listener, QUIET) as sock:
        session.server(Line(sock, "client"), mine, where, show)


def measure_here(plan: Plan, where: session.Where, given: dict[str, Any]) -> None:
    """Both ends: the server is a process of its own, which ends with the line."""
    with ExitStack() as stack:
        with exchange.listen(0, HERE) as listener:
            sock = stack.enter_context(exchange.connect(HERE, listener.getsockname()[1], QUIET))
            words = [sys.executable, "-m", "rnic", "perf", plan.test, plan.metric]
            words += ["--listener", str(listener.fileno())]
            words += ["-d", where.device] if where.device is not None else []
            words += ["-x", str(where.gid_index)] if where.gid_index is not None else []
            child = subprocess.Popen(
                words,
                pass_fds=[listener.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # the line carries what goes wrong
            )
        stack.push(lambda kind, _error, _traceback: end(child, 3 if kind is None else 0.5))
        patient = replace(where, patience=START)
        measure(Line(sock, "server"), plan, patient, given)
        sock.close()
        if status := child.wait(QUIET):
            raise Failure(f"the server ended with exit code {status}")


def end(child: subprocess.Popen[bytes], seconds: float) -> None:
    """Waits for the server, which ends when the line does; kills it if it does not."""
    try:
        child.wait(seconds)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
