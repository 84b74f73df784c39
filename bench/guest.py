# SPDX-License-Identifier: Apache-2.0
"""rnic beside the kernel's rdma_rxe in one virtual machine with two processors, made by tests/interop/lab.

rdma_rxe holds UDP 4791 of the guest, so rnic runs in a network namespace there, on its loopback interface.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
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
from tests.interop.lab import guest as lab
from tests.interop.lab.host import CommandError, missing

# TCG emulates PCLMULQDQ bit by bit, and rdma_rxe's CRC would not use it: both compute it by table.
CPU = "max,-pclmulqdq"
MTU = 9000  # rdma_rxe's path MTU is then 4096, as rnic's
KVM, KVM_BOOT = Path("/dev/kvm"), 20.0  # seconds that a guest with hardware virtualisation may take to boot
SIZES = {64 * KIB: 2000, MIB: 200}  # and how many of these ib_write_bw takes
MESSAGES = 2000
PORT = 18515  # that perftest's server listens on


class Machine:
    """The guest, booted when the first measurement asks for it."""

    def __init__(self, s: Setting) -> None:
        self.setting = s
        self.accel = ""
        self.why = missing()
        self._guest: lab.Guest | None = None

    def guest(self) -> lab.Guest:
        if self.why:
            raise AbsentError(self.why)
        if self._guest is None:
            try:
                self._guest = self.setting.closing.enter_context(self._boot())
            except (lab.GuestError, CommandError, RuntimeError) as failure:
                self.why = f"no virtual machine: {str(failure).splitlines()[0]}"
                raise AbsentError(self.why) from None
        return self._guest

    def _boot(self) -> lab.Guest:
        """With hardware virtualisation where that works, else emulated."""
        if KVM.exists():
            try:
                self.accel = "KVM"
                return lab.Guest(mtu=MTU, smp=2, accel="kvm", cpu=CPU, patience=KVM_BOOT)
            except lab.GuestError:
                pass
        self.accel = "TCG"
        return lab.Guest(mtu=MTU, smp=2, cpu=CPU)

    def facts(self) -> Values:
        kernel = self.guest().check("uname -r").strip()
        return {"accel": self.accel, "kernel": kernel}


def rnic(machine: Machine, server: str, test: str, **options: Any) -> Values:
    program = str(machine.setting.programs["native"])
    given = words(machine.setting, options)
    both = [program, "FD", "serve", server, *given, "--", program, "FD", test, *given]
    inside = f"ip link set lo up && exec python3 {HERE}/procs.py {shlex.join(both)}"
    rc, out = machine.guest().run(f"unshare --net sh -c {shlex.quote(inside)}")
    if rc:
        raise BrokenError(f"in the guest: {out.strip().splitlines()[-1] if out.strip() else rc}")
    found: Values = json.loads(out)
    return found | machine.facts()


def rxe(machine: Machine, program: str, size: int, count: int) -> Values:
    guest = machine.guest()
    command = f"{program} -d {guest.device} -x {guest.gid_index(guest.ip)} -F -s {size} -n {count}"
    server = guest.spawn(command)
    listening = f"grep -q ':{PORT:04X} .* 0A ' /proc/net/tcp /proc/net/tcp6"
    try:
        guest.check(f"until {listening}; do sleep .05; done", 20)
        return outputs.perftest(guest.check(f"{command} {guest.ip}", 120))
    finally:
        server.kill()
        server.wait(20)


def guarded(run: Callable[..., Values], *args: Any, **options: Any) -> Values:
    try:
        return run(*args, **options)
    except lab.GuestError as failure:
        raise BrokenError(str(failure).splitlines()[0]) from None


def measurements(s: Setting) -> Measurements:
    machine = Machine(s)
    found: Measurements = {
        "guest send latency": partial(guarded, rnic, machine, "echo", "send_pingpong", inline=1),
        "rxe send latency": partial(guarded, rxe, machine, "ib_send_lat", 8, MESSAGES),
    }
    for size, count in SIZES.items():
        found[f"guest write {size}"] = partial(guarded, rnic, machine, "sleep", "write", **shape(size))
        found[f"rxe write {size}"] = partial(guarded, rxe, machine, "ib_write_bw", size, count)
    return found


def tables() -> list[Table]:
    column = "rdma_rxe"
    return [
        Table(
            "Beside rdma_rxe in one guest",
            "Two processes in a virtual machine of two processors with Debian's kernel. rnic: UDP through "
            "loopback, path MTU 4096. rdma_rxe: ib_send_lat (its typical, a median) and ib_write_bw (its "
            "average) on a device of path MTU 4096, whose packets to itself pass through no network. The "
            "guest's processor has no PCLMULQDQ: both compute their CRC by table.",
            (column,),
            [
                Row("SEND 8 B, half round trip", MEDIAN, "guest send latency", {column: "rxe send latency"}),
                *(
                    Row(
                        f"WRITE {SIZE_NAMES[size]}",
                        GBYTES,
                        f"guest write {size}",
                        {column: f"rxe write {size}"},
                    )
                    for size in SIZES
                ),
            ],
        )
    ]


def targets() -> list[Target]:
    return [
        at_most(1.0, "same guest: 8-byte SEND, rdma_rxe", MEDIAN, "guest send latency", "rxe send latency"),
        *(
            at_least(
                1.0,
                f"same guest: WRITE {SIZE_NAMES[size]}, rdma_rxe",
                GBYTES,
                f"guest write {size}",
                f"rxe write {size}",
            )
            for size in SIZES
        ),
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
