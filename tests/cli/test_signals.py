# SPDX-License-Identifier: Apache-2.0
"""SIGINT, SIGTERM and SIGHUP at any step of a command: no traceback, nothing left, the right exit code."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cli.commands import SECONDS, Start
from rnic.cli.cm.waiting import Waiter
from rnic.rdmacm import EventChannel
from waiting import until

# Counts calls from the first line of rnic's own on, and sends itself the signal with the wanted one.
STEPPED = """
import os, sys
number, left, begun = int(sys.argv[1]), int(sys.argv[2]), False
def count(frame, event, arg):
    global left, begun
    left -= begun and event == "call"
    begun = begun or frame.f_code.co_filename.endswith("_rnic_command.py")
    if not left:
        sys.setprofile(None)
        os.kill(os.getpid(), number)
sys.argv = sys.argv[3:]
with open(sys.argv[0]) as file:
    program = compile(file.read(), sys.argv[0], "exec")
sys.setprofile(count)
exec(program, {"__name__": "__main__"})
"""


COMMANDS: list[tuple[str, ...]] = [
    ("--help",),
    ("devices",),
    ("demo", "--size", "1M"),
    ("perf", "write", "lat", "--local", "-n10"),
]
SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


def steps(number: signal.Signals, args: tuple[str, ...]) -> list[int]:
    """The first ones, and some between each power of two and the next.

    Without RNIC_SOAK every eighth: a command has others with each signal, and a signal with each command.
    """
    chosen = random.Random(number)
    found = [1, 2, 3] + [chosen.randrange(1 << n, 2 << n) for n in range(2, 19) for _ in range(2)]
    if os.environ.get("RNIC_SOAK"):
        return found
    return found[(3 * SIGNALS.index(number) + COMMANDS.index(args)) % 8 :: 8]


def interrupted(number: int, step: int, folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which("rnic", path=str(Path(sys.executable).parent))
    assert program is not None
    return subprocess.run(
        [sys.executable, "-c", STEPPED, str(int(number)), str(step), program, *args],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(folder)},
    )


@pytest.mark.one_in(2)
@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("args", COMMANDS)
def test_a_signal_at_any_step(number: signal.Signals, args: tuple[str, ...], tmp_path: Path) -> None:
    for step in steps(number, args):
        result = interrupted(number, step, tmp_path, *args)
        seen = f"step {step}: {result}"
        assert result.returncode in (0, -number, 128 + number), seen
        said = {"", "rnic: interrupted\n"} if number == signal.SIGINT else {""}
        assert result.stderr.replace("\r", "") in said, seen
        assert not list(tmp_path.iterdir()), seen
        if result.returncode == 0:
            break  # it had ended before that step


def test_the_exit_code_is_the_signals(rnic: Start) -> None:
    for number in SIGNALS:
        server = rnic("rping", "-s", "-p", 0)
        server.listening()
        server.process.send_signal(number)
        assert server.wait().status == 128 + number


def test_an_ignored_signal_stays_ignored(rnic: Start) -> None:
    """As nohup(1), and shells without job control, start programs in the background."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        server = rnic("rping", "-s", "-p", 0, anew=True)
    finally:
        signal.signal(signal.SIGINT, before)
    server.listening()
    server.process.send_signal(signal.SIGINT)
    server.process.send_signal(signal.SIGTERM)
    assert server.wait().status == 128 + signal.SIGTERM


def test_who_ignores_sigchld_hears_how_a_program_has_ended() -> None:
    """An ignored signal is inherited, and of this one the kernel would keep no exit code."""
    program = """
import os, signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
os.execv(sys.executable, [sys.executable, "-m", "rnic", "run", "sh", "-c", "exit 7"])
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=SECONDS, check=False).returncode == 7


@pytest.mark.parametrize("late", [0, 0.05], ids=["at-once", "interrupted"])
def test_a_signal_in_a_finaliser_comes_again(late: float) -> None:
    """Python cannot raise there: it says so, and goes on.  Nor can it where it says so."""
    program = f"""
import os, signal, time
from rnic.cli import signals
set_timer = signal.setitimer
def setitimer(*args):
    signal.setitimer = set_timer
    set_timer(*args)
    time.sleep({late})
signal.setitimer = setitimer
class Thing:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(1000): pass
signals.begin()
try:
    Thing()
    time.sleep(60)
except signals.Ended as ended:
    os._exit(ended.code)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=SECONDS)
    assert (done.returncode, done.stderr) == (143, "")


def test_a_started_process_does_not_see_ctrl_c(rnic: Start) -> None:
    """Both have it from the terminal; the second process ends with the first."""
    command = rnic("demo", "--size", "1M")
    children = Path(f"/proc/{command.process.pid}/task/{command.process.pid}/children")
    child = int(until(lambda: children.read_text().split(), "the second process")[0])
    os.kill(child, signal.SIGINT)
    result = command.wait()
    assert (result.status, result.err) == (0, "")


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_in_a_task_of_asyncio(number: signal.Signals) -> None:
    """It cancels what runs; no task is broken off in the middle, of which asyncio would complain."""
    program = f"""
import asyncio, os
from rnic.cli import signals
signals.begin()
async def task():
    os.kill(os.getpid(), {int(number)})
    print("whole", flush=True)
    await asyncio.Event().wait()
async def main():
    other = asyncio.create_task(task())
    try:
        await other
    finally:
        print("cancelled", other.cancelled(), flush=True)
signals.run(main())
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=SECONDS)
    assert (result.stdout, result.stderr) == ("whole\ncancelled True\n", "")
    assert result.returncode == 128 + number


class Completions:
    """A completion channel with an event, and with a signal that comes when that is taken."""

    def __init__(self) -> None:
        self.fd = os.eventfd(1)
        self.acknowledged = 0

    def fileno(self) -> int:
        return self.fd

    def get_cq_event(self, _: float) -> Completions:
        signal.raise_signal(signal.SIGINT)
        return self

    def ack_events(self) -> None:
        self.acknowledged += 1


def test_an_event_that_comes_with_a_signal_is_acknowledged() -> None:
    """Else the queue could not be destroyed, and the command said that instead of "interrupted"."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    completions: Any = Completions()
    try:
        with EventChannel() as channel, pytest.raises(KeyboardInterrupt):
            Waiter(channel, lambda _: None, SECONDS)._sleep(completions, "waiting")
    finally:
        signal.signal(signal.SIGINT, before)
        os.close(completions.fd)
    assert completions.acknowledged == 1
