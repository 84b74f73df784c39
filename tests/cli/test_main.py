# SPDX-License-Identifier: Apache-2.0
"""The command line as a whole: help, versions, and how errors look."""

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata

import click
import pytest

from rnic.cli.command import Later
from rnic.cli.main import cli, describe, run
from rnic.errors import VerbsError

HEAVY = {
    "rich",
    "rnic.cli.demo",
    "rnic.cli.lab3",
    "rnic.cli.perf",
    "subprocess",
    "importlib.metadata",
}


def commands(
    group: click.Group, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """All of them, and the groups."""
    yield path, group
    for name, one in group.commands.items():
        loaded = one.load() if isinstance(one, Later) else one
        if isinstance(loaded, click.Group):
            yield from commands(loaded, (*path, name))
        else:
            yield (*path, name), loaded


ALL = dict(commands(cli))
ON_SCREEN = [pytest.param(path, id=" ".join(path) or "rnic") for path in ALL]


def help_of(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> str:
    assert run([*path, "--help"]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("path", ON_SCREEN)
def test_every_command_has_help(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    out = help_of(path, capsys)
    assert out.startswith("Usage: rnic")
    assert "--help" in out


def squeezed(text: str) -> str:
    """Without what lines are broken with."""
    return "".join(text.split())


@pytest.mark.parametrize("path", ON_SCREEN)
def test_help_fits_the_terminal_and_is_whole(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = {}
    for columns in (44, 80, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        seen[columns] = help_of(path, capsys)
        long = [line for line in seen[columns].splitlines() if len(line) > min(columns, 80)]
        assert not long, columns
    assert seen[200] == seen[80]
    text = squeezed(seen[44])
    assert text == squeezed(seen[80])
    command = ALL[path]
    assert squeezed((command.help or "").replace("\b", "")) in text
    for name, one in command.commands.items() if isinstance(command, click.Group) else ():
        assert one.hidden or squeezed(f"{name} {one.get_short_help_str(1000)}") in text


def test_a_line_of_the_table_is_the_command_it_names() -> None:
    for name, one in cli.commands.items():
        assert isinstance(one, Later)
        assert one.load().name == name


def test_help_lists_each_command_once_under_a_title(capsys: pytest.CaptureFixture[str]) -> None:
    out = help_of((), capsys)
    for name, command in cli.commands.items():
        assert len(re.findall(rf"^  {name}  ", out, re.MULTILINE)) == (not command.hidden), name
    assert "Commands:" not in out


def test_help_imports_no_command() -> None:
    program = (
        "import sys; from rnic.cli.main import run; run(['--help']); print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert "--version" in done.stdout
    assert not HEAVY & {*done.stderr.split()}


def test_every_command_that_does_something_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    for name, command in cli.commands.items():
        if command.hidden:
            continue
        run(["pingpong", "rc", "--help"] if name == "pingpong" else [name, "--help"])
        assert re.search(rf"^  rnic {name}", capsys.readouterr().out, re.MULTILINE), name


def test_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"rnic, version {metadata.version('rnic')}\n"


def test_module_runs_as_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rnic", "--version"], capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("rnic, version")


@pytest.mark.parametrize(
    "args",
    [
        ["nonsense"],
        ["pingpong", "rc", "-m", "1000"],
        ["pingpong", "rc", "-n", "0"],
        ["demo", "/no/such/file"],
    ],
)
def test_wrong_command_line_ends_with_2(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(args) == 2
    assert "Usage: rnic" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["-P"], "rnic: --prefetch: only an on-demand region (--odp) can be prefetched\n"),
        (["-j", "-o"], "rnic: --dm: device memory cannot be on demand\n"),
        (["-j", "-O"], "rnic: --dm: device memory cannot be on demand\n"),
    ],
)
def test_options_that_do_not_go_together(
    options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["pingpong", "rc", *options]) == 1
    assert capsys.readouterr().err == words


def test_errors_are_one_line_without_numbers() -> None:
    assert (
        describe(FileNotFoundError(2, "No such file or directory", "/x")) == "/x: No such file or directory"
    )
    assert describe(OSError(28, "No space left on device")) == "No space left on device"
    assert describe(OSError("plain")) == "plain"
    assert describe(VerbsError(22, "RESET -> RTS is not allowed", "modify_qp")) == (
        "modify_qp: RESET -> RTS is not allowed [EINVAL]"
    )


def test_interrupt_ends_with_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_args: object, **_kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "main", interrupted)
    assert run(["devices"]) == 130
    assert capsys.readouterr().err == "rnic: interrupted\n"
