# SPDX-License-Identifier: Apache-2.0
"""`rnic config`: what a C compiler needs where rdma-core's development files are not installed."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from rnic.cli.command import command
from rnic.cli.params import Failure
from rnic.programs.surroundings import IBVERBS, libraries

_RDMACM = "librdmacm.so.1"


@command()
@click.option("--cflags", is_flag=True, help="Print where the headers are.")
@click.option("--libs", is_flag=True, help="Print where libibverbs is, for the linker and for the program.")
@click.option("--rdmacm", is_flag=True, help="With --libs: link with the system's librdmacm, too.")
def config(cflags: bool, libs: bool, rdmacm: bool) -> None:
    """Print the words for a C compiler: the headers and libibverbs of this installation of rnic.

    Nothing of rdma-core has to be installed. The program finds rnic's library where it is now (its rpath),
    with or without `rnic run`.

    The headers of librdmacm are there, too (rdma/rdma_cma.h). The library is the system's: install
    librdmacm1, link with --rdmacm, and start the program by `rnic run`.

    \b
    rnic config --cflags --libs
    cc $(rnic config --cflags --libs) -o server server.c && ./server
    cc $(rnic config --cflags --libs --rdmacm) -o server server.c && rnic run ./server
    """
    if rdmacm and not libs:
        raise click.UsageError("--rdmacm is for --libs")
    if not (cflags or libs):
        raise click.UsageError("name --cflags, --libs or both")
    lib = libraries()
    if not (lib / IBVERBS).exists():
        raise Failure(f"{lib / IBVERBS} is missing: this installation of rnic has no files for C programs")
    words = [f"-I{lib.parent / 'include'}"] if cflags else []
    if libs:
        words += _link(lib)
    if rdmacm:
        words.append(f"-l:{_RDMACM}")
    click.echo(shlex.join(words))


def _link(lib: Path) -> list[str]:
    """Words that may stand ahead of the program's own files, too."""
    return [f"-L{lib}", f"-Wl,-rpath,{lib}", "-Wl,--no-as-needed", f"-l:{IBVERBS}"]
