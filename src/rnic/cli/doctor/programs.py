# SPDX-License-Identifier: Apache-2.0
"""Existing programs: one of this machine runs a round trip under `rnic run`."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator

import rnic
from rnic.cli.child import end, last_words, scratch, start
from rnic.cli.doctor.finding import Finding, degraded, good, missing, not_run
from rnic.programs.surroundings import IBVERBS, PRELOAD, libraries

WHAT = "C programs"
PROGRAM, PACKAGE = "ibv_rc_pingpong", "ibverbs-utils"
SECONDS = 20  # for a round trip
LOOPBACK = "lo"
# The client calls until the server listens, or has ended.
BOTH_ENDS = f"""
both="{PROGRAM} -d $0 -g 0 -n 10 -p $1"
$both >/dev/null & server=$!
until $both 127.0.0.1 >/dev/null 2>/dev/null || $both ::1 >/dev/null 2>/dev/null; do
    kill -0 $server 2>/dev/null || {{ wait $server; exit; }}
    sleep 0.05
done
wait $server
"""


def look() -> Iterator[Finding]:
    """The one check."""
    lost = [name for name in (IBVERBS, PRELOAD) if not (libraries() / name).exists()]
    devices = [
        device.name
        for device in rnic.get_device_list()
        if device.netdev == LOOPBACK and device.transport is rnic.Transport.IB
    ]
    if lost:
        yield missing(WHAT, f"this installation of rnic has no {lost[0]}", "install rnic from a wheel")
    elif not shutil.which(PROGRAM):
        yield not_run(WHAT, f"{PROGRAM} is not installed", f"apt install {PACKAGE}")
    elif not devices:
        yield not_run(WHAT, f"{PROGRAM} needs a RoCE device on {LOOPBACK}", f"ip link set {LOOPBACK} up")
    else:
        yield round_trip(devices[0])


def round_trip(device: str) -> Finding:
    """Run both ends of the program."""
    with scratch() as stderr:
        words = ("timeout", str(SECONDS), "sh", "-c", BOTH_ENDS, device, str(free_port()))
        child = start("run", *words, stderr=stderr)
        end(child, 2 * SECONDS)
        if child.returncode == 0:
            return good(WHAT, f"rnic run {PROGRAM}: messages went both ways")
        why = f"{PROGRAM} does not run{last_words(stderr)}"
    return degraded(WHAT, why, f"RNIC_VERBS_DEBUG=1 rnic run {PROGRAM} -d {device} -g 0 says why")


def free_port() -> int:
    """A TCP port that nobody has now."""
    with socket.socket() as free:
        free.bind(("", 0))
        port: int = free.getsockname()[1]
        return port
