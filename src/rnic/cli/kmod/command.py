# SPDX-License-Identifier: Apache-2.0
"""The commands of `rnic kmod`."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console

from rnic.cli import screen
from rnic.cli.command import group
from rnic.cli.kmod import report
from rnic.cli.params import Failure
from rnic.cli.vm import pipes
from rnic.cli.vm.command import names, on, print_more, shortened
from rnic.kmod import KmodError, Module, Report, lessons, place
from rnic.kmod import log as logs
from rnic.kmod.grade import DEVICES, SECONDS
from rnic.kmod.scratch import scratch
from rnic.vm import MachineError
from rnic.vm.console import Follower
from rnic.vm.host import CommandError
from rnic.vm.paths import Folder as MachineFolder

folder = click.argument("folder", metavar="[DIR]", default=".", type=click.Path(path_type=Path))
which = click.option("-m", "--module", default="", help="Which module, if DIR has several.")
here = click.option("--here", is_flag=True, help="On this computer, as root, instead of in a machine.")


@group()
def kmod() -> None:
    """Kernel modules that use RDMA: make one, build it, load it in a machine, test it.

    \b
    rnic kmod list                          the modules of the course
    rnic kmod new mine --from client        one of them, with parts for you to write
    rnic kmod build mine
    rnic kmod load mine                     in the machine of `rnic vm`, which is started
    rnic kmod log -f                        what the kernel says
    rnic kmod unload mine
    rnic kmod grade mine                    says which steps are right
    """


@contextmanager
def told() -> Iterator[None]:
    """Errors become lines."""
    try:
        yield
    except KmodError as error:
        raise Failure(str(error)) from None
    except (MachineError, CommandError, ValueError) as error:
        raise Failure(shortened(str(error))) from None


def say(text: str) -> None:
    """A line for whoever waits."""
    click.echo(f"rnic kmod: {text}", err=True)


def _check_place(is_here: bool, name: str) -> None:
    if is_here and name:
        raise click.UsageError("--here and --name do not go together")


# ---------------------------------------------------------------------- making


@kmod.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_modules(as_json: bool) -> None:
    """List the modules of the course, in its order.

    The parts are those that `rnic kmod new` leaves for you to write. If there is none, it copies the module.
    """
    with told():
        found = lessons()
    if as_json:
        click.echo(json.dumps([lesson._asdict() for lesson in found], indent=2))
        return
    rows = [(lesson.name, str(lesson.parts or "-"), lesson.about) for lesson in found]
    screen.table(Console(), ("module", "parts", "what it shows"), rows)


@kmod.command()
@click.argument("name")
@click.option(
    "--from",
    "made_from",
    metavar="MODULE",
    default="hello",
    show_default=True,
    help="One of `rnic kmod list`.",
)
def new(name: str, made_from: str) -> None:
    """Write a module's skeleton into a new folder, NAME.

    It is a module of the course. The parts that `rnic kmod list` counts are left out, for you to write: look
    for TODO. It builds and loads as it is.

    \b
    rnic kmod new mine --from client
    """
    path = Path(name)
    with told():
        Module.new(path.name, made_from, path)
    for file in sorted(path.iterdir()):
        click.echo(file)


@kmod.command()
@folder
@here
def build(folder: Path, here: bool) -> None:
    """Build the modules of DIR, for the kernel of `rnic vm`, with all warnings.

    The compiler is this computer's. The kernel's headers are fetched once.
    """
    with told():
        found = Module(folder)
        if warnings := found.build(here=here):
            click.echo(warnings, err=True)
    for file in found.files:
        click.echo(file)


# ---------------------------------------------------------------------- loading


@kmod.command()
@folder
@click.argument("parameters", metavar="[PARAMETER=VALUE]...", nargs=-1)
@which
@on
@here
def load(folder: Path, parameters: tuple[str, ...], module: str, name: str, here: bool) -> None:
    """Load the module of DIR, with its parameters, and print what the kernel says.

    It is built if its sources have changed. Unless there is --here, it is loaded in a machine. If none runs,
    this command starts one as `rnic vm up --transport both` does. One that has died is started again.

    \b
    rnic kmod load mine whom=you
    """
    if "=" in str(folder):  # the folder was left out
        folder, parameters = Path(), (str(folder), *parameters)
    _check_place(here, name)
    with told():
        _print(Module(folder, module).load(*parameters, machine=name, here=here, say=say))


@kmod.command()
@folder
@which
@on
@here
def unload(folder: Path, module: str, name: str, here: bool) -> None:
    """Unload the module of DIR, and print what the kernel says."""
    _check_place(here, name)
    with told():
        _print(Module(folder, module).unload(machine=name, here=here, say=say))


def _print(text: str) -> None:
    if text:
        click.echo(text)


@kmod.command()
@click.option("-f", "--follow", is_flag=True, help="Go on until Ctrl-C.")
@on
@here
def log(follow: bool, name: str, here: bool) -> None:
    """Print what the kernel has said since a module was loaded or unloaded last."""
    _check_place(here, name)
    if here:
        with told():
            _print(logs.since(place.Here().log()))
        if follow:
            os.execvp("dmesg", ["dmesg", "--follow-new"])
        return
    with told():
        console = MachineFolder.of(place.choose(name)).console
        if not console.exists():
            raise KmodError(f"no machine {place.choose(name)} runs: rnic kmod load starts it")
    with Follower(console) as follower:
        printed = follower.more().decode(errors="replace").replace("\r", "")
        if said := logs.since(printed):
            pipes.writer(1)(f"{said}\n".encode())
        if follow:
            print_more(follower, console)


# ---------------------------------------------------------------------- testing


def _number(_ctx: click.Context, _param: click.Parameter, value: float) -> float:
    """Nothing is longer or shorter than nan."""
    if math.isnan(value):
        raise click.BadParameter("nan is not a number of seconds")
    return value


seconds = click.option(
    "--timeout",
    "seconds",
    type=click.FloatRange(min=0, min_open=True, max=86400),
    callback=_number,
    default=SECONDS,
    show_default=True,
    help="Seconds that each wait may take.",
)
transport = click.option(
    "--transport",
    type=click.Choice([*DEVICES, "both"]),
    default="both",
    show_default=True,
    help="The kernel's device that the module connects by.",
)
machine = click.option(
    "-n",
    "--name",
    metavar="NAME",
    default="",
    shell_complete=names,
    help="A machine.  [default: a fresh one]",
)


@kmod.command(short_help="Test a module, and say which steps are right.")
@folder
@which
@machine
@transport
@seconds
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def grade(folder: Path, module: str, name: str, transport: str, seconds: float, as_json: bool) -> int:
    """Build, load and use the module of DIR, and say which steps are right.

    It is built anew, in a folder of its own, and loaded in a machine of its own. What it was made from says
    what it must do: a client connects with a server on this computer, sends it texts, and loses it. The exit
    code is 0 if all steps are right, else 1.

    \b
    rnic kmod grade mine
    rnic kmod grade mine -n box --transport rxe     quicker: in a machine that runs
    """
    with told():
        found = Module(folder, module)
        reports = _reports(found, name, transport, seconds)
    if as_json:
        made_from = found.made_from or found.name
        click.echo(json.dumps(report.as_dict(found.name, made_from, reports), indent=2))
    else:
        report.show(reports, Console(highlight=False))
    return 0 if all(one.passed for one in reports) else 1


@kmod.command()
@click.argument("what", metavar="[MODULE|DIR]", default=".")
@which
@machine
@transport
@seconds
def test(what: str, module: str, name: str, transport: str, seconds: float) -> int:
    """Test a module of the course, or that of DIR, and print a line for each transport.

    \b
    rnic kmod test client
    rnic kmod test mine
    """
    with told(), scratch() as top:
        found = _folder_or_lesson(what, module, top)
        reports = _reports(found, name, transport, seconds)
    console = Console(highlight=False)
    for one in reports:
        heading = report.TRANSPORTS[one.transport] if one.transport else found.name
        passed = ", ".join(step.name.lower() for step in one.steps if one.outcomes[step].result == "passed")
        click.echo(f"{heading}: {'passed' if one.passed else 'FAILED'} ({passed or 'no step passed'})")
    report.show_failures(reports, console)
    return 0 if all(one.passed for one in reports) else 1


def _folder_or_lesson(what: str, module: str, top: Path) -> Module:
    """That of a folder, or one of the course, which is copied to a place below another folder."""
    if Path(what).exists():
        return Module(what, module)
    if what not in [lesson.name for lesson in lessons()]:
        raise KmodError(f"{what} is no module of the course, which rnic kmod list shows, and no folder")
    return Module(Module.of_course(what, top / "course").path, module)


def _reports(module: Module, name: str, transport: str, seconds: float) -> list[Report]:
    transports = DEVICES if transport == "both" else (transport,)
    return module.grade(machine=name, transports=transports, seconds=seconds, say=say)
