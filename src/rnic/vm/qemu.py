# SPDX-License-Identifier: Apache-2.0
"""QEMU: its command line, and one process of it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
from pathlib import Path
from typing import NamedTuple

from rnic.vm import namespace
from rnic.vm.host import search_path
from rnic.vm.lines import Lines
from rnic.vm.tap import Tap

AGENT = Path(__file__).with_name("agent.py").resolve()


class Accelerator(NamedTuple):
    """How the processor of a machine is made."""

    name: str  # kvm or tcg
    cpu: str  # QEMU's processor
    patience: float  # seconds that booting may take


class Plan(NamedTuple):
    """What a machine is made of."""

    name: str
    kernel: str  # paths
    initrd: str
    modules: str  # the folder that has the kernel's lib/modules
    accelerators: list[Accelerator]  # the first that works is taken
    mtu: int
    cpus: int
    memory_mb: int
    network: str  # that it is in; "": none

    def to_json(self) -> str:
        """For the keeper's command line."""
        return json.dumps(self._asdict())

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """What to_json() made."""
        found = json.loads(text)
        found["accelerators"] = [Accelerator(*one) for one in found["accelerators"]]
        return cls(**found)


class Qemu:
    """A running QEMU. `agent` talks to the agent in the machine, `console` is what kernel and QEMU print."""

    def __init__(self, plan: Plan, accelerator: Accelerator, tap: Tap) -> None:
        ours, agent = socket.socketpair()
        self._monitor, monitor = socket.socketpair()
        self._process = subprocess.Popen(
            _command(plan, accelerator, tap, agent.fileno(), monitor.fileno()),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[agent.fileno(), monitor.fileno(), tap.fd],
            preexec_fn=namespace.die_with_parent,
            env=dict(os.environ, PATH=search_path()),
        )
        agent.close()
        monitor.close()
        assert self._process.stdout is not None
        self.console = self._process.stdout
        os.set_blocking(self.console.fileno(), False)
        self.agent = Lines(ours)
        self.pid = self._process.pid

    def interrupt(self) -> None:
        """An NMI: the machine's kernel prints where its processors are, and panics, even if it hangs."""
        with contextlib.suppress(OSError):
            for command in ("qmp_capabilities", "inject-nmi"):
                self._monitor.send(json.dumps({"execute": command}).encode())

    def end(self, patience: float) -> str:
        """End it: the agent reads the end, and the machine powers itself off; in words, how it ended."""
        self.agent.end()
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
        rc = self._process.wait()
        self.agent.close()
        self._monitor.close()
        return f"QEMU was ended by signal {-rc}" if rc < 0 else f"QEMU ended with status {rc}"

    def kill(self) -> None:
        """At once; end() must follow."""
        self._process.kill()


# For one processor that stays alone QEMU before version 8 leaves out the barriers: guest and device do not
# see in time what the other one has written into a virtio ring, and once in hundreds of tests neither tells
# the other of a packet any more.  So there is room for a second one.
def _command(plan: Plan, accelerator: Accelerator, tap: Tap, agent: int, monitor: int) -> list[str]:
    share = "local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap"
    words = f"""qemu-system-x86_64 -accel {accelerator.name} -cpu {accelerator.cpu}
        -m {plan.memory_mb} -smp {plan.cpus},maxcpus={max(plan.cpus, 2)}
        -nodefaults -no-user-config -no-reboot -display none -serial stdio
        -chardev socket,id=monitor,fd={monitor} -mon chardev=monitor,mode=control
        -virtfs {share}
        -device virtio-serial-pci -chardev socket,id=agent,fd={agent} -device virtserialport,chardev=agent
        -netdev tap,id=net,fd={tap.fd}
        -device virtio-net-pci,romfile=,netdev=net,mac={tap.mac},speed=10000,duplex=full"""
    told = f'box={plan.name} agent="{AGENT}" modules="{plan.modules}"'
    line = f"console=ttyS0 panic=-1 unknown_nmi_panic quiet tsc=reliable mitigations=off {told}"
    return [*words.split(), "-kernel", plan.kernel, "-initrd", plan.initrd, "-append", line]
