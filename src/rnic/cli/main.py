# SPDX-License-Identifier: Apache-2.0
"""The group of commands, and the one place where an error becomes a line on stderr and an exit code.

Exit codes: 0 good, 1 the command failed, 2 the command line is wrong, 130 interrupted,
143 terminated.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

import click

from rnic.cli import network, signals
from rnic.cli.command import Later, group
from rnic.errors import VerbsError

INTERRUPTED = 130
COMMANDS = (
    Later("devices", "rnic.cli.devices:devices", "List the RDMA devices of this machine."),
    Later("info", "rnic.cli.devices:info", "Show a device, or all, as ibv_devinfo does."),
    Later("doctor", "rnic.cli.doctor:doctor", "Tell what works on this machine, and what to do."),
    Later("doctor-peer", "rnic.cli.doctor:doctor_peer"),
    Later("pingpong", "rnic.cli.pingpong:pingpong", "Bounce messages between two queue pairs."),
    Later("perf", "rnic.cli.perf:perf", "Measure bandwidth, latency or message rate."),
    Later("demo", "rnic.cli.demo:demo", "Send a file by RDMA, then measure."),
    Later("demo-receiver", "rnic.cli.demo:demo_receiver"),
    Later("cp", "rnic.cli.copy:cp", "Copy files to or from a host that serves them."),
    Later("serve", "rnic.cli.serve:serve", "Serve a directory to rnic cp."),
    Later("rping", "rnic.cli.cm.rping:rping", "Ping-pong by RDMA READ and RDMA WRITE."),
    Later("ucmatose", "rnic.cli.cm.ucmatose:ucmatose", "Connect many times, send messages both ways."),
    Later("udaddy", "rnic.cli.cm.udaddy:udaddy", "Send datagrams to a service, get answers."),
    Later("mckey", "rnic.cli.cm.mckey:mckey", "Send and receive datagrams of a multicast group."),
    Later(
        "rdma-server",
        "rnic.cli.cm.simple:rdma_server",
        "Take a connection, receive a message, send one.",
    ),
    Later("rdma-client", "rnic.cli.cm.simple:rdma_client", "Connect, send a message and receive one."),
    Later("run", "rnic.cli.run:run", "Start a program of libibverbs or librdmacm on rnic's devices."),
    Later("config", "rnic.cli.config:config", "Print what a C compiler needs."),
    Later("kv", "rnic.cli.kv:kv", "A key-value store in memory that clients READ and WRITE."),
    Later("vm", "rnic.cli.vm:vm", "A virtual machine with the kernel's RDMA devices."),
    Later("kmod", "rnic.cli.kmod:kmod", "Kernel modules that use RDMA: make, load, test them."),
    Later("lab3", "rnic.cli.lab3:lab3", "File transfer: write the sender, get a secret key."),
    Later(
        "completion", "rnic.cli.completion:completion", "Print a script that completes commands in a shell."
    ),
)


def show_version(ctx: click.Context, _option: click.Parameter, wanted: bool) -> None:
    """Prints it, and ends."""
    from importlib import metadata  # takes as long to import as all else that help needs

    if not wanted or ctx.resilient_parsing:
        return
    try:
        version = metadata.version("rnic")
    except metadata.PackageNotFoundError:
        version = "unknown"
    click.echo(f"rnic, version {version}")
    ctx.exit()


@group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=show_version,
    help="Show the version and exit.",
)
def cli() -> None:
    """A software RDMA NIC: verbs over RoCEv2 in a user process, without kernel module, root or hardware.

    \b
    rnic devices                    the devices of this machine
    rnic info roce_lo -v            everything about one, as ibv_devinfo
    rnic doctor                     what works on this machine, and what to do
    rnic pingpong rc                a server; its client: rnic pingpong rc HOST
    rnic pingpong uc                unreliable connections; also ud, srq, xrc
    rnic perf write lat --local     bandwidth, latency and message rate
    rnic rping -s                   RDMA-CM's examples; also ucmatose, udaddy
    rnic demo                       a file by RDMA WRITE between two processes
    rnic serve DIR                  files for: rnic cp HOST:FILE .
    rnic run PROGRAM                a program of libibverbs or librdmacm
    rnic config --cflags --libs     what a C compiler needs
    rnic kv serve                   a key-value store by READ, WRITE and atomics
    rnic vm up                      a virtual machine with the kernel's RDMA
    rnic kmod                       kernel modules that use RDMA, made and tested
    rnic lab3                       a file transfer as an exercise, with a grader
    rnic completion bash            also zsh, fish: the Tab key completes
    """


for one in COMMANDS:
    cli.add_command(one)


def main(args: list[str] | None = None) -> NoReturn:
    """Runs the command line and ends the process; no error that a user can cause shows a traceback."""
    try:
        status = run(sys.argv[1:] if args is None else args, begin)
        signals.end()
        gc.freeze()  # the process ends: a search for cycles would free what goes with it anyway
    except signals.Ended as ended:
        if ended.number == signals.SIGINT:  # whoever sends another signal looks at the exit code
            _complain("interrupted", INTERRUPTED)
        raise
    sys.exit(status)


def begin() -> None:
    """A command begins to work: signals end it in order, and no search for cycles looks at the modules."""
    signals.begin()
    gc.freeze()
    gc.enable()


def run(args: list[str], begin: Callable[[], None] | None = None) -> int:
    """Runs the command line; the exit code.  `begin` is called when the command begins to work."""
    try:
        status = cli.main(args=args, prog_name="rnic", standalone_mode=False, obj=begin)
        if sys.stdout:  # None: there is none, as of `rnic run ./server >&-`
            sys.stdout.flush()
    except click.UsageError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        return _fail(error.format_message(), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return _complain("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # Whoever read our output has seen enough (rnic info | head); nobody must try to flush it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except MemoryError:
        return _complain("not enough memory", 1)
    except OSError as error:
        return _fail(describe(error))
    return status if isinstance(status, int) else 0


def describe(error: OSError) -> str:
    """An OSError as one line, without "[Errno 22]"."""
    if isinstance(error, VerbsError):
        return str(error)
    text = error.strerror or str(error)
    return f"{error.filename}: {text}" if error.filename else text


def _fail(text: str, status: int = 1) -> int:
    """With what is wrong with the whole host, if something is."""
    why = None
    with suppress(OSError):  # no descriptor is left to ask with
        why = network.trouble()
    return _complain(f"{text}; {why}" if why and why not in text else text, status)


def _complain(text: str, status: int) -> int:
    click.echo(f"rnic: {text}", err=True)
    return status
