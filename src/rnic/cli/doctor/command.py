# SPDX-License-Identifier: Apache-2.0
"""The command line of `rnic doctor`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

import click
from rich.console import Console

from rnic.cli import params, screen
from rnic.cli.command import command
from rnic.cli.doctor import machine, network, pair, programs, tools
from rnic.cli.doctor.finding import Finding, State

WIDTH, STATE = 22, 10  # columns


@command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(as_json: bool) -> int:
    """Tell what works on this machine for this user, and what to do about the rest.

    The command tries everything: it opens devices, sends packets and starts a second process.  The first line
    sums up.  Each further line names a feature, its state, what was found, and the cure.  The states are ok,
    degraded (it works, but not as well as it could), missing and not run (what the check needs is not
    installed).  The exit code is 0 unless rnic cannot work at all.

    \b
    rnic doctor
    rnic doctor --json | jq '.[] | select(.state != "ok")'
    """
    found = []
    with Console(stderr=True).status("") as status:
        for finding in findings():
            found.append(finding)
            status.update(f"{finding.what}: {finding.state.value}")
    if as_json:
        click.echo(json.dumps([finding.record() for finding in found], indent=2))
    else:
        screen.say(summary(found))
        for finding in found:
            screen.say(line(finding), WIDTH + STATE)
    return int(any(map(fatal, found)))


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


def fatal(finding: Finding) -> bool:
    """Whether rnic cannot work at all for it."""
    return finding.needed and finding.state is State.MISSING


def summary(found: list[Finding]) -> str:
    """Whether rnic works, and how many findings there are of each state."""
    states = Counter(finding.state for finding in found)
    counts = ", ".join(f"{states[state]} {state.value}" for state in State if states[state])
    if broken := [finding.what for finding in found if fatal(finding)]:
        return f"rnic cannot work here, for want of: {', '.join(broken)} ({counts})"
    return f"rnic works here ({counts})"


def line(finding: Finding) -> str:
    cure = f"; cure: {finding.cure}" if finding.cure else ""
    return f"{finding.what:<{WIDTH}}{finding.state.value:<{STATE}}{finding.found}{cure}"
