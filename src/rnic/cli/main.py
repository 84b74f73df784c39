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

from rnic import __version__
from rnic.cli import network, signals
from rnic.cli.command import Later, group
from rnic.errors import VerbsError

INTERRUPTED = 130
COMMANDS = {
    "Devices": (
        Later("devices", "rnic.cli.devices:devices", "List the RDMA devices of this machine."),
        Later("info", "rnic.cli.devices:info", "Show a device, or all, as ibv_devinfo does."),
        Later("doctor", "rnic.cli.doctor:doctor", "Tell what works on this machine, and what to do."),
    ),
    "Try and measure": (
        Later("demo", "rnic.cli.demo:demo", "Send a file by RDMA, then measure."),
        Later("pingpong", "rnic.cli.pingpong:pingpong", "Bounce messages between two queue pairs."),
        Later("perf", "rnic.cli.perf:perf", "Measure bandwidth, latency or message rate."),
        Later("lab3", "rnic.cli.lab3:lab3", "File transfer: write the sender, get a secret key."),
    ),
    "Move data": (
        Later("serve", "rnic.cli.serve:serve", "Serve a directory to rnic cp."),
        Later("cp", "rnic.cli.copy:cp", "Copy files to or from a host that serves them."),
        Later("kv", "rnic.cli.kv:kv", "A key-value store in memory that clients READ and WRITE."),
    ),
    "Programs of libibverbs and librdmacm": (
        Later("run", "rnic.cli.run:run", "Start such a program, unchanged, on rnic's devices."),
        Later("config", "rnic.cli.config:config", "Print what a C compiler needs to build one."),
    ),
    "RDMA-CM's examples": (
        Later("rping", "rnic.cli.cm.rping:rping", "Ping-pong by RDMA READ and RDMA WRITE."),
        Later("ucmatose", "rnic.cli.cm.ucmatose:ucmatose", "Connect many times, send messages both ways."),
        Later("udaddy", "rnic.cli.cm.udaddy:udaddy", "Send datagrams to a service, get answers."),
        Later("mckey", "rnic.cli.cm.mckey:mckey", "Send and receive datagrams of a multicast group."),
        Later("rdma-server", "rnic.cli.cm.simple:rdma_server", "Take a connection, receive, then send."),
        Later("rdma-client", "rnic.cli.cm.simple:rdma_client", "Connect, send a message and receive one."),
    ),
    "The Linux kernel's RDMA": (
        Later("vm", "rnic.cli.vm:vm", "A virtual machine with the kernel's RDMA devices."),
        Later("kmod", "rnic.cli.kmod:kmod", "Kernel modules that use RDMA: make, load, test them."),
    ),
    "Shell": (Later("completion", "rnic.cli.completion:completion", "Let the Tab key complete commands."),),
    "": (  # what other commands start
        Later("doctor-peer", "rnic.cli.doctor:doctor_peer"),
        Later("demo-receiver", "rnic.cli.demo:demo_receiver"),
    ),
}


def show_version(ctx: click.Context, _option: click.Parameter, wanted: bool) -> None:
    """Prints it, and ends."""
    if not wanted or ctx.resilient_parsing:
        return
    click.echo(f"rnic, version {__version__}")
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
    """RDMA programming on a software RDMA NIC in your own process: no kernel module, no root, no hardware.

    \b
    rnic demo                       see it work
    rnic doctor                     see what works on this machine
    rnic COMMAND --help             a command's examples and options
    """


for title, commands in COMMANDS.items():
    cli.add_section(title, commands)


def main(args: list[str] | None = None) -> NoReturn:
    """Runs the command line and ends the process; no error that a user can cause shows a traceback."""
    _open_closed()
    try:
        status = run(sys.argv[1:] if args is None else args, begin)
        signals.end()
        gc.freeze()  # the process ends: a search for cycles would free what goes with it anyway
    except signals.Ended as ended:
        if ended.number == signals.SIGINT:  # whoever sends another signal looks at the exit code
            _complain("interrupted", INTERRUPTED)
        raise
    finally:
        _give_up_unwritten()
    sys.exit(status)


def _open_closed() -> None:
    """Give stdin, stdout and stderr that are closed (`rnic info >&-`) a file: else the next one that is
    opened gets their number.

    What is written to them is lost; to read is an error (EBADF), as else nothing would be taken for an empty
    input. Programs that are started find them closed.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            fd = os.open(os.devnull, os.O_WRONLY)  # the lowest number that is free
            setattr(sys, name, open(fd, "r" if name == "stdin" else "w", closefd=False))  # noqa: SIM115


def _give_up_unwritten() -> None:
    """Drop output that cannot be written, as its reader has gone or the disk is full."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def begin() -> None:
    """A command begins to work: signals end it in order, and no search for cycles looks at the modules."""
    signals.begin()
    gc.freeze()
    gc.enable()


def run(args: list[str], begin: Callable[[], None] | None = None) -> int:
    """Runs the command line; the exit code.  `begin` is called when the command begins to work."""
    try:
        status = cli.main(args=args, prog_name="rnic", standalone_mode=False, obj=begin)
        sys.stdout.flush()
    except click.UsageError as error:
        with suppress(OSError):  # of a stderr that takes nothing the exit code tells
            error.show()
        return error.exit_code
    except click.ClickException as error:
        return _fail(error.format_message(), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return _complain("interrupted", INTERRUPTED)
    except BrokenPipeError:  # whoever read our output has seen enough (rnic info | head)
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
    with suppress(OSError):  # of a stderr that takes nothing the exit code tells
        click.echo(f"rnic: {text}", err=True)
    return status
