# SPDX-License-Identifier: Apache-2.0
"""Trials of changed C sources.

All of the device is one shared library here.  Each C test program loads it, and so does the extension of a
second copy of the package.  A mutant costs the compilation of the objects that its file is in, one link, and
the tests up to the first that fails: C programs, the fastest first, then pytest.
"""

from __future__ import annotations

import os
import re
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from tools.mutants import c_changes
from tools.mutants.change import Change
from tools.mutants.outcome import Outcome, folder, run
from tools.mutants.package import package_of_links

# C test programs that look at a room.
PROGRAMS = {
    "roce": "direct counted hostile raw rc_edges rc_window rc_errors rc_answers rc_access rc_retries apm "
    "rc_turns rc_counts rc_repeats linger cq placement mw pacing qp_state ud tagged xrc uc regions store "
    "congestion rc_basic rc_loss ring",
    "link": "batch ipid steering steering_hostile steerprog lane owner forward sockets user full outbox "
    "follow fault lifeline netdev raw ud ring icrc sieve floods strays threads port port_users",
    "iwarp": "iwarp iwarp_confirm iwarp_cuts iwarp_errors iwarp_ends iwarp_golden iwarp_random",
    "names": "lifeline user sockets lane forward steering full owner threads port port_users",
    "mem": "keys kinds remote locked regions rc_access mw placement store hostile qp_state tagged rc_basic "
    "ring threads port",
    "msg": "msg msg_ends msg_frames",
}
# What sees those that they miss: random programs by wire and shared memory, and then what takes long.
IN_USE = ["tests/differential", "-k", "contexts"]
LONG = {
    "roce": "local local_keys local_two_ways pair messages status placement datagrams congestion",
    "link": "local local_keys local_two_ways local_processes joining processes datagrams gsi raw_wire",
    "iwarp": "iwarp iwarp_ends",
    "names": "local_processes joining processes gsi",
    "mem": "local local_keys local_two_ways memory_kinds import local_sealed locked_memory windows",
    "msg": "messages",
}
# Processes and threads in real time: on a busy machine one may fail by itself, hardly two in a row.
TIMED = {"threads", "port", "port_users"}
COMPILE, LONGEST = 120.0, 60.0  # seconds, that a compiler takes and a C program, at most


@dataclass
class CTrials:
    """Built by `make build-mutants/built`; `flags` are the compiler and what it compiles a file with."""

    root: Path
    build: Path
    flags: list[str]
    thorough: bool
    seconds: dict[str, float] = field(default_factory=dict)
    """What each program takes without a change."""

    def sources(self, room: str) -> list[str]:
        places = (self.root / "src/nic" / room, self.root / "src" / room)
        return sorted(str(p.relative_to(self.root)) for place in places for p in place.rglob("*.[ch]"))

    def changes(self, path: str) -> list[Change]:
        return list(c_changes.changes(path, (self.root / path).read_text()))

    def prepare(self, room: str) -> None:
        """Everything passes as it is; how long it takes is the order."""
        package_of_links(self.root, self.build / "package", self.build / "nic.so")
        if not self._pytest(IN_USE, "off", self.build):
            sys.exit(f"{IN_USE[0]} fails without any change, so it can tell nothing")
        for name in PROGRAMS[room].split():
            if name not in self.seconds:
                began = time.monotonic()
                if not self._passes(self._program(name), self.build, LONGEST, 1 + (name in TIMED)):
                    sys.exit(f"{name} fails without any change, so it can tell nothing")
                self.seconds[name] = time.monotonic() - began

    def outcome(self, change: Change, worker: int) -> Outcome:
        place = folder(self.build / f"worker{worker}")
        changed = place / "changed" / change.path
        folder(changed.parent)
        changed.write_text(change.apply((self.root / change.path).read_text()))
        try:
            return self._outcome(change, changed, place)
        finally:
            changed.unlink()

    def _outcome(self, change: Change, changed: Path, place: Path) -> Outcome:
        objects = self._compile(change, changed, place)
        if objects is None:
            return Outcome.NONE
        if not objects:
            return Outcome.SAME
        library = place / "libcore.so"
        parts = [str(place / o) if o in objects else str(self.build / o) for o in self._objects()]
        link = [
            *self.flags[:1],
            "-shared",
            "-o",
            str(library),
            "-Wl,-soname,libcore.so",
            "-Wl,-Bsymbolic",
            "-pthread",
            *parts,
        ]
        if not run(link, COMPILE):
            return Outcome.NONE
        room = Path(change.path.removeprefix("src/").removeprefix("nic/")).parts[0]
        for name in sorted(PROGRAMS[room].split(), key=lambda name: self.seconds[name]):
            program = self._program(name)
            if self._mentions(program, change.path):
                program = self._made_again(program, place)
            limit = 5 + 10 * self.seconds[name]
            if not self._passes(program, place, limit, 1 + (name in TIMED)):
                return Outcome.KILLED
        ways = [(IN_USE, "off")]
        if self.thorough:
            long = [f"tests/transport/test_{name}.py" for name in LONG[room].split()]
            ways += [(long, "off"), (long, "on")]
        passes = all(self._pytest(tests, way, place) for tests, way in ways)
        return Outcome.SURVIVED if passes else Outcome.KILLED

    def _objects(self) -> list[str]:
        """Those of the library, from the build's folder."""
        return [str(p.relative_to(self.build)) for p in sorted((self.build / "src").rglob("*.o"))]

    def _cc(self, place: Path, *arguments: str) -> bool:
        """Compiles with what is changed; whether that succeeds."""
        include = [f"-I{place}/changed/src/nic", f"-I{place}/changed/src", *self.flags[1:]]
        return run([self.flags[0], *include, *arguments], COMPILE, cwd=self.root)

    def _compile(self, change: Change, changed: Path, place: Path) -> set[str] | None:
        """The objects that differ from those without the change; None when it does not compile."""
        different: set[str] = set()
        for obj in self._using(change.path):
            source = self.root / obj.replace(".o", ".c")
            out = place / obj
            folder(out.parent)
            what = changed if obj == change.path.replace(".c", ".o") else source
            if not self._cc(place, "-c", str(what), "-o", str(out)):
                return None
            if out.read_bytes() != (self.build / obj).read_bytes():
                different.add(obj)
        return different

    def _using(self, path: str) -> list[str]:
        """Objects that depend on a file."""
        if path.endswith(".c"):
            return [path.replace(".c", ".o")]
        return [o for o in self._objects() if self._mentions(self.build / o, path)]

    def _mentions(self, made: Path, path: str) -> bool:
        """Whether an object or a program is made of a file, by what the compiler has noted."""
        needle = rf"(^|\s){re.escape(path)}(\s|$)"
        return re.search(needle, made.with_suffix(".d").read_text(), re.MULTILINE) is not None

    def _program(self, name: str) -> Path:
        return self.build / "tests/c" / f"test_{name}"

    def _made_again(self, program: Path, place: Path) -> Path:
        """A test program that has functions of a changed header in itself, and tests those."""
        again = folder(place / "tests/c") / program.name
        source = f"tests/c/{program.name}.c"
        parts = [source, str(self.build / "help.a"), str(place / "libcore.so")]
        return again if self._cc(place, *parts, "-o", str(again)) else program

    def _passes(self, program: Path, library: Path, limit: float, tries: int) -> bool:
        env = {**os.environ, "LD_LIBRARY_PATH": str(library), "SEEDS": "20", "SECONDS_EACH": "0.5"}
        place = folder(library / "at")
        return any(run([str(program)], limit, env=env, cwd=place) for _ in range(tries))

    def _pytest(self, tests: list[str], local: str, library: Path) -> bool:
        """With a package whose extension loads the changed library."""
        env = {
            **os.environ,
            "LD_LIBRARY_PATH": str(library),
            "PYTHONPATH": f"{self.build / 'package'}:{self.root}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "RNIC_LOCAL": local,
            "PROGRAMS": "100",  # of tests/differential: a wrong check of the shared memory path shows in few
        }
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
        return run(command, 300, env=env, cwd=self.root)
