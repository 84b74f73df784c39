# SPDX-License-Identifier: Apache-2.0
"""`rnic perf`: the command line, and the combinations of options that it refuses."""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import ExitStack
from typing import Any

import click
from click.core import ParameterSource

from rnic.cli import exchange, network
from rnic.cli.child import end, last_words, scratch, start
from rnic.cli.endpoint import look
from rnic.cli.params import Failure
from rnic.cli.perf import plan as plans
from rnic.cli.perf import session
from rnic.cli.perf.line import QUIET, Gone, Line
from rnic.cli.perf.options import GroupedCommand, add_options
from rnic.cli.perf.output import Output
from rnic.cli.perf.plan import Plan
from rnic.cli.perf.progress import Progress
from rnic.records import replace

START = 30.0  # seconds for an interpreter to start, on a busy machine
EACH_ENDS_OWN = {
    "test",
    "metric",
    "host",
    "local",
    "port",
    "device",
    "gid_index",
    "bind",
    "as_json",
    "plot",
    "listener",
}


@click.command(cls=GroupedCommand)
@click.argument("test", type=click.Choice(list(plans.TESTS)), metavar="OPERATION")
@click.argument("metric", type=click.Choice(list(plans.METRICS)), metavar="METRIC")
@click.argument("host", required=False)
@add_options
@click.pass_context
def perf(context: click.Context, /, **given: Any) -> None:
    """Measure bandwidth, latency or message rate of an operation, as perftest does.

    \b
    OPERATION  send, write, write-imm, read, atomic-fadd, atomic-cas
    METRIC     bw    bandwidth: operations posted one by one
               lat   latency: half of a round trip for send, write, write-imm;
                     from post to completion for the others
               rate  messages per second: short ones, posted in chains

    \b
    rnic perf write lat --local         both ends on this host
    rnic perf write lat                 a server; then, on the other side,
    rnic perf write lat HOST            its client, which decides what is measured
    rnic perf read bw HOST -a --plot read.svg

    A server that is given options insists on them.  Each end has -d, -x, -p, --bind, --json and --plot for
    itself.  Two ends on one host use shared memory, unless RNIC_LOCAL=off: the output tells the transport.
    docs/perf.md says exactly what is measured, and what the JSON contains.
    """
    explicit = {name for name in given if context.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    refuse(given, explicit)
    plan = plan_of(given)
    where = session.Where(given["device"], given["gid_index"])
    output = Output(given["as_json"], given["plot"])
    if given["listener"] is not None:
        serve(socket.socket(fileno=given["listener"]), {}, where, output)
        return
    look(where.device, 1, where.gid_index)
    if given["local"]:
        measure_here(plan, where, output)
    elif given["host"] is None:
        with exchange.listen(given["port"], given["bind"] or "") as listener:
            port = listener.getsockname()[1]
            network.announce(
                given["bind"] or "", port, lambda host: client_words(given, explicit, host, port)
            )
            serve(listener, insisted(plan, explicit), where, output)
    else:
        with exchange.connect(given["host"], given["port"], QUIET) as sock:
            measure(sock, plan, where, output)


# ---------------------------------------------------------------------- the command line


def refuse(given: dict[str, Any], explicit: set[str]) -> None:
    """Raise an error for an option that has no meaning here, so that no option is ignored."""
    lat, atomic = given["metric"] == "lat", given["test"] in plans.ATOMICS
    inlines, depth = plans.TESTS[given["test"]].inlines, given["depth"]
    post_list, cq_mod = post_list_of(given), given["cq_mod"] or 1
    rules = [
        (
            given["local"] and given["host"] is not None,
            "--local starts the server itself: HOST does not go with it",
        ),
        (given["local"] and "port" in explicit, "--local chooses a port itself: -p does not go with it"),
        (
            given["host"] is not None and given["port"] == 0,
            "a client needs the server's port, which cannot be 0",
        ),
        (given["host"] == "", "HOST is empty: without it this is a server"),
        (given["bind"] == "", "--bind takes an address: without it a server listens at every one"),
        (given["bind"] and (given["local"] or given["host"]), "--bind is a server's"),
        (given["all_sizes"] and given["size"] is not None, "-a is all sizes, -s one: give one of them"),
        (given["size"] == 0, "-s 0: a message needs at least 1 byte"),
        (given["iters"] and given["duration"], "-n counts operations, -D seconds: give one of them"),
        (atomic and given["size"] not in (None, 8), "atomics have 8 bytes: -s does not go with them"),
        (atomic and given["all_sizes"], "atomics have 8 bytes: -a does not go with them"),
        (lat and "qps" in explicit, "a latency is one queue pair's: -q is for bw and rate"),
        (lat and "depth" in explicit, "a latency is of one operation at a time: -t is for bw and rate"),
        (lat and "post_list" in explicit, "a latency is of one operation at a time: -l is for bw and rate"),
        (lat and "cq_mod" in explicit, "a latency is of one operation at a time: -Q is for bw and rate"),
        (post_list > depth, f"-l {post_list}: a chain is longer than the {depth} operations of -t"),
        (cq_mod > depth, f"-Q {cq_mod}: more than the {depth} of -t"),
        (
            post_list > 1 and "cq_mod" in explicit,
            f"in chains of {post_list} the last operation is signaled: -Q goes with -l 1",
        ),
        (given["bidirectional"] and given["metric"] != "bw", "--bidirectional is for bw"),
        (given["to_completion"] and not lat, "--to-completion is for lat"),
        (
            given["to_completion"] and not plans.TESTS[given["test"]].bounces,
            f"--to-completion is what {given['test']} lat measures anyway",
        ),
        (
            given["events"] and lat and given["test"] == "write" and not given["to_completion"],
            "-e: the target of a WRITE gets no events: it polls its memory; choose write-imm",
        ),
        ("inline" in explicit and not inlines, f"-I: {given['test']} has no data to send INLINE"),
        (given["cm"] and "mtu" in explicit, "-R: RDMA-CM agrees on the MTU, -m does not go with it"),
        (given["cm"] and "gid_index" in explicit, "-R: RDMA-CM takes the GID of the address, not that of -x"),
    ]
    for wrong, why in rules:
        if wrong:
            raise click.UsageError(why)


def post_list_of(given: dict[str, Any]) -> int:
    """-l, or its default: two chains of this length are on their way."""
    default = min(plans.DEFAULT_POST_LIST[given["metric"]], max(1, given["depth"] // 2))
    return int(given["post_list"] or default)


def plan_of(given: dict[str, Any]) -> Plan:
    """The plan, with defaults filled in."""
    metric, atomic, depth = given["metric"], given["test"] in plans.ATOMICS, given["depth"]
    size = given["size"] or (plans.ATOMIC_SIZE if atomic else plans.DEFAULT_SIZES[metric])
    inline = plans.DEFAULT_INLINE[metric] if given["inline"] is None else given["inline"]
    return Plan(
        test=given["test"],
        metric=metric,
        sizes=plans.ALL_SIZES if given["all_sizes"] else (size,),
        iterations=given["iters"] or 0,
        duration=given["duration"] or 0.0,
        qps=given["qps"],
        depth=depth,
        post_list=post_list_of(given),
        cq_mod=given["cq_mod"] or min(plans.DEFAULT_CQ_MOD, max(1, depth // 4)),
        mtu=int(given["mtu"] or 0),
        events=given["events"],
        bidirectional=given["bidirectional"],
        to_completion=given["to_completion"],
        cm=given["cm"],
        inline=inline,
        loop=given["loop"],
    )


def insisted(plan: Plan, explicit: set[str]) -> dict[str, Any]:
    """The fields of the plan that a server was given."""
    names = {"size": "sizes", "all_sizes": "sizes", "iters": "iterations"}
    fields = {names.get(name, name) for name in explicit - EACH_ENDS_OWN}
    record = plan.to_json()
    return {name: record[name] for name in sorted(fields)}


def client_words(given: dict[str, Any], explicit: set[str], host: str, port: int) -> list[str]:
    """The command with which a client reaches this server."""
    shared = network.given(*explicit - EACH_ENDS_OWN)
    return ["rnic", "perf", given["test"], given["metric"], host, *shared, *network.port_words(port)]


# ---------------------------------------------------------------------- the ends


def measure(sock: socket.socket, plan: Plan, where: session.Where, output: Output) -> None:
    """Run the client."""
    session.client(Line(sock, "server"), plan, where, output.show, Progress(plan, sys.stderr))
    output.finish()


def serve(listener: socket.socket, mine: dict[str, Any], where: session.Where, output: Output) -> None:
    """Run the server: one client, whose results it also shows."""
    with exchange.accept(listener, QUIET) as sock:
        line = Line(sock, "client")
        session.server(line, mine, where, output.show)
        with session.telling(line):  # the records are the client's
            output.finish()


def measure_here(plan: Plan, where: session.Where, output: Output) -> None:
    """Run both ends: the server is a second process, which ends with the line."""
    with scratch() as stderr, ExitStack() as stack:
        host = network.here()
        with exchange.listen(0, host) as listener:
            sock = stack.enter_context(exchange.connect(host, listener.getsockname()[1], QUIET))
            words = ["perf", plan.test, plan.metric, "--listener", str(listener.fileno())]
            words += ["-d", where.device] if where.device is not None else []
            words += ["-x", str(where.gid_index)] if where.gid_index is not None else []
            child = start(
                *words,
                pass_fds=[listener.fileno()],
                stdout=subprocess.DEVNULL,
                stderr=stderr,  # what goes wrong is said on the line, but for the start
            )
        stack.push(lambda kind, _error, _traceback: end(child, 3 if kind is None else 0.5))
        patient = replace(where, patience=START)
        try:
            measure(sock, plan, patient, output)
            sock.close()
            status = child.wait(QUIET)
        except Gone as gone:
            end(child, 0.5)
            raise Failure(gone.message + last_words(stderr)) from None
        except subprocess.TimeoutExpired:
            raise Failure(f"the server has not ended within {QUIET:g} s") from None
        if status:
            raise Failure(f"the server ended with exit code {status}{last_words(stderr)}")
