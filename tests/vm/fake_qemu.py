# SPDX-License-Identifier: Apache-2.0
"""What stands in for QEMU: the agent, on the socket that QEMU would give to the machine.

Its commands run on this computer, but for those that set a machine up. FAKE_QEMU is a list of moods:

    no-kvm      ends at once if it shall use KVM
    no-boot     ends at once
    mute        never says that it is up
"""

from __future__ import annotations

import os
import re
import signal
import sys
from typing import Any

from rnic.vm.agent import Agent

SETTING_UP = re.compile(r"eth0|insmod")


class FakeAgent(Agent):
    def start(self, message: dict[str, Any]) -> None:
        if SETTING_UP.search(message["run"]):
            message["run"] = "true"
        super().start(message)


def main() -> None:
    line = " ".join(sys.argv)
    moods = os.environ.get("FAKE_QEMU", "").split()
    print("the machine's console", flush=True)
    if "no-boot" in moods or ("no-kvm" in moods and "-accel kvm" in line):
        print("qemu: it does not work", flush=True)
        sys.exit(1)
    if "mute" in moods:
        signal.pause()
    found = re.search(r"id=agent,fd=(\d+)", line)
    assert found
    FakeAgent(int(found[1])).serve()


if __name__ == "__main__":
    main()
