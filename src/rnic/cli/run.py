# SPDX-License-Identifier: Apache-2.0
"""`rnic run`: start a program that is linked with libibverbs or librdmacm.

The program is a child of this process, in its process group: it has the terminal, and Ctrl-C and Ctrl-Z reach
both. This process serves RDMA-CM meanwhile, and passes on the signals that are sent to it alone.
"""

from __future__ import annotations

import gc
import os
import shlex
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EACCES, ENOENT, ENOEXEC
from pathlib import Path
from typing import Any

import click

from rnic.cli import environment
from rnic.cli.command import Command, command
from rnic.cli.limits import raise_descriptors
from rnic.cli.params import Failure
from rnic.programs import elf, wishes
from rnic.programs.surroundings import HEAP, IBVERBS, PRELOAD, libraries, serve, variables
from rnic.programs.tally import Counted, Tally

_PASSED_ON = {
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGWINCH,
}
_WAITED_FOR = _PASSED_ON | {signal.SIGCHLD}
_OF_TERMINAL = 0x80  # the si_code SI_KERNEL: the terminal sends to all processes in front of it
_SELF = Path("/proc/self/exe")  # the Python that rnic's libraries were built for
_SPOILT = (signal.SIGPIPE, signal.SIGXFSZ)  # which Python ignores, and a program does not expect to be
_OWN_ERROR = 125  # of `rnic run` itself, as env(1) and timeout(1)


class _CannotRun(Failure):
    """What `rnic run` needs cannot be had."""

    exit_code = _OWN_ERROR


class _Run(Command):
    """A command whose own errors have an exit code that few programs have."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        with _own_errors():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _own_errors():
            return super().invoke(ctx)


@contextmanager
def _own_errors() -> Iterator[None]:
    try:
        yield
    except (_NotStarted, _DoesNotFit, BrokenPipeError):
        raise
    except click.ClickException as error:
        error.exit_code = _OWN_ERROR  # type: ignore[misc]
        raise
    except OSError as error:
        said = error.strerror or str(error)
        raise _CannotRun(f"{error.filename}: {said}" if error.filename else said) from None


@command(kind=_Run)
@click.option(
    "--local",
    type=click.Choice(["on", "off"]),
    help="RoCE: reach peers on this host through shared memory (on) or by UDP (off); iWARP devices always "
    "use TCP.  [default: $RNIC_LOCAL, on]",
)
@click.option("--device", metavar="NAME[,NAME]", help="Show these devices alone, in this order.")
@click.option(
    "--name",
    metavar="NAME=NETDEV",
    multiple=True,
    help="Name the device on a network interface, as mlx5_0=eth0; one can have several. Repeatable.",
)
@click.option(
    "--rate", metavar="RATE", help="Let the port report this rate, as 100g. No device gets faster by it."
)
@click.option(
    "--limits",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Make attributes of the device smaller: a TOML file with lines such as max_qp = 4.",
)
@click.option(
    "--fault",
    metavar="FAULTS",
    help="Lose, delay or change packets that the program's devices send: loss=0.01,seed=7. Also duplicate, "
    "reorder, delay, flip, mark, reorder_gap, delay_s. Of iWARP's connections: reset, stall, reset_after, "
    "stall_after, chunk, flip_header, delay, flip.",
)
@click.option(
    "--fail",
    metavar="CALL=ERROR",
    multiple=True,
    help="Let a call fail: create_cq@2=ENOMEM is the second one, reg_mr:1%=EAGAIN,seed=3 some, "
    "alloc_pd=ENOMEM all. Repeatable.",
)
@click.option(
    "--event",
    metavar="EVENT[@TIME]",
    multiple=True,
    help="Raise an event a time after the program opens its first device: port_down@5s, port_active@7s, "
    "device_fatal@500ms, device_removal; of one device: mlx5_0:port_down. Repeatable.",
)
@click.option(
    "--heap",
    type=click.Choice(["on", "off"]),
    envvar=environment.HEAP.name,
    default="on",
    help="Put what the program allocates in whole pages where peers on this host can map it.  [default: "
    "$RNIC_HEAP, on]",
)
@click.option(
    "--env",
    "env_only",
    is_flag=True,
    help="Print the variables that programs with verbs alone need, and start nothing.",
)
@click.option(
    "--explain",
    is_flag=True,
    help="Say on stderr what goes wrong in verbs, and what to do about it: failed completions, what was "
    "refused or dropped, events, waits that cannot end; each kind once for a queue pair. Also by "
    "RNIC_VERBS_DEBUG=1.",
)
@click.option("--check", is_flag=True, help="Say whether the program can run so, and do not start it.")
@click.argument("words", metavar="PROGRAM [ARGS]...", nargs=-1, type=click.UNPROCESSED)
def run(heap: str, env_only: bool, explain: bool, check: bool, words: tuple[str, ...], **options: Any) -> int:
    """Start a program that is linked with libibverbs or librdmacm, on rnic's devices.

    Nothing has to be installed but the program and its own libraries. The exit code is the program's; 128 and
    the signal's number, if a signal has ended it; 125 for errors of `rnic run` itself, 126 if the program
    cannot be started, 127 if it is not there.

    \b
    rnic run ibv_devices
    rnic run rping -s -v            its client: rnic run rping -c -a HOST
    rnic run --local off ib_write_bw -d roce_lo
    rnic run bash                   a shell: every program started in it uses rnic
    rnic run --fault loss=0.01 --fail create_cq@2=ENOMEM ./server
    rnic run --name mlx5_0=eth0 --rate 100g ibv_devinfo
    rnic run --explain ./server     what goes wrong in it, in words
    rnic run --check ./server       tell whether ./server can run on rnic
    eval "$(rnic run --env)"        for programs that do not use RDMA-CM
    """
    _need_libraries()
    try:
        own = wishes.accept(options)
    except wishes.WishError as error:
        raise Failure(str(error)) from None
    if explain:
        own["RNIC_VERBS_DEBUG"] = "1"
    if env_only:
        for name, value in (variables() | wishes.shared() | own).items():
            click.echo(f"export {name}={shlex.quote(value)}")
        return 0
    if not words or not words[0]:
        raise click.UsageError("name a program")
    if check:
        return _check(words[0])
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED_FOR)  # in the threads of the server, too
    try:
        rules = [Counted(rule) for rule in wishes.failures(own)]
        with serve(rules, wishes.removals(own)) as (folder, _):
            signal.pthread_sigmask(signal.SIG_SETMASK, before)  # what came meanwhile ends this command
            signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED_FOR)
            program = _looked_at(words[0])
            sanitized = program is not None and program.sanitized
            shown = variables(folder, heap=heap == "on", sanitized=sanitized)
            tally = Tally(folder, own, rules)
            child = _start(words, os.environ | shown | own, before)
            raise_descriptors()  # here alone: for each device file of the programs, one and more
            gc.freeze()  # the modules stay: a search for cycles in them took a fifth of the server's time
            status, told = _wait(child)
            with suppress(OSError):  # of a stderr that takes nothing the exit code tells
                _report(words[0], status, told, list(tally.lines()))
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


run.allow_interspersed_args = False  # what follows the program is the program's


def _need_libraries() -> None:
    missing = [name for name in (IBVERBS, PRELOAD, HEAP) if not (libraries() / name).exists()]
    if missing:
        raise Failure(
            f"{libraries() / missing[0]} is missing: this installation of rnic cannot start programs"
        )


class _NotStarted(Failure):
    """A program that cannot be started."""

    exit_code = 126  # as sh(1)

    def __init__(self, program: str, error: OSError) -> None:
        super().__init__(f"{program}: {error.strerror}")


class _NotFound(_NotStarted):
    """A program that is not there."""

    exit_code = 127  # as sh(1)


class _DoesNotFit(Failure):
    """A program that its loader would end with an error for each function that rnic's libraries lack."""

    exit_code = 126


def _looked_at(program: str) -> elf.Elf | None:
    """Read the file that will be started; None if it cannot be read: whoever starts it tells."""
    where = shutil.which(program)
    with suppress(OSError):
        one, ours = (elf.read(elf.program_of(Path(file))) for file in (where or program, _SELF))
        if one and ours and (text := elf.other_libc(one, ours)):
            raise _DoesNotFit(f"{program}: {text}")
        return one
    return None


def _start(words: tuple[str, ...], environment: dict[str, str], mask: set[int]) -> int:
    try:
        return _spawn(words, environment, mask)
    except FileNotFoundError as error:
        raise _NotFound(words[0], error) from None
    except OSError as error:
        raise _NotStarted(words[0], error) from None


def _spawn(words: tuple[str, ...], environment: dict[str, str], mask: set[int]) -> int:
    try:
        return os.posix_spawnp(words[0], words, environment, setsigmask=mask, setsigdef=_SPOILT)
    except OSError as error:
        where = shutil.which(words[0])
        if error.errno != ENOEXEC or where is None or not elf.is_text(Path(where)):
            raise
        shell = (str(elf.SHELL), where, *words[1:])
        return os.posix_spawn(shell[0], shell, environment, setsigmask=mask, setsigdef=_SPOILT)


def _wait(child: int) -> tuple[int, set[int]]:
    """Pass signals on until the program ends; its status, as of wait(2), and the signals that it was sent."""
    told: set[int] = {
        signal.SIGINT,
        signal.SIGPIPE,
    }  # of a terminal, or of a pipe whose reader has read enough
    while True:
        got = signal.sigwaitinfo(_WAITED_FOR)
        if got.si_signo == signal.SIGCHLD:
            status = _reap(child)
            if status is not None:
                return status, told
        elif got.si_code != _OF_TERMINAL:
            told.add(got.si_signo)
            os.kill(child, got.si_signo)


def _reap(child: int) -> int | None:
    """Take the statuses of all who have ended; that of the program, or None if it runs.

    Process 1 of a container gets the processes whose parents have ended. This process starts no other.
    """
    while True:
        done, status = os.waitpid(-1, os.WNOHANG)
        if done == child:
            return status
        if not done:
            return None


def _report(program: str, status: int, told: set[int], came_true: list[str]) -> None:
    """Say how the program has ended: by a signal that nobody sent, or in any way if a test asks for more."""
    by_signal = os.WIFSIGNALED(status)
    if by_signal and (came_true or os.WTERMSIG(status) not in told):
        number = os.WTERMSIG(status)
        core = "; it has left a core file" if os.WCOREDUMP(status) else ""
        name = f"signal {number}"
        with suppress(ValueError):  # of real-time signals, which have no names
            name += f" ({signal.Signals(number).name})"
        click.echo(f"rnic: {program} was ended by {name}{core}", err=True)
    elif came_true and not by_signal:
        click.echo(f"rnic: {program} ended with exit code {os.WEXITSTATUS(status)}", err=True)
    for line in came_true:
        click.echo(f"rnic: {line}", err=True)


def _check(program: str) -> int:
    """Print what a program is linked with; 0 if it can run on rnic's devices."""
    where = shutil.which(program)
    if where is None and os.sep in program and Path(program).exists():
        raise _NotStarted(program, PermissionError(EACCES, "it is there, but is no executable file"))
    if where is None:
        raise _NotFound(program, FileNotFoundError(ENOENT, os.strerror(ENOENT)))
    found = elf.check(Path(where), _SELF, os.environ | variables(), libraries() / IBVERBS)
    click.echo(f"{where}{'' if found.path == Path(where) else f': a script for {found.path}'}")
    for name, file in found.libraries.items():
        click.echo(f"  {name}: {file or 'is not installed'}")
    for file in found.others:
        click.echo(f"  there is also {file}: rnic's library is loaded ahead of it")
    for text in found.obstacles:
        click.echo(f"  cannot run on rnic's devices: {text}")
    if not found.obstacles and not found.libraries:
        click.echo("  is not linked with libibverbs; what it loads later, as Python does, is rnic's")
    lost = [name for name, file in found.libraries.items() if not file]
    if not found.obstacles and found.libraries and not lost:
        click.echo("  can run on rnic's devices")
    return 1 if found.obstacles or lost else 0
