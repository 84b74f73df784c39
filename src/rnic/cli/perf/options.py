# SPDX-License-Identifier: Apache-2.0
"""The options of `rnic perf`, in groups as its help shows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from rnic.cli import completion, params
from rnic.cli.command import Command
from rnic.cli.endpoint import MTUS
from rnic.cli.perf import plan as plans

_F = TypeVar("_F", bound=Callable[..., Any])
HOW_MUCH, HOW, WHERE, OUTPUT = "What is measured", "How it is done", "Where", "What is shown"


class GroupedOption(click.Option):
    """An option with the heading that it stands under."""

    def __init__(self, *args: Any, heading: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.heading = heading


class GroupedCommand(Command):
    """A command whose help has its options under headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                groups.setdefault(getattr(param, "heading", OUTPUT), []).append(record)
        for heading, rows in groups.items():
            with formatter.section(heading):
                formatter.write_dl(rows, col_max=28)


def option(heading: str, *names: str, **more: Any) -> Callable[[_F], _F]:
    """An option under a heading."""
    return click.option(*names, cls=GroupedOption, heading=heading, **more)


OPTIONS = (
    option(
        HOW_MUCH,
        "-s",
        "--size",
        type=params.size(plans.MAX_SIZE),
        help="Bytes in a message, such as 4096, 64K or 1M  [bw: 64K, lat: 2, rate: 8; atomics: always 8]",
    ),
    option(HOW_MUCH, "-a", "--all", "all_sizes", is_flag=True, help="All powers of two from 2 B to 8 MiB."),
    option(
        HOW_MUCH,
        "-n",
        "--iters",
        type=params.number(1),
        help="Operations of each queue pair  [bw: 5000, lat: 10000, rate: 100000; fewer for large messages]",
    ),
    option(
        HOW_MUCH,
        "-D",
        "--duration",
        metavar="SECONDS",
        type=click.FloatRange(0.01, plans.MAX_DURATION),
        help="Measure each size for this time instead.",
    ),
    option(HOW_MUCH, "--bidirectional", is_flag=True, help="bw: both ends at once; their sum is shown."),
    option(
        HOW_MUCH,
        "--to-completion",
        is_flag=True,
        help="lat: measure send, write and write-imm, too, from post to completion.",
    ),
    option(
        HOW,
        "-q",
        "--qp",
        "qps",
        type=params.number(1, plans.MAX_QPS),
        default=1,
        help="bw, rate: queue pairs  [1]",
    ),
    option(
        HOW,
        "-t",
        "--tx-depth",
        "depth",
        type=params.number(1, plans.MAX_DEPTH),
        default=plans.DEFAULT_DEPTH,
        help="bw, rate: most operations on their way, for each queue pair  [128]",
    ),
    option(
        HOW,
        "-l",
        "--post-list",
        type=params.number(1, plans.MAX_GROUP),
        help="bw, rate: operations posted by one call, the last signaled  [bw: 1, rate: 32]",
    ),
    option(
        HOW,
        "-Q",
        "--cq-mod",
        type=params.number(1, plans.MAX_GROUP),
        help="bw, rate with -l 1: one operation in this many is signaled  [16]",
    ),
    option(
        HOW,
        "-I",
        "--inline-size",
        "inline",
        type=params.number(0, plans.MAX_INLINE),
        help="Messages of up to this many bytes go INLINE  [bw: 0, lat, rate: 64]",
    ),
    option(HOW, "-e", "--events", is_flag=True, help="Sleep on completion events instead of polling."),
    option(
        HOW,
        "--loop",
        type=click.Choice(plans.LOOPS),
        default="native",
        help="The loop that measures: compiled code, or the Python API  [native]",
    ),
    option(HOW, "-m", "--mtu", type=click.Choice([str(mtu) for mtu in MTUS]), help="Path MTU  [the ports']"),
    option(HOW, "-R", "--rdma-cm", "cm", is_flag=True, help="Connect the queue pairs by RDMA-CM."),
    option(WHERE, "--local", is_flag=True, help="Both ends on this host: start the server, too."),
    option(
        WHERE,
        "-p",
        "--port",
        type=params.number(0, 65535),
        default=18515,
        help="The server's TCP port  [18515]",
    ),
    option(WHERE, "--bind", metavar="ADDRESS", help="Address at which a server listens  [all]"),
    option(
        WHERE,
        "-d",
        "--ib-dev",
        "device",
        metavar="NAME",
        shell_complete=completion.devices,
        help="Device  [the one with the TCP connection's address]",
    ),
    option(
        WHERE,
        "-x",
        "--gid-index",
        type=params.number(0, 255),
        help="Index of the local GID  [of that address]",
    ),
    option(
        OUTPUT, "--json", "as_json", is_flag=True, help="Print a JSON object for each size, one in each line."
    ),
    option(
        OUTPUT, "--plot", metavar="FILE", help="Draw a picture, too: FILE.svg or FILE.png (needs rnic[plot])."
    ),
    option(OUTPUT, "--listener", type=int, hidden=True),
)


def add_options(command: _F) -> _F:
    """Decorates a command with them."""
    for add in reversed(OPTIONS):
        command = add(command)
    return command
