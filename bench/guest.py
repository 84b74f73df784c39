# SPDX-License-Identifier: Apache-2.0
"""rnic beside the kernel's rdma_rxe and siw, each in a virtual machine of its own (rnic.vm).

rdma_rxe holds UDP 4791 of the guest, so rnic runs in a network namespace there, on its loopback interface.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import outputs
from build import HERE, ROOT
from procs import AbsentError, BrokenError, Values
from stats import Rounds
from tables import (
    GBYTES,
    KIB,
    MEDIAN,
    MIB,
    OPS,
    SIZE_NAMES,
    Measurements,
    Row,
    Setting,
    Table,
    Target,
    at_least,
    at_most,
    shape,
    words,
)

sys.path.insert(0, str(ROOT))
from tests.interop.needs import missing, prepare

from rnic.vm import Machine, MachineError
from rnic.vm.host import CommandError

# TCG emulates PCLMULQDQ bit by bit, and rdma_rxe's CRC would not use it: both compute it by table.
CPU = "max,-pclmulqdq"
MTU = 9000  # rdma_rxe's path MTU is then 4096, as rnic's
SIZES = {64 * KIB: 2000, MIB: 200}  # and how many of these ib_write_bw takes,
FEWER = 4  # times less with siw, whose CRCs are slow in an emulated processor
MESSAGES = 2000
TRIES = 5
CRCS = {"with CRCs": 1, "without": 0}
STREAMED = [(op, size, how) for op in OPS for size in SIZES for how in CRCS]
PORT = 18515  # that perftest's server listens on


class Guest:
    """A machine with a device of this kind, booted when the first measurement asks for it."""

    def __init__(self, s: Setting, kind: str) -> None:
        self.setting, self.kind = s, kind
        self.why = missing()
        self._machine: Machine | None = None

    def machine(self) -> Machine:
        if self.why:
            raise AbsentError(self.why)
        if self._machine is None:
            try:
                self._machine = self.setting.closing.enter_context(self._boot())
            except (CommandError, RuntimeError) as failure:
                self.why = f"no virtual machine: {str(failure).splitlines()[0]}"
                raise AbsentError(self.why) from None
        return self._machine

    def _boot(self) -> Machine:
        prepare()
        return Machine(transport=self.kind, mtu=MTU, cpus=2, cpu=CPU)

    def facts(self) -> Values:
        machine = self.machine()
        return {"accel": machine.accelerator.upper(), "kernel": machine.facts["kernel"]}


def rnic(guest: Guest, server: str, test: str, **options: Any) -> Values:
    program = str(guest.setting.programs["native"])
    given = words(guest.setting, options)
    both = [program, "FD", "serve", server, *given, "--", program, "FD", test, *given]
    inside = f"ip link set lo up && exec python3 {HERE}/procs.py {shlex.join(both)}"
    rc, out = guest.machine().run(f"unshare --net sh -c {shlex.quote(inside)}")
    if rc:
        raise BrokenError(f"in the guest: {out.strip().splitlines()[-1] if out.strip() else rc}")
    found: Values = json.loads(out)
    return found | guest.facts()


def rxe(guest: Guest, program: str, size: int, count: int) -> Values:
    machine = guest.machine()
    index = machine.gid_index(machine.ip)
    return perftest(machine, f"{program} -d {machine.device} -x {index} -F -s {size} -n {count}")


def siw(guest: Guest, program: str, size: int, count: int, crc: int) -> Values:
    """Its server listens twice, and its client does not wait for the second time."""
    machine = guest.machine()
    machine.check(f"echo {crc} >/sys/module/siw/parameters/mpa_crc_required")
    for _ in range(TRIES - 1):
        with suppress(MachineError):
            return perftest(machine, f"{program} -R -F -s {size} -n {count}")
    return perftest(machine, f"{program} -R -F -s {size} -n {count}")


def perftest(machine: Machine, command: str) -> Values:
    server = machine.spawn(command)
    listening = f"grep -q ':{PORT:04X} .* 0A ' /proc/net/tcp /proc/net/tcp6"
    try:
        machine.check(f"until {listening}; do sleep .05; done", 20)
        return outputs.perftest(machine.check(f"{command} {machine.ip}", 120))
    finally:
        server.kill()
        server.wait(20)


def guarded(run: Callable[..., Values], *args: Any, **options: Any) -> Values:
    try:
        return run(*args, **options)
    except MachineError as failure:
        raise BrokenError(str(failure).splitlines()[0]) from None


def measurements(s: Setting) -> Measurements:
    return beside_rxe(Guest(s, "rxe")) | beside_siw(Guest(s, "siw"))


def beside_rxe(guest: Guest) -> Measurements:
    found: Measurements = {
        "guest send latency": partial(guarded, rnic, guest, "echo", "send_pingpong", inline=1),
        "rxe send latency": partial(guarded, rxe, guest, "ib_send_lat", 8, MESSAGES),
    }
    for size, count in SIZES.items():
        found[f"guest write {size}"] = partial(guarded, rnic, guest, "sleep", "write", **shape(size))
        found[f"rxe write {size}"] = partial(guarded, rxe, guest, "ib_write_bw", size, count)
    return found


def beside_siw(guest: Guest) -> Measurements:
    found: Measurements = {
        "guest iwarp send latency": partial(guarded, rnic, guest, "echo", "send_pingpong", inline=1, iwarp=1),
        "siw send latency": partial(guarded, siw, guest, "ib_send_lat", 8, MESSAGES, 1),
    }
    for op, size, how in STREAMED:
        found[f"guest iwarp {op} {size} {how}"] = partial(
            guarded, rnic, guest, OPS[op], op, iwarp=1, crc=CRCS[how], **shape(size)
        )
        found[f"siw {op} {size} {how}"] = partial(
            guarded, siw, guest, f"ib_{op}_bw", size, SIZES[size] // FEWER, CRCS[how]
        )
    return found


RXE_ROWS = [
    Row("SEND 8 B, half round trip", MEDIAN, "guest send latency", {"rdma_rxe": "rxe send latency"}),
    *(
        Row(f"WRITE {SIZE_NAMES[size]}", GBYTES, f"guest write {size}", {"rdma_rxe": f"rxe write {size}"})
        for size in SIZES
    ),
]
SIW_ROWS = [
    Row("SEND 8 B, half round trip", MEDIAN, "guest iwarp send latency", {"siw": "siw send latency"}),
    *(
        Row(
            f"{op.upper()} {SIZE_NAMES[size]}, {how}",
            GBYTES,
            f"guest iwarp {op} {size} {how}",
            {"siw": f"siw {op} {size} {how}"},
        )
        for op, size, how in STREAMED
    ),
]


def tables() -> list[Table]:
    return [
        Table(
            "Beside rdma_rxe in one guest",
            "Two processes in a virtual machine of two processors with Debian's kernel. rnic: UDP through "
            "loopback, path MTU 4096. rdma_rxe: ib_send_lat (its typical, a median) and ib_write_bw (its "
            "average) on a device of path MTU 4096, whose packets to itself pass through no network. The "
            "guest's processor has no PCLMULQDQ: both compute their CRC by table.",
            ("rdma_rxe",),
            RXE_ROWS,
        ),
        Table(
            "iWARP beside siw in one guest",
            "Two processes in another such virtual machine. Both go by TCP through its loopback interface. "
            "siw: ib_send_lat and ib_*_bw with RDMA-CM (-R). Both compute their CRC by the processor's "
            "instruction; the latency is with CRCs.",
            ("siw",),
            SIW_ROWS,
        ),
    ]


def targets() -> list[Target]:
    """Not to be slower than the kernel's device."""
    return [
        (at_most if row.unit is MEDIAN else at_least)(
            1.0, f"same guest: {row.title}, {peer}", row.unit, row.key, key
        )
        for row in [*RXE_ROWS, *SIW_ROWS]
        for peer, key in row.peers.items()
    ]


EMULATION = {
    "KVM": "hardware virtualisation (KVM)",
    "TCG": "every instruction emulated (TCG): the ratios are those of an emulated processor",
}


def notes(rounds: Rounds) -> dict[str, list[str]]:
    seen = {
        f"Linux {values['kernel']}, {EMULATION[values['accel']]}"
        for r in rounds
        for values in r.values()
        if "accel" in values
    }
    return {"The guest": sorted(seen)}
