# SPDX-License-Identifier: Apache-2.0
"""Whether hardware virtualisation (KVM) works is found out by trying, once for each boot of this computer."""

from __future__ import annotations

import os
from pathlib import Path

from rnic.vm import paths
from rnic.vm.qemu import Accelerator

KVM = Path("/dev/kvm")
KVM_BOOT = 15.0  # seconds that a machine may take to boot with it; two are usual
CPU = "max"


def choose(wanted: str, cpu: str, patience: float) -> list[Accelerator]:
    """What to try, in this order; wanted: kvm, tcg, or "" for the first that works."""
    kvm = Accelerator("kvm", cpu or CPU, min(patience, KVM_BOOT))
    tcg = Accelerator("tcg", cpu or CPU, patience)
    if wanted:
        return [{"kvm": kvm, "tcg": tcg}[wanted]]
    return [kvm, tcg] if os.access(KVM, os.R_OK | os.W_OK) and not _failed() else [tcg]


def remember(tried: list[Accelerator], worked: str) -> None:
    """So that the next machine does not try in vain."""
    if len(tried) > 1 and worked != tried[0].name:
        _note().write_text(_this_boot())


def _failed() -> bool:
    return _note().exists() and _note().read_text() == _this_boot()


def _note() -> Path:
    return paths.cache() / "kvm-fails"


def _this_boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text()
