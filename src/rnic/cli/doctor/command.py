# SPDX-License-Identifier: Apache-2.0
"""The command line of `rnic doctor`."""

from __future__ import annotations

import json
from collections.abc import Iterator

import click

from rnic.cli import params, screen
from rnic.cli.command import command
from rnic.cli.doctor import machine, network, pair, programs, tools
from rnic.cli.doctor.finding import Finding, State

WIDTH, STATE = 22, 10  # columns


@command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(as_json: bool) -> int:
    """Tell what works on this machine for this user, and what to do about the rest.

    The command tries everything: it opens devices, sends packets and starts a second process.  Each line
    names a feature, its state, what was found, and the cure.  The states are ok, degraded (it works, but not
    as well as it could), missing and not run (what the check needs is not installed).  The exit code is 0
    unless rnic cannot work at all.

    \b
    rnic doctor
    rnic doctor --json | jq '.[] | select(.state != "ok")'
    """
    found = []
    for finding in findings():
        found.append(finding)
        if not as_json:
            screen.say(line(finding), WIDTH + STATE)
    if as_json:
        click.echo(json.dumps([finding.record() for finding in found], indent=2))
    return int(any(finding.needed and finding.state is State.MISSING for finding in found))


@command()
@click.argument("fd", type=params.number(0))
def doctor_peer(fd: int) -> None:
    """The second process of `rnic doctor`, which starts it."""
    pair.serve(fd)


def findings() -> Iterator[Finding]:
    """In the order in which one needs the other."""
    yield from machine.look()
    yield from network.look()
    yield from pair.look(doctor_peer.name or "")
    yield from programs.look()
    yield from tools.look()


def line(finding: Finding) -> str:
    cure = f"; cure: {finding.cure}" if finding.cure else ""
    return f"{finding.what:<{WIDTH}}{finding.state.value:<{STATE}}{finding.found}{cure}"
