# SPDX-License-Identifier: Apache-2.0
"""The group of commands, and the one place where an error becomes a line on stderr and an exit code.

Exit codes: 0 good, 1 the command failed, 2 the command line is wrong, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from importlib import metadata
from typing import NoReturn

import click

from rnic.cli.cm import mckey, rdma_client, rdma_server, rping, ucmatose, udaddy
from rnic.cli.demo import demo, demo_receiver
from rnic.cli.devices import devices, info
from rnic.cli.doctor import doctor, doctor_peer
from rnic.cli.lab3 import lab3
from rnic.cli.perf import perf
from rnic.cli.pingpong import pingpong
from rnic.errors import VerbsError


def version() -> str:
    try:
        return metadata.version("rnic")
    except metadata.PackageNotFoundError:
        return "unknown"


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version(), prog_name="rnic")
def cli() -> None:
    """A software RDMA NIC: verbs over RoCEv2 in a user process, without kernel module, root or hardware.

    \b
    rnic devices                    the devices of this machine
    rnic info roce_lo -v            all about one, as ibv_devinfo prints it
    rnic doctor                     what works on this machine, and what to do
    rnic pingpong rc                a server; its client: rnic pingpong rc HOST
    rnic pingpong uc                unreliable connections; also ud, srq, xrc
    rnic perf write lat --local     bandwidth, latency and message rate
    rnic rping -s                   RDMA-CM's examples; also ucmatose, udaddy
    rnic demo                       a file by RDMA WRITE between two processes
    rnic lab3                       the same as an exercise, with a grader
    """


RDMA_CM = (rping, ucmatose, udaddy, mckey, rdma_server, rdma_client)

for command in (devices, info, doctor, doctor_peer, pingpong, perf, demo, demo_receiver, *RDMA_CM, lab3):
    cli.add_command(command)


def main(args: list[str] | None = None) -> NoReturn:
    """Runs the command line and ends the process; no error that a user can cause shows a traceback."""
    sys.exit(run(sys.argv[1:] if args is None else args))


def run(args: list[str]) -> int:
    """Runs the command line; the exit code."""
    try:
        status = cli.main(args=args, prog_name="rnic", standalone_mode=False)
        sys.stdout.flush()
    except click.UsageError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        return _complain(error.format_message(), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return _complain("interrupted", 130)
    except BrokenPipeError:
        # Whoever read our output has seen enough (rnic info | head); nobody must try to flush it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except MemoryError:
        return _complain("not enough memory", 1)
    except OSError as error:
        return _complain(describe(error), 1)
    return status if isinstance(status, int) else 0


def describe(error: OSError) -> str:
    """An OSError as one line, without "[Errno 22]"."""
    if isinstance(error, VerbsError):
        return str(error)
    text = error.strerror or str(error)
    return f"{error.filename}: {text}" if error.filename else text


def _complain(text: str, status: int) -> int:
    click.echo(f"rnic: {text}", err=True)
    return status
