# SPDX-License-Identifier: Apache-2.0
"""The commands of `rnic vm`."""

from __future__ import annotations

import functools
import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console

from rnic.cli import screen
from rnic.cli.command import group
from rnic.cli.params import Failure, number
from rnic.cli.vm import pipes, terminal
from rnic.vm import HungError, Machine, MachineError, NoMachineError, namespace, running
from rnic.vm.console import Follower, excerpt
from rnic.vm.host import TOOLS, CommandError, missing_tools
from rnic.vm.machine import TRANSPORTS
from rnic.vm.paths import Folder

DEFAULT = "box"
LOOK = 0.1  # seconds between looks at a console that is followed
T = TypeVar("T")


class Own(Failure):
    """An error of `rnic vm` itself, not of the command in the machine."""

    exit_code = pipes.OWN_ERROR


def names(_ctx: click.Context, _param: click.Parameter, begun: str) -> list[str]:
    """For the Tab key."""
    return [name for name in running() if name.startswith(begun)]


on = click.option(
    "-n",
    "--name",
    metavar="NAME",
    default="",
    shell_complete=names,
    help="The machine.  [default: box, or the only one]",
)


def named(command: Callable[..., T]) -> Callable[..., T]:
    """Give a command the argument NAME, and the option -n NAME, which means the same."""

    @click.argument("name", metavar="[NAME]", default="", shell_complete=names)
    @click.option(
        "-n",
        "--name",
        "option",
        metavar="NAME",
        default="",
        shell_complete=names,
        help="The machine; NAME alone means the same.",
    )
    @functools.wraps(command)
    def either(*, name: str, option: str, **others: Any) -> T:
        if name and option and name != option:
            raise click.UsageError(f"two machines are named: {name} and {option}")
        return command(name=name or option, **others)

    return either


@group()
def vm() -> None:
    """A Linux machine in a box: a virtual machine with the kernel's own RDMA devices, on a tap device.

    \b
    rnic vm up                      start one, with soft RoCE (rxe0)
    rnic vm run 'ibv_devinfo'       a command in it
    rnic vm sh                      a shell in it
    rnic vm exec -- rnic devices    a command on this computer that reaches it
    rnic vm log -f                  what its kernel prints
    rnic vm down
    """


@contextmanager
def told(kind: type[Failure] = Failure) -> Iterator[None]:
    """Errors of machines become lines."""
    try:
        yield
    except (MachineError, CommandError, ValueError) as error:
        raise kind(shortened(str(error))) from None


def shortened(text: str) -> str:
    """A long text is a console's: from where the trouble begins."""
    first, _, rest = text.partition("\n")
    return f"{first}\n{excerpt(rest)}" if rest else first


def chosen(given: str) -> str:
    """The name of the machine that is meant: without one "box", or the only one that runs."""
    if given:
        return given
    found = running()
    if not found:
        raise Own("no machine runs: rnic vm up starts one")
    if DEFAULT in found:
        return DEFAULT
    if len(found) > 1:
        raise Own(f"several machines run, name one with -n NAME: {', '.join(found)}")
    return found[0]


@contextmanager
def attached(given: str) -> Iterator[Machine]:
    """A machine that is up."""
    with told(Own):
        machine = Machine.attach(chosen(given))
    with machine:
        if machine.state == "dead":
            raise Own(
                f"the machine {machine.name} died: {machine.why}\n{excerpt(machine.console())}\n"
                f"rnic vm up {machine.name} starts it again"
            )
        with told(Own):
            machine.wait_ready()
            yield machine


# ---------------------------------------------------------------------- life


@vm.command()
@named
@click.option(
    "--transport",
    type=click.Choice(list(TRANSPORTS)),
    default="rxe",
    show_default=True,
    help="Its RDMA devices: rxe0 (soft RoCE), siw0 (soft iWARP, built once), or both.",
)
@click.option(
    "--mtu", type=number(1280, 65521), default="1500", show_default=True, help="Of the network between."
)
@click.option("--cpus", type=number(1, 64), default="1", show_default=True, help="Processors.")
@click.option("--memory", type=number(256), default="512", show_default=True, help="MiB.")
@click.option(
    "--accelerator",
    type=click.Choice(["kvm", "tcg"]),
    help="Hardware virtualisation, or every instruction emulated.  [default: kvm where it works]",
)
@click.option(
    "--package",
    "packages",
    metavar="PACKAGE",
    multiple=True,
    help="A Debian package that is not on this computer, for the machine alone. Repeatable.",
)
@click.option(
    "--tools",
    is_flag=True,
    help="RDMA programs, gcc, make and the kernel's headers, for the machine alone; fetched once.",
)
@click.option(
    "--network",
    metavar="NETWORK",
    default="",
    help="Machines with the same NETWORK reach each other.  [default: none but this computer]",
)
def up(
    name: str,
    transport: str,
    mtu: int,
    cpus: int,
    memory: int,
    accelerator: str | None,
    packages: tuple[str, ...],
    tools: bool,
    network: str,
) -> None:
    """Start a machine (NAME: box, unless another is given), which runs until `rnic vm down`.

    Its kernel is Debian's, fetched once by apt-get, without root. Its programs are this computer's: the root
    file system is mounted read-only, at the same paths.
    """
    name = name or DEFAULT
    with told():
        _end_dead(name)
        with Machine(
            name,
            transport,
            mtu,
            cpus,
            memory,
            accelerator or "",
            packages=packages,
            tools=tools,
            network=network,
        ) as machine:
            facts = machine.facts
            machine.detach()
    click.echo(
        f"{name}: Linux {facts['kernel']}, {' and '.join(facts['devices'])} at {facts['ip']}; this computer "
        f"is {facts['host_ip']} on {facts['netdev']}; booted in {facts['boot_seconds']:.1f} s "
        f"({facts['accelerator'].upper()})"
    )
    if not tools and (lacks := [package for package in missing_tools() if package not in packages]):
        programs = ", ".join(program for program, package in TOOLS.items() if package in lacks)
        screen.say(f"{programs}: not here, and so not in {name}; rnic vm up --tools would have them")


def _end_dead(name: str) -> None:
    """One that died gives its name to the next."""
    if name in running():
        with suppress(NoMachineError), Machine.attach(name) as old:  # it may be ending
            if old.state != "dead":
                raise Failure(f"{name} runs already: rnic vm down {name} ends it")
            old.end()


@vm.command()
@named
@click.option("--all", "everything", is_flag=True, help="All machines of this user.")
def down(name: str, everything: bool) -> None:
    """End a machine: nothing of it stays."""
    for one in running() if everything else [chosen(name)]:
        with told():
            try:
                with Machine.attach(one) as machine:
                    machine.end()
            except HungError as hung:
                os.kill(hung.pid, signal.SIGKILL)  # all that it holds goes with it


@vm.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with all that is known of each.")
def list_machines(as_json: bool) -> None:
    """List the machines of this user."""
    found = [facts for one in running() if (facts := _facts(one))]
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    rows = [
        (
            str(one["name"]),
            str(one["state"]),
            " ".join(one.get("devices", ())),
            str(one.get("ip", "")),
            str(one.get("netdev", "")),
            str(one.get("network", "")),
            str(one.get("accelerator", "")),
            str(one["why"]),
        )
        for one in found
    ]
    if rows:
        headings = ("name", "state", "devices", "address", "interface", "network", "accelerator", "")
        screen.table(Console(), headings, rows)


def _facts(one: str) -> dict[str, Any]:
    """All that is known of it; nothing, if it has just ended."""
    try:
        with Machine.attach(one) as machine:
            return machine.facts | {"state": machine.state, "why": machine.why}
    except HungError as error:
        return {"name": one, "state": "hung", "why": str(error)}
    except NoMachineError:
        return {}


@vm.command()
@named
@click.option("-f", "--follow", is_flag=True, help="Go on until the machine has ended.")
def log(name: str, follow: bool) -> None:
    """Print what the machine's kernel and QEMU have printed."""
    with told(Own):
        folder = Folder.of(chosen(name))
    with Follower(folder.console) as follower:
        print_more(follower, folder.console if follow else None)


def print_more(follower: Follower, console: Path | None) -> None:
    """Print what a reader finds, until the console is gone; without one, once."""
    write = pipes.writer(1)
    while True:
        there = console and console.exists()
        write(follower.more())  # of one that is gone, the last
        if not there:
            return
        time.sleep(LOOK)


# ---------------------------------------------------------------------- use


@vm.command()
@on
@click.argument("words", metavar="COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
def run(name: str, words: tuple[str, ...]) -> int:
    """Run a shell command in the machine, in the folder where you are, if that is on its disk, else in /run.

    It gets this command's input, unless that is a terminal. The exit code is the command's; 128 and the
    signal's number, if a signal has ended it; 125 for errors of `rnic vm run` itself.
    """
    with attached(name) as machine:
        return pipes.run(machine, " ".join(words), str(Path.cwd()))


run.allow_interspersed_args = False  # what follows the command is the command's


@vm.command()
@named
def sh(name: str) -> int:
    """Start a shell in the machine, in the folder where you are, if that is on its disk, else in /run.

    Ctrl-] leaves it, whatever happens there.
    """
    with attached(name) as machine:
        if sys.stdin.isatty():
            return terminal.shell(machine, str(Path.cwd()))
        return pipes.run(machine, "exec sh", str(Path.cwd()))


@vm.command()
@on
@click.option("--to", "folder", default="/run", show_default=True, help="The folder there.")
@click.argument(
    "files", metavar="FILE...", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path)
)
def put(name: str, folder: str, files: tuple[Path, ...]) -> None:
    """Copy files and folders into the machine, where /run and /dev/shm can be written to, in memory."""
    with attached(name) as machine:
        for file in files:
            click.echo(machine.put(file, folder))


@vm.command()
@on
@click.option(
    "--to",
    "folder",
    default=".",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The folder here.  [default: where you are]",
)
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
def get(name: str, folder: Path, files: tuple[str, ...]) -> None:
    """Copy files and folders out of the machine."""
    with attached(name) as machine:
        for file in files:
            click.echo(machine.get(file, folder))


@vm.command("exec")
@on
@click.argument("words", metavar="COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
def execute(name: str, words: tuple[str, ...]) -> None:
    """Run a command on this computer where it reaches the machine: in its tap device's network namespace.

    As root that is usually the computer's own. An ordinary user's machine has one of its own, where the
    command is root.

    \b
    rnic vm exec -- rnic rping -s       a server, for rping -c in the machine
    rnic vm exec -- tcpdump -i rnicvm0
    """
    with attached(name) as machine:
        pid = machine.keeper
    namespace.enter(pid)
    try:
        os.execvp(words[0], words)
    except (OSError, ValueError) as error:  # ValueError: of a program without a name
        raise Failure(f"{shlex.quote(words[0])}: {getattr(error, 'strerror', None) or error}") from None


execute.allow_interspersed_args = False
