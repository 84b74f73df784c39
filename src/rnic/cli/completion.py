# SPDX-License-Identifier: Apache-2.0
"""`rnic completion`: what a shell reads so that the Tab key completes commands, options and files."""

from __future__ import annotations

import click
from click import shell_completion

import rnic
from rnic.cli.command import command

SHELLS = ("bash", "zsh", "fish")


def devices(_ctx: click.Context, _param: click.Parameter, begun: str) -> list[str]:
    """Of an option or argument that is the name of one."""
    return [one.name for one in rnic.get_device_list() if one.name.startswith(begun)]


@command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a script with which the Tab key completes commands, options and files of `rnic`.

    \b
    rnic completion bash >> ~/.bashrc
    rnic completion zsh >> ~/.zshrc       behind compinit
    rnic completion fish > ~/.config/fish/completions/rnic.fish
    """
    kind = shell_completion.get_completion_class(shell)
    assert kind is not None
    source = kind(ctx.find_root().command, {}, "rnic", "_RNIC_COMPLETE").source()
    click.echo(source.replace('split ","', 'split -m 1 ","'))  # of fish: a help may have commas
