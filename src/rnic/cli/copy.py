# SPDX-License-Identifier: Apache-2.0
"""`rnic cp`: copy files to and from a host where `rnic serve` runs."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from rnic.cli import completion, params, signals
from rnic.cli.command import command
from rnic.cli.params import printable
from rnic.files import Options, Report, copy_from, copy_to
from rnic.files.options import PORT
from rnic.wording import counted

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

REMOTE = re.compile(r"(?P<host>\[[^\]/]+\]|[^:/\[]+):(?P<path>.*)", re.DOTALL)


class Place(NamedTuple):
    """A path, and the host where it is; None: this one."""

    host: str | None
    path: str


def place(text: str) -> Place:
    """HOST:PATH or [ADDRESS]:PATH; a path with a colon can be written with a "/" before it, as ./a:b."""
    found = REMOTE.fullmatch(text)
    return Place(found["host"].strip("[]"), found["path"]) if found else Place(None, text)


class Seen(Report):
    """Says what happens: failures on stderr, with -v each file on stdout, and a bar on a terminal."""

    def __init__(self, verbose: bool, progress: Progress | None) -> None:
        super().__init__()
        self._verbose, self._progress = verbose, progress
        self._bar = progress.add_task("copying", total=None) if progress else None

    def copied(self, path: bytes, size: int) -> None:
        super().copied(path, size)
        self._tell(path, "")

    def skipped(self, path: bytes) -> None:
        super().skipped(path)
        self._tell(path, "skipped ")

    def failed(self, path: bytes, text: str) -> None:
        super().failed(path, text)
        if self._progress:
            self._progress.console.print(f"rnic cp: {text}", markup=False, highlight=False, soft_wrap=True)
        else:
            click.echo(f"rnic cp: {text}", err=True)

    def moved(self, count: int) -> None:
        if self._progress and self._bar is not None:
            self._progress.advance(self._bar, count)

    def total(self, files: int, size: int) -> None:
        if self._progress and self._bar is not None:
            self._progress.update(self._bar, total=size, description=counted(files, "file"))

    def _tell(self, path: bytes, how: str) -> None:
        if self._verbose:
            click.echo(f"{how}'{printable(os.fsdecode(path))}'")


def secret_of(_ctx: click.Context, _param: click.Parameter, path: Path | None) -> bytes | None:
    """The secret in a file, without white space around it."""
    if path is None:
        return None
    secret = path.read_bytes().strip()
    if not secret:
        raise click.BadParameter(f"'{path}' is empty")
    return secret


secret_option = click.option(
    "--secret-file",
    "secret",
    type=params.RegularFile(),
    callback=secret_of,
    help="A file with the secret that both ends know; it is never sent.",
)
device_option = click.option(
    "-d", "--device", metavar="NAME", shell_complete=completion.devices, help="The device to use."
)


@command("cp")
@click.argument("sources", metavar="SRC...", nargs=-1, required=True)
@click.argument("destination", metavar="DST")
@click.option("-r", "-R", "--recursive", is_flag=True, help="Copy directories and what is in them.")
@click.option("-n", "--no-clobber", is_flag=True, help="Leave files that exist as they are.")
@click.option("-v", "--verbose", is_flag=True, help="Name each file that was copied.")
@click.option("--dry-run", is_flag=True, help="Ask the server, and copy nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print what was done as JSON.")
@click.option(
    "-p", "--port", type=params.number(1, 65535), default=PORT, show_default=True, help="The server's port."
)
@secret_option
@device_option
def cp(
    sources: tuple[str, ...],
    destination: str,
    recursive: bool,
    no_clobber: bool,
    verbose: bool,
    dry_run: bool,
    as_json: bool,
    port: int,
    secret: bytes | None,
    device: str | None,
) -> int:
    """Copy files by RDMA to or from a host where `rnic serve DIR` runs.

    \b
    rnic cp file other:              into the directory that is served there
    rnic cp -r dir file other:some   into its directory `some`
    rnic cp -r other:dir .           from there

    Each file is verified by its XXH3 digest, and gets its name when all of it is there, with mode and time
    of the original. An interrupted copy of a large file goes on where it was. Symbolic links are not copied.

    Exit code 1: some file was not copied; 2: the command line is wrong.
    """
    here, there = [place(one) for one in sources], place(destination)
    hosts = {one.host for one in here}
    if (there.host is None) == (None in hosts) or len(hosts) > 1:
        raise click.UsageError("either all SRC are HOST:PATH, of one host, or DST alone is")
    if verbose and as_json:
        raise click.UsageError("-v and --json do not go together")
    began = time.monotonic()
    with ExitStack() as stack:
        progress = None
        if sys.stderr.isatty() and not dry_run:
            from rich.console import Console

            progress = stack.enter_context(progress_on(Console(stderr=True)))
        options = Options(
            recursive=recursive, no_clobber=no_clobber, dry_run=dry_run, total=progress is not None
        )
        report = Seen(verbose, progress)
        paths = [one.path for one in here]
        host = there.host if there.host is not None else hosts.pop()
        assert host is not None
        copy = copy_to if there.host is not None else copy_from
        signals.run(copy(host, port, paths, there.path, options, report, secret=secret, device=device))
    if report.left_count:
        what = "file or directory was" if report.left_count == 1 else "files or directories were"
        above = "as the directory above could not be made"
        click.echo(f"rnic cp: {report.left_count} {what} left out, {above}", err=True)
    if as_json:
        click.echo(json.dumps(_summary(report, time.monotonic() - began, dry_run)))
    return 1 if report.failed_count else 0


def progress_on(console: Console) -> Progress:
    """A bar in one line; a narrow terminal has fewer columns."""
    from rich import progress  # takes as long as the copy of a small file, and only a terminal shows it

    columns = {
        progress.TextColumn("{task.description}"): 0,
        progress.BarColumn(): 72,
        progress.DownloadColumn(binary_units=True): 0,
        progress.TransferSpeedColumn(): 44,
        progress.TimeRemainingColumn(): 54,
    }
    shown = [column for column, width in columns.items() if console.width >= width]
    return progress.Progress(*shown, console=console, transient=True)


def _summary(report: Report, seconds: float, dry_run: bool) -> dict[str, object]:
    return {
        "files": report.files,
        "bytes": report.bytes,
        "skipped": report.skips,
        "failed": [{"path": path, "error": text} for path, text in report.failures],
        "seconds": round(seconds, 6),
        "dry_run": dry_run,
    }
