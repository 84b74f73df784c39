# SPDX-License-Identifier: Apache-2.0
"""The command line as a whole: help, versions, and how errors look."""

import re
import subprocess
import sys
from importlib import metadata

import pytest

from rnic.cli.main import cli, describe, run
from rnic.errors import VerbsError

COMMANDS = [
    [],
    ["devices"],
    ["info"],
    ["pingpong"],
    ["pingpong", "rc"],
    ["demo"],
    ["lab3"],
    ["lab3", "receiver"],
    ["lab3", "sender"],
    ["lab3", "grade"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command, "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Usage: rnic")
    assert "--help" in out


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
        [sys.executable, "-m", "rnic", "--version"], capture_output=True, text=True, timeout=60
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


@pytest.mark.parametrize("group", [[], ["pingpong"], ["lab3"]])
def test_what_help_says_of_commands_is_whole_on_80_columns(
    group: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*group, "--help"]) == 0
    for line in capsys.readouterr().out.splitlines()[1:]:
        assert len(line) <= 80, line
        assert not line.endswith("..."), line
