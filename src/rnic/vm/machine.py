# SPDX-License-Identifier: Apache-2.0
"""A virtual machine with Debian's kernel and its rdma_rxe or siw on a tap device, and commands run in it.

    with Machine(mtu=9000) as machine:
        print(machine.check("ibv_devinfo"))
        server = machine.spawn(f"ibv_rc_pingpong -d rxe0 -g {machine.gid_index(machine.ip)}")
        ...
        rc, out = server.wait(timeout=20)

What holds it is a process of its own, the keeper.
"""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import os
import select
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rnic.vm import accelerators, copy, extras, host, images
from rnic.vm.client import Client, connect
from rnic.vm.job import Hooks, HungError, Job, MachineError, Result
from rnic.vm.network import check_name
from rnic.vm.paths import NAMES, Folder, folders
from rnic.vm.qemu import Plan

DISCARD = 9  # a TCP port where nobody listens
PATIENCE = 120.0  # seconds that an emulated processor may take to boot
TRANSPORTS = {"rxe": ("rxe",), "siw": ("siw",), "both": ("rxe", "siw")}
ENDING = 10.0  # seconds that the keeper may take to end a machine
_numbers = itertools.count()


class Machine:
    """A running machine; a context manager. It ends with this object, and with this process.

    name         by which `rnic vm` finds it; one is made up
    transport    rxe, siw or both: its RDMA devices are rxe0 and siw0, on its eth0
    mtu          of the tap device and of the machine's eth0
    cpus         processors; two when both ends of a test poll inside the machine
    accelerator  QEMU's: kvm or tcg; "": kvm where that works
    cpu          QEMU's processor
    patience     seconds that booting may take
    packages     of Debian, that this computer lacks and the machine shall have
    tools        it has RDMA programs, a compiler and the kernel's headers, though this computer has not
    network      machines of one network reach each other; they have one mtu

    As root, and in no network, the tap device is in the network namespace of this process. Otherwise it is in
    another one; namespace.enter(machine.keeper) goes there.
    """

    def __init__(
        self,
        name: str = "",
        transport: str = "rxe",
        mtu: int = 1500,
        cpus: int = 1,
        memory_mb: int = 512,
        accelerator: str = "",
        cpu: str = "",
        patience: float = PATIENCE,
        packages: Sequence[str] = (),
        tools: bool = False,
        network: str = "",
    ) -> None:
        name = name or f"process{os.getpid()}-{next(_numbers)}"
        if not NAMES.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a machine: letters, digits, and . _ - behind the first")
        if network:
            check_name(network)
        if transport not in TRANSPORTS:
            raise ValueError(f"{transport!r} is no transport of a machine: {', '.join(TRANSPORTS)}")
        kinds = TRANSPORTS[transport]
        if why := host.missing(siw="siw" in kinds):
            raise MachineError(f"this computer lacks {why}")
        made = images.prepare(with_siw="siw" in kinds, with_tools=tools, packages=packages)
        plan = Plan(
            name,
            str(made.kernel.image),
            str(made.initrd),
            str(made.kernel.top),
            accelerators.choose(accelerator, cpu, patience),
            mtu,
            cpus,
            memory_mb,
            network,
        )
        self._owner: subprocess.Popen[bytes] | None = None
        self._client = self._start(plan)
        try:
            self._boot(patience * len(plan.accelerators))
            accelerators.remember(plan.accelerators, self.accelerator)
            self._set_up(kinds, mtu, made)
            self._tell_ready(
                transport=transport, mtu=mtu, cpus=cpus, memory_mb=memory_mb, packages=[*packages]
            )
        except BaseException:
            self.close()
            raise

    @classmethod
    def attach(cls, name: str) -> Machine:
        """One that runs; close() then leaves it running, and end() ends it."""
        machine = cls.__new__(cls)
        machine._owner, machine._client = None, connect(Folder.of(name))
        return machine

    def _start(self, plan: Plan) -> Client:
        ours, keepers = socket.socketpair()
        command = [sys.executable, "-P", "-m", "rnic.vm.keeper", plan.to_json(), str(keepers.fileno())]
        self._owner = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[keepers.fileno()],
            start_new_session=True,  # Ctrl-C is for this process, which ends the machine
        )
        keepers.close()
        return Client(ours, plan.name)

    def _boot(self, patience: float) -> None:
        self._client.on_state = self._say_what_it_waits_for
        if self._client.wait_for(lambda: self.state == "setup", patience + 10):
            return
        raise MachineError(
            self._client.failure
            or f"the machine has not booted: {self.why or self.state}{self._client.last_words()}"
        )

    def _say_what_it_waits_for(self) -> None:
        if self.state == "starting" and self.why:
            host.log(self.why)

    def _set_up(self, kinds: tuple[str, ...], mtu: int, made: images.Made) -> None:
        self.check(_NETWORK.format(mtu=mtu, ip=self.ip, ip6=self.ip6))
        if made.laid_over:
            self.check(extras.script(made.laid_over))
        if made.siw:
            self.check(f"insmod {shlex.quote(str(made.siw))}")
        for kind in kinds:
            self.check(f"rdma link add {kind}0 type {kind} netdev eth0")

    def _tell_ready(self, **options: Any) -> None:
        devices = [f"{kind}0" for kind in TRANSPORTS[options["transport"]]]
        kernel = self.check("uname -r").strip()
        facts = {"devices": devices, "kernel": kernel, "options": options}
        self._client.send({"do": "ready", "facts": facts})
        self._client.wait_for(lambda: self.state == "up", 10)

    # ------------------------------------------------------------ what it is

    def __repr__(self) -> str:
        """Such as <Machine box: up, rxe0 siw0 at 10.77.0.2>."""
        if "_client" not in self.__dict__:
            return "<Machine: not started>"
        facts = self._client.facts
        where = [f"{' '.join(facts['devices'])} at {facts['ip']}"] if facts.get("devices") else []
        return f"<Machine {self.name}: {', '.join([self.state, *filter(None, [self.why]), *where])}>"

    @property
    def name(self) -> str:
        """By which `rnic vm` finds it."""
        return self._client.name

    @property
    def facts(self) -> dict[str, Any]:
        """All that is known of it: addresses, devices, kernel, processes, the console's file."""
        return dict(self._client.facts)

    @property
    def options(self) -> dict[str, Any]:
        """What another machine as this one is made with: Machine(name, **options)."""
        return dict(self._client.facts["options"])

    @property
    def state(self) -> str:
        """starting, booting, setup, up, silent (it does not answer), dead, or gone (with its keeper)."""
        return self._client.state

    @property
    def why(self) -> str:
        """Of the states silent, dead and gone, in words."""
        return self._client.why

    @property
    def dead(self) -> bool:
        """Whether no more can come of it."""
        return self._client.dead

    @property
    def ip(self) -> str:
        """The machine's."""
        return str(self._client.facts["ip"])

    @property
    def ip6(self) -> str:
        """The machine's."""
        return str(self._client.facts["ip6"])

    @property
    def host_ip(self) -> str:
        """This computer's address towards the machine."""
        return str(self._client.facts["host_ip"])

    @property
    def host_ip6(self) -> str:
        """This computer's."""
        return str(self._client.facts["host_ip6"])

    @property
    def netdev(self) -> str:
        """The device of host_ip: the tap device, or in a network the bridge, where all of it passes."""
        return str(self._client.facts["netdev"])

    @property
    def devices(self) -> list[str]:
        """Its RDMA devices."""
        return list(self._client.facts["devices"])

    @property
    def device(self) -> str:
        """The first of them."""
        return self.devices[0]

    @property
    def accelerator(self) -> str:
        """QEMU's: kvm or tcg."""
        return str(self._client.facts["accelerator"])

    @property
    def keeper(self) -> int:
        """The process that holds it, whose namespaces have the tap device."""
        return int(self._client.facts["keeper"])

    # ------------------------------------------------------------ commands

    def spawn(
        self,
        command: str,
        output: Callable[[bytes], object] | None = None,
        errors: Callable[[bytes], object] | None = None,
        **options: Any,
    ) -> Job:
        """Start a shell command in the machine.

        output  is called with what it prints, in a thread; else that is kept
        errors  is called with its stderr, which else is its stdout
        cwd     folders: it starts in the first that is there
        env     more variables
        input   True: Job.write() and Job.close_input() give it input
        tty     [rows, columns]: it has a terminal
        """
        if errors:
            options["split"] = True
        return self._client.start(command, Hooks(output, errors), **options)

    def run(self, command: str, timeout: float | None = 60, **options: Any) -> Result:
        """Run a shell command in the machine."""
        return self.spawn(command, **options).wait(timeout)

    def check(self, command: str, timeout: float | None = 60) -> str:
        """Run a shell command in the machine that must succeed; its output."""
        rc, out = self.run(command, timeout)
        if rc:
            raise MachineError(f"exit {rc} in the machine: {command}\n{out}")
        return out

    def gid_index(self, address: str, device: str = "") -> int:
        """Where an IPv4 or IPv6 address stands in the GID table of a device of the machine."""
        ip = ipaddress.ip_address(address)
        want = ip if ip.version == 6 else ipaddress.IPv6Address(f"::ffff:{ip}")
        gids = f"/sys/class/infiniband/{device or self.device}/ports/1/gids"
        found = self.check(f"cd {gids}; for i in $(seq 0 15); do cat $i; done").split()
        return [ipaddress.ip_address(gid) for gid in found].index(want)

    def put(self, path: Path, folder: str = "/run") -> str:
        """Copy a file or folder into the machine, to /run or /dev/shm; its path there."""
        return copy.put(self, path, folder)

    def get(self, path: str, folder: Path) -> Path:
        """Copy a file or folder out of the machine; its path here."""
        return copy.get(self, path, folder)

    # ------------------------------------------------------------ its life

    def console(self) -> str:
        """The last lines that the machine's kernel and QEMU printed."""
        return self._client.console()

    def lost(self, patience: float = 10) -> str:
        """What a machine that died, or is silent for patience seconds, printed last; of one that lives ""."""
        with contextlib.suppress(MachineError):
            self.check("true", patience)
            return "" if self._is_reached(patience) else f"no way to {self.ip}\n{self.console()}"
        if not self.dead:
            self.interrupt()
        return self.console() or "(it printed nothing)"

    def _is_reached(self, patience: float) -> bool:
        try:
            socket.create_connection((self.ip, DISCARD), patience).close()
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        return True

    def interrupt(self) -> None:
        """Make the machine's kernel print where its processors are, and panic, even if it hangs (an NMI)."""
        self._client.send({"do": "interrupt"})
        self._client.wait_for(lambda: self.dead, 5)

    def on_state(self, call: Callable[[], None]) -> None:
        """Call, in a thread, when the machine's state changes."""
        self._client.on_state = call

    def wait_ready(self, timeout: float = PATIENCE) -> None:
        """Until it is up, if somebody else starts it."""
        if not self._client.wait_for(lambda: self.state in ("up", "silent"), timeout):
            raise MachineError(f"{self.name} is not up ({self.state}) {self.why}{self._client.last_words()}")

    def detach(self) -> None:
        """Let it outlive this process."""
        self._client.send({"do": "keep"})
        if self._owner is not None:  # whose end somebody must wait for, should this process see it
            threading.Thread(target=self._owner.wait, daemon=True).start()
        self._owner = None

    def end(self) -> None:
        """End the machine."""
        watched = [
            fd for name in ("keeper", "warden") if (fd := _watch(self._client.facts[name])) is not None
        ]
        try:
            self._client.send({"do": "end"})
            if not _all_end(watched, ENDING):
                raise HungError(
                    f"the keeper of {self.name}, process {self.keeper}, does not end", self.keeper
                )
        finally:
            for fd in watched:
                os.close(fd)

    def close(self) -> None:
        """End the machine, if this object has started it, or leave it."""
        self._client.close()  # its keeper reads the end
        if self._owner is not None:
            self._owner.wait()

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def running() -> list[str]:
    """The names of this user's machines."""
    return [folder.name for folder in folders()]


def _watch(pid: int) -> int | None:
    """A descriptor that is readable when the process has ended; None if it has."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def _all_end(watched: list[int], patience: float) -> bool:
    limit = time.monotonic() + patience
    return all(select.select([fd], [], [], max(0, limit - time.monotonic()))[0] for fd in watched)


_NETWORK = """set -e
ip link set lo up
echo 8 >/proc/sys/kernel/printk  # all that modules print is on the console
echo 0 >/proc/sys/net/ipv6/conf/eth0/accept_dad  # else it cannot solicit neighbours in the first second
echo 1 >/proc/sys/net/ipv6/conf/eth0/keep_addr_on_down  # tests take the link down and up again
ip link set eth0 mtu {mtu} up
ip addr add {ip}/24 dev eth0
ip addr add {ip6}/64 dev eth0 nodad
until grep -q up /sys/class/net/eth0/operstate; do sleep .05; done
"""
