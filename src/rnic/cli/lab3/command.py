# SPDX-License-Identifier: Apache-2.0
"""`rnic lab3`: what is asked for on the command line."""

from __future__ import annotations

import json
import secrets
from contextlib import nullcontext
from pathlib import Path

import click
from rich.console import Console

from rnic.cli import environment, params
from rnic.cli.command import group
from rnic.cli.lab3 import grade as grading
from rnic.cli.lab3 import skeleton as exercise
from rnic.cli.lab3.protocol import check_id
from rnic.cli.lab3.receiver import Settings, serve
from rnic.cli.lab3.sender import send_file

PORT = 7471
FILE = params.RegularFile()
FOLDER = click.Path(file_okay=False, path_type=Path)
SECONDS = click.FloatRange(min=0, min_open=True, max=86400)


@group(invoke_without_command=True)
@click.option("--skeleton", "wants_skeleton", is_flag=True, help="As `rnic lab3 skeleton`.")
@click.pass_context
def lab3(ctx: click.Context, wants_skeleton: bool) -> None:
    """File transfer: write the sender, get a secret key.

    The sender announces a file, and writes its bytes into the receiver's memory by RDMA WRITE.  If their hash
    is right, the receiver gives it the secret key of its id.

    \b
    rnic lab3 receiver                          waits for senders
    rnic lab3 sender HOST FILE --id alice       a finished sender
    rnic lab3 skeleton > sender.py              the exercise: write your own
    rnic lab3 skeleton --c > sender.c           the same in C
    rnic lab3 grade sender.py                   says which steps are right
    """
    if wants_skeleton:
        if ctx.invoked_subcommand:
            raise click.UsageError("--skeleton goes alone")
        click.echo(exercise.skeleton(), nl=False)
    elif ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@lab3.command()
@click.option(
    "-p",
    "--port",
    type=params.number(0, 65535),
    default=PORT,
    show_default=True,
    help="RDMA-CM port; 0: any free one.",
)
@click.option("--bind", default="::", show_default=True, help="Address to listen at; :: is IPv4, too.")
@click.option(
    "--dir",
    "folder",
    type=FOLDER,
    default=".",
    help="Folder for the files, which is made if it is not there. [default: this one]",
)
@click.option(
    "--region",
    type=params.size(1 << 30),
    default="4M",
    show_default=True,
    help="Memory that each sender may write to.",
)
@click.option(
    "--secret",
    envvar=environment.LAB3_SECRET.name,
    help="Secret that the keys are made from.  [default: RNIC_LAB3_SECRET in the environment, else random]",
)
@click.option(
    "--timeout", type=SECONDS, default=10.0, show_default=True, help="Seconds that a sender may be silent."
)
@click.option("--once", is_flag=True, help="Serve one sender, and exit with its exit code.")
def receiver(
    port: int, bind: str, folder: Path, region: int, secret: str | None, timeout: float, once: bool
) -> int:
    """Receive files from senders, up to 64 at a time, until Ctrl-C.

    When its hash is right, a file is named lab3- and the first 16 digits of its SHA-256.  Before that it is a
    hidden temporary file, which is removed if the transfer fails.

    \b
    rnic lab3 receiver --dir /tmp/files
    rnic lab3 receiver --once --port 0
    """
    if not region:
        raise click.BadParameter("a region has 1 byte or more", param_hint="--region")
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise click.BadParameter(f"{folder}: {error.strerror}", param_hint="--dir") from None
    key = secret.encode() if secret else secrets.token_bytes(32)
    return serve(bind, port, Settings(folder, region, timeout, key), once, Console(highlight=False))


@lab3.command()
@click.argument("host")
@click.argument("path", metavar="FILE", type=FILE)
@click.option("--id", "who", required=True, help="Your id, 1 to 64 bytes: the secret key is made for it.")
@click.option(
    "-p", "--port", type=params.number(1, 65535), default=PORT, show_default=True, help="RDMA-CM port."
)
@click.option(
    "--timeout", type=SECONDS, default=10.0, show_default=True, help="Seconds that an answer may take."
)
def sender(host: str, path: Path, who: str, port: int, timeout: float) -> None:
    """Send a file, and print the secret key for it.

    \b
    rnic lab3 sender 192.0.2.1 /usr/bin/python3 --id alice
    """
    try:
        check_id(who)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--id") from None
    console = Console(highlight=False)
    key = send_file(host, port, path, who, timeout, console)
    click.echo(f"secret key: {key}")


@lab3.command(short_help="Print the exercise: a sender with TODOs.")
@click.option("--c", "in_c", is_flag=True, help="In C, for libibverbs and librdmacm, instead of Python.")
def skeleton(in_c: bool) -> None:
    """Print the exercise: a sender in which each part that you write is a TODO.

    \b
    rnic lab3 skeleton > sender.py
    rnic lab3 skeleton --c > sender.c           its first lines say how to compile it
    """
    click.echo(exercise.skeleton_in_c() if in_c else exercise.skeleton(), nl=False)


@lab3.command(short_help="Test a sender, and say which steps are right.")
@click.argument("script", type=FILE)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--timeout", type=SECONDS, default=20.0, show_default=True, help="Seconds for each run.")
def grade(script: Path, as_json: bool, timeout: float) -> int:
    """Test a sender with several files, and say which steps are right.

    Runs SCRIPT HOST FILE --id ID --port PORT nine times.  An executable without the suffix .py runs by
    itself, on rnic's devices as under `rnic run`; Python runs any other file.  The exit code is 0 if all
    steps are right, else 1.

    \b
    rnic lab3 grade sender.py
    rnic lab3 grade ./sender                    a program in C, or in any language
    """
    if script.suffix == ".c":
        words = f"cc $(rnic config --cflags --libs --rdmacm) -o {script.stem} {script}"
        raise params.Failure(f"{script} is a source in C; compile it first: {words}")
    console = Console(highlight=False)
    with nullcontext() if as_json else console.status("grading"):
        reports = list(grading.grade(script, timeout))
    passed = all(report.failed is None for report in reports)
    if as_json:
        cases = [report.as_dict() for report in reports]
        mistakes = list({mistake: None for report in reports for mistake in report.not_judged})
        found = {"script": str(script), "passed": passed, "not_judged": mistakes, "cases": cases}
        click.echo(json.dumps(found, indent=2))
    else:
        grading.show(reports, console)
    return 0 if passed else 1
