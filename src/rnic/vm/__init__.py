# SPDX-License-Identifier: Apache-2.0
"""A Linux machine in a box: a virtual machine with the kernel's own RDMA devices, on a tap device.

    from rnic.vm import Machine

    with Machine(transport="rxe") as machine:
        print(machine.check("ibv_devinfo"))

The machine's programs are this computer's own: its root file system is mounted read-only, so that all is at
the same paths on both sides. What can be written is in memory: /run and /dev/shm.

machine       the machine, and commands run in it: what programs use
client, job   a connection to the machine's keeper, and a command
keeper        the process that holds namespaces, tap device and QEMU (docs/rooms/vm.md)
qemu, tap     what it holds; console: what the machine prints
agent         the machine's end (runs inside it only)
images        what it boots from; kernel, siw, apt, cpio: how that is made; extras, tools: what it has beside
host          what this computer must have; lock: what processes take in turn
"""

from rnic.vm.job import HungError, Job, MachineError, NoMachineError, Result
from rnic.vm.machine import Machine, running

__all__ = ["HungError", "Job", "Machine", "MachineError", "NoMachineError", "Result", "running"]
