# SPDX-License-Identifier: Apache-2.0
"""A module's test: built anew, loaded in a machine, spoken to by its peer, unloaded; over each transport."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from rnic.kmod import build, loading, log
from rnic.kmod.errors import KmodError
from rnic.kmod.folder import Folder
from rnic.kmod.kinds import role_of
from rnic.kmod.machines import Machines
from rnic.kmod.place import Box, Say, died
from rnic.kmod.roles import MANY, Role, WrongError
from rnic.kmod.scratch import scratch
from rnic.kmod.steps import PASSED, Outcome, Report, Step
from rnic.vm import MachineError

DEVICES = ("rxe", "siw")
SECONDS = 120.0  # longer than the modules of the course wait for anything, which is 60 s for an answer
NOT_JUDGED = (
    "memory that is allocated once and never freed, since this kernel has no kmemleak; "
    "a leak that grows with each message is found",
)
_SETTLES = 5.0  # seconds that the RDMA core may take to count what it has freed
_OUTPUT = ("*.ko", "*.o", "*.mod", "*.mod.c", ".*.cmd", "Module.symvers", "modules.order", "__pycache__")


class Built(NamedTuple):
    """A module that was built for its test, or not."""

    folder: Folder
    module: str
    outcome: Outcome  # of the step "compile"

    @property
    def role(self) -> type[Role]:
        """What it must do."""
        return role_of(self.folder.made_from or self.module)

    @property
    def steps(self) -> tuple[Step, ...]:
        """What it is tested for."""
        return (Step.COMPILE, Step.LOAD, *self.role.steps, Step.UNLOAD)


def grade(
    folder: Folder, module: str, machines: Machines, seconds: float, devices: tuple[str, ...] = DEVICES
) -> Iterator[Report]:
    """Test a module over each transport."""
    with scratch() as top:
        yield from rounds(built(folder, module, top / "module"), machines, seconds, devices)


def built(folder: Folder, module: str, where: Path) -> Built:
    """Build a module where no build has been: then the compiler says all warnings."""
    shutil.copytree(folder.path, where, ignore=_not_copied)
    copy = Folder(where)
    done = build.build(copy, build.for_machine())
    if done.errors:
        return Built(copy, module, Outcome("failed", "it does not compile", done.errors))
    if done.warnings:
        return Built(copy, module, Outcome("failed", "it compiles with warnings", done.warnings))
    return Built(copy, module, PASSED)


def _not_copied(folder: str, names: list[str]) -> set[str]:
    """What a build has made; pipes and sockets, and links to nothing."""
    odd = {name for name in names if not (path := Path(folder, name)).is_file() and not path.is_dir()}
    return odd | shutil.ignore_patterns(*_OUTPUT)(folder, names)


def rounds(
    one: Built,
    machines: Machines,
    seconds: float,
    devices: tuple[str, ...] = DEVICES,
    skipped: Collection[Step] = (),
) -> Iterator[Report]:
    """Test it over each transport, or once if it has no peer; what is skipped is not reached."""
    if one.outcome is PASSED and one.role.speaks:
        _need_devices(machines.take(), devices)
    for device in devices if one.role.speaks else ("",):
        if one.outcome is not PASSED:
            report = Report(device, one.steps)
            report.outcomes[Step.COMPILE] = one.outcome
            yield report
            continue
        tried = Round(one, device, machines.take(), seconds, machines.say)
        try:
            yield tried.run(skipped)
        finally:
            if tried.is_spoilt:
                machines.spoil()


def _need_devices(box: Box, devices: tuple[str, ...]) -> None:
    for kind in devices:
        if f"{kind}0" not in box.machine.devices:
            raise KmodError(
                f"{box.name} has no {kind}0, but {' and '.join(box.machine.devices)}: start it by rnic vm up "
                f"{box.name} --transport both, or say --transport"
            )


class Round:
    """A module in a machine whose only RDMA device is of one kind."""

    def __init__(self, one: Built, device: str, box: Box, seconds: float, say: Say) -> None:
        self._say, self._where = say, f"{device}, " if device else ""
        self.folder, self.module, self.box, self.seconds = one.folder, one.module, box, seconds
        self.role = one.role(box, one.module, device, seconds)
        self.is_spoilt = False  # the machine cannot be relied on any more
        self.report = Report(device, one.steps)
        self.report.outcomes[Step.COMPILE] = PASSED
        self._log, self._bad = "", 0  # at the end of the last step
        self.steps: dict[Step, Callable[[], None]] = {
            Step.LOAD: self.load,
            **{step: getattr(self.role, method) for step, method in one.role.steps.items()},
            Step.UNLOAD: self.unload,
        }

    def run(self, skipped: Collection[Step]) -> Report:
        """All steps, each unless it is not reached."""
        try:
            self._log, self._bad = self.box.log(), self.box.troubles()
            with self._one_device():
                for number, (step, act) in enumerate(self.steps.items(), 1):
                    if step not in skipped and self.report.can_be_reached(step) and not self.is_spoilt:
                        self._say(f"{self._where}step {number} of {len(self.steps)}: {step.value}")
                        self.report.outcomes[step] = self._attempt(act)
        finally:
            self.role.close()
        return self.report

    def _attempt(self, act: Callable[[], None]) -> Outcome:
        """A step; whatever the module did, the kernel must be well afterwards."""
        try:
            outcome = _tried(act)
        except MachineError as error:
            return self._lost(error)
        try:
            trouble = self._trouble()
        except MachineError as error:
            lost = self._lost(error)
            return lost if outcome is PASSED or self.box.machine.dead else outcome
        return self._in_trouble(trouble) if trouble else outcome

    def _trouble(self) -> str:
        """Of which the kernel has told since the last step; also if it does nothing else any more."""
        before = self._log
        try:
            self._log = self.box.log()
        except MachineError:
            trouble = log.trouble(log.behind(self.box.machine.console(), before))
            if not trouble or self.box.machine.dead:
                raise
            return trouble
        return log.trouble(log.behind(self._log, before)) or self._taint()

    def _taint(self) -> str:
        """The same, of which the log has lost the words: a module may print more than it holds."""
        before, self._bad = self._bad, self.box.troubles()
        if not self._bad & ~before:
            return ""
        return f"it has warned or oopsed, and its log holds later lines alone\n{log.tail(self._log)}"

    def _lost(self, error: MachineError) -> Outcome:
        """The machine does not do what it is asked for."""
        self.is_spoilt = True
        if self.box.machine.dead:
            detail, _, printed = died(self.box.machine).partition("\n")
            return Outcome("failed", detail, printed)
        detail, _, printed = str(error).partition("\n")
        return Outcome("failed", detail, printed)

    def _in_trouble(self, trouble: str) -> Outcome:
        """The kernel has said so."""
        self.is_spoilt = True
        return Outcome("failed", f"the kernel is in trouble: {log.first(trouble)}", trouble)

    @contextmanager
    def _one_device(self) -> Iterator[None]:
        """RDMA-CM takes the first device that has the address; so there is one alone."""
        kinds = [kind for kind in DEVICES if f"{kind}0" in self.box.machine.devices]
        others = [kind for kind in kinds if self.report.transport and kind != self.report.transport]
        for kind in others:
            self.box.check(f"rdma link delete {kind}0")
        try:
            yield
        finally:
            self._add_again(others)

    def _add_again(self, others: list[str]) -> None:
        """What was removed; a machine without its devices is of no use to the next round."""
        if self.is_spoilt:
            return
        try:
            for kind in others:
                self.box.check(f"rdma link add {kind}0 type {kind} netdev eth0")
            there = [f"test -e /sys/class/infiniband/{device}" for device in self.box.machine.devices]
            self.box.check(" && ".join([*there, "ip link show up dev eth0 | grep -q eth0"]))
        except (KmodError, MachineError):
            self.is_spoilt = True

    # ------------------------------------------------------------ the first and the last step

    def load(self) -> None:
        """With what its role wants."""
        self.resources, self.objects = self._resources(), self._objects()
        try:
            loading.load(self.box, self.folder, self.module, self.role.parameters)
        except loading.StuckError:
            self.is_spoilt = True
            raise

    def unload(self) -> None:
        """It ends in time, and nothing of it is left."""
        file = self.role.proc
        if self.report.outcomes.get(Step.DEATH) is PASSED:
            self.role.keep_busy()
        self._rmmod()
        if file and self.box.run(f"test -e {file}").rc == 0:
            self.is_spoilt = True  # what reads it runs into nothing, and no module can make it again
            raise WrongError(f"{file} is still there")
        self._compare_resources()
        if self.report.outcomes.get(Step.MESSAGE) is PASSED:
            self._compare_objects()

    def _rmmod(self) -> None:
        needed = [one for one in self.folder.modules if loading.is_user(self.box, self.module, one)]
        job = self.box.machine.spawn(f"rmmod {' '.join([self.module, *needed])}")
        limit = time.monotonic() + self.seconds
        while job.rc is None and time.monotonic() < limit and not self.box.machine.dead:
            time.sleep(0.05)
        if job.rc is None and not self.box.machine.dead:
            self.is_spoilt = True
            raise WrongError(f"rmmod has not ended after {self.seconds:g} s", log.tail(self.box.log()))
        rc, out = job.wait()
        if rc:
            self.is_spoilt = True
            raise WrongError(f"rmmod: {out.strip().removeprefix('rmmod: ERROR: ') or f'exit {rc}'}")

    def _compare_resources(self) -> None:
        limit = time.monotonic() + _SETTLES
        while (now := self._resources()) != self.resources:
            if time.monotonic() > limit:
                self.is_spoilt = True
                left = "; ".join(line.strip() for line in now.splitlines() if line not in self.resources)
                raise WrongError("RDMA objects are left", f"before: {self.resources}after:  {left}")
            time.sleep(0.1)

    def _compare_objects(self) -> None:
        """Each text that leaves a piece of memory is seen."""
        now = self._objects()
        more = {name: count - self.objects.get(name, 0) for name, count in now.items()}
        if (total := sum(more.values())) > MANY // 2:
            shown = "\n".join(f"{name}: {count}" for name, count in more.items() if count)
            raise WrongError(f"memory is left: {total} pieces after {MANY} texts", shown)

    def _resources(self) -> str:
        """What the kernel's resource tracker counts."""
        return self.box.check("rdma resource")

    def _objects(self) -> dict[str, int]:
        """How many pieces of memory of each size the kernel has in use."""
        shrink = "for cache in /sys/kernel/slab/kmalloc-*; do echo 1 >$cache/shrink; done"
        shown = self.box.check(f"{shrink}; cat /proc/slabinfo")
        return {name: int(used) for name, used in re.findall(r"^(kmalloc-\S+) +(\d+)", shown, re.MULTILINE)}


def _tried(act: Callable[[], None]) -> Outcome:
    try:
        act()
    except WrongError as error:
        return Outcome("failed", str(error), error.printed)
    except KmodError as error:
        detail, _, printed = str(error).partition("\n")
        return Outcome("failed", detail, printed)
    return PASSED
