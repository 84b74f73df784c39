# SPDX-License-Identifier: Apache-2.0
"""`rnic run`: start a program that is linked with libibverbs or librdmacm."""

from __future__ import annotations

import os
import signal

import click

from rnic.cli.command import command
from rnic.cli.params import Failure
from rnic.programs.surroundings import serve, variables

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
_OF_TERMINAL = 0x80  # si_code of a signal that the kernel sends: SI_KERNEL
_SPOILT = (signal.SIGPIPE, signal.SIGXFSZ)  # Python ignores them; a program expects them


@command()
@click.argument("words", metavar="PROGRAM [ARGS]...", nargs=-1, type=click.UNPROCESSED)
def run(words: tuple[str, ...]) -> int:
    """Start a program that is linked with libibverbs or librdmacm, on rnic's devices.

    \b
    rnic run -- ibv_devices
    rnic run -- rping -s -v
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON | {signal.SIGCHLD})
    with serve() as folder:
        child = _start(words, os.environ | variables(folder), before)
        return _wait(child)


def _start(words: tuple[str, ...], environment: dict[str, str], mask: set[signal.Signals]) -> int:
    try:
        return os.posix_spawnp(
            words[0], words, environment, setsigmask=mask, setsigdef=_SPOILT
        )
    except OSError as error:
        raise Failure(f"{words[0]}: {error.strerror}") from None


def _wait(child: int) -> int:
    """Pass signals on until the program ends; its exit code, 128 + number if a signal has ended it.

    The terminal's go to all processes in front of it, so the program has had them.
    """
    while True:
        got = signal.sigwaitinfo(_PASSED_ON | {signal.SIGCHLD})
        if got.si_signo != signal.SIGCHLD:
            if got.si_code != _OF_TERMINAL:
                os.kill(child, got.si_signo)
            continue
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
