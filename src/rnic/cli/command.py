# SPDX-License-Identifier: Apache-2.0
"""What all commands of `rnic` have: help that fits the terminal, a module that is imported when needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

import click

from rnic.cli.help import Formatter

WHOLE = 1000  # characters, which no short help has


class Context(click.Context):
    """Write help as wide as the terminal."""

    def make_formatter(self) -> click.HelpFormatter:
        return Formatter()


class Command(click.Command):
    """A command whose help fits the terminal."""

    context_class = Context

    def invoke(self, ctx: click.Context) -> Any:
        if (begin := ctx.find_root().obj) is not None:
            begin()
        return super().invoke(ctx)


class Group(click.Group):
    """A group of such commands; what it says of them is not cut off."""

    context_class = Context
    command_class = Command

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._sections: dict[str, list[str]] = {}

    def add_section(self, title: str, commands: Iterable[click.Command]) -> None:
        """Add commands that the help lists under a title."""
        for one in commands:
            self.add_command(one)
            self._sections.setdefault(title, []).append(one.name or "")

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in (self._sections or {"Commands": self.list_commands(ctx)}).items():
            shown = [(name, self.commands[name]) for name in names]
            rows = [(name, one.get_short_help_str(WHOLE)) for name, one in shown if not one.hidden]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


class Later(Command):
    """A command by its module's and its own name, as "module:name"; help needs no more than its line."""

    def __init__(self, name: str, where: str, short_help: str = "") -> None:
        super().__init__(name, short_help=short_help, hidden=not short_help)
        self._where = where

    def load(self) -> click.Command:
        """The command itself."""
        module, _, name = self._where.partition(":")
        found: click.Command = getattr(import_module(module), name)
        return found

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        return self.load().make_context(info_name, args, parent, **extra)


def command(
    name: str | None = None, kind: type[Command] = Command
) -> Callable[[Callable[..., Any]], Command]:
    """Make a function a command, as click.command does."""
    return click.command(name, cls=kind)


def group(**more: Any) -> Callable[[Callable[..., Any]], Group]:
    """Make a function a group of commands, as click.group does."""
    return click.group(cls=Group, **more)
