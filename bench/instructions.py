# SPDX-License-Identifier: Apache-2.0
"""Instructions a message, outside the kernel: counted by callgrind, under a clock that its calls move.

On the same host the counts are the same from run to run.  Of UDP they grow by up to 2 % when the machine is
busy, as the kernel hands datagrams over later; so the least of the rounds is compared with the least stored.
"""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import facts
import peers
from build import HERE, OUT, compiler
from procs import Values, finish, process
from stats import Rounds, spread
from tables import KIB, Measurements, Row, Setting, Table, Target, Unit

from rnic.cli.perf.report import cpu_model

STORED = HERE / "results" / "instructions.json"
RISE = 0.02  # that is told
INSTRUCTIONS = Unit("instructions", "instructions", 1.0, 0)
WAYS = {"same host": "local=1", "UDP": "local=0"}
# title: options of native's "single", and how many messages
TESTS = {
    "WRITE 8 B, in chains of 32": ("loop=chain size=8 chain=32", 2000),
    "WRITE 64 KiB, in chains of 4": (f"loop=chain size={64 * KIB} chain=4", 400),
    "READ 8 B, in chains of 32": ("loop=read size=8 chain=32", 2000),
    "SEND 8 B, each answered": ("loop=pingpong size=8", 2000),
    "SEND 64 KiB, each answered": (f"loop=pingpong size={64 * KIB}", 400),
}
MESSAGE = "message 8 B, each answered: src/msg alone"
ROWS = [*(f"{title}, {way}" for title in TESTS for way in WAYS), MESSAGE]


def count(programs: dict[str, Path], command: str, messages: int, where: str) -> Values:
    """Of each message: of the rows of callgrind that name `where`."""
    name, _, options = command.partition(" ")
    found = OUT / "callgrind.out"
    callgrind = [peers.need("valgrind"), "--tool=callgrind", f"--callgrind-out-file={found}"]
    around = ["env", f"LD_PRELOAD={programs['clock']}", *callgrind, "--toggle-collect=counted_*"]
    for words in (
        [*around, str(programs[name]), *options.split(), f"count={messages}"],
        ["callgrind_annotate", "--auto=no", "--threshold=100", str(found)],
    ):
        with process(words) as child:
            said = finish(child)
    rows = re.findall(r"^ *([\d,]+) \( *[\d.]+%\)  (.*)", said, re.MULTILINE)
    return {"instructions": sum(int(n.replace(",", "")) for n, row in rows if where in row) / messages}


def measurements(s: Setting) -> Measurements:
    found: Measurements = {
        f"instructions {title}, {way}": partial(
            count, s.programs, f"native - single {options} {local}", messages, "PROGRAM TOTALS"
        )
        for title, (options, messages) in TESTS.items()
        for way, local in WAYS.items()
    }
    return found | {f"instructions {MESSAGE}": partial(count, s.programs, "messages", 2000, "src/msg/")}


def tables() -> list[Table]:
    return [
        Table(
            "Instructions",
            "Of each message outside the kernel, of both ends together, which one thread is "
            "(`build-bench/native - single`); of src/msg between two ends on a network in memory "
            "(`build-bench/messages`).",
            (),
            [Row(title, INSTRUCTIONS, f"instructions {title}") for title in ROWS],
        )
    ]


def targets() -> list[Target]:
    return []


def notes(rounds: Rounds) -> dict[str, list[str]]:
    """What has risen; nothing of the stored counts themselves."""
    stored: dict[str, Any] = json.loads(STORED.read_text()) if STORED.exists() else {"rounds": rounds}
    if rounds == stored["rounds"]:
        return {}
    found, machine = [], stored["machine"]
    cc = facts.said([*compiler(), "--version"]).partition("\n")[0]
    if cc not in machine["tools"]:
        found.append(f"differs: the compiler is {cc}; stored by {machine['tools']}")
    if not machine["cpu"].startswith(cpu_model()):
        found.append(f"differs: the processor is {cpu_model()}; stored on {machine['cpu']}")
    for title in ROWS:
        now, then = (spread(r, f"instructions {title}", INSTRUCTIONS) for r in (rounds, stored["rounds"]))
        if now and then and now.low > then.low * (1 + RISE):
            found.append(f"risen by {now.low / then.low - 1:.1%}: {title}: {then.low:.0f}, now {now.low:.0f}")
    return {"Beside the stored counts": found}
