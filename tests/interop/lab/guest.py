# SPDX-License-Identifier: Apache-2.0
"""The virtual machine: Debian's kernel with its rdma_rxe or siw on a tap device, and commands run in it.

    with Guest(mtu=9000) as guest:
        print(guest.check("ibv_devinfo"))
        server = guest.spawn(f"ibv_rc_pingpong -d rxe0 -g {guest.gid_index(guest.ip)}")
        ...
        rc, out = server.wait(timeout=20)

The processor is emulated where nothing else is asked for: hardware virtualisation is not everywhere, and a
guest's times do not matter to tests.
"""

from __future__ import annotations

import collections
import contextlib
import ipaddress
import itertools
import json
import pathlib
import re
import signal
import socket
import subprocess
import threading
import time
from typing import Any, NamedTuple

from . import cache
from .net import Tap

DISCARD = 9  # a TCP port where nobody listens
AGENT = pathlib.Path(__file__).with_name("agent.py").resolve()


class Result(NamedTuple):
    rc: int  # exit status; negative: the signal that ended it
    out: str  # stdout and stderr


class GuestError(RuntimeError):
    """A command failed in the guest, or the guest died; the text shows what was printed."""


class Job:
    """A command that runs in the guest."""

    def __init__(self, guest: Guest, number: int, command: str) -> None:
        self.command, self.out = command, ""
        self.rc: int | None = None
        self.number = number
        self._guest, self._news = guest, guest.news

    def wait(self, timeout: float = 60) -> Result:
        """The command's end.  One that takes longer than timeout seconds is killed and is an error."""
        if not self._wait_for(lambda: self.rc is not None, timeout):
            self.kill()
            self._wait_for(lambda: self.rc is not None, 10)
            raise GuestError(f"not finished after {timeout} s: {self.command}\n{self.out}")
        assert self.rc is not None
        return Result(self.rc, self.out)

    def expect(self, pattern: str, timeout: float = 20) -> re.Match[str]:
        """The first match of pattern in the output, as soon as it is there."""
        if not self._wait_for(lambda: self.rc is not None or bool(re.search(pattern, self.out)), timeout):
            raise GuestError(f"no {pattern!r} after {timeout} s from: {self.command}\n{self.out}")
        found = re.search(pattern, self.out)
        if not found:
            raise GuestError(f"no {pattern!r} from: {self.command}: exit {self.rc}\n{self.out}")
        return found

    def kill(self, sig: int = signal.SIGKILL) -> None:
        """Signal the command and all that it started."""
        self._guest.send(job=self.number, signal=int(sig))

    def _wait_for(self, condition: Any, timeout: float) -> bool:
        with self._news:
            ended = self._news.wait_for(lambda: condition() or self._guest.dead, timeout)
        if self._guest.dead and not condition():
            raise GuestError(f"the guest died during: {self.command}\n{self._guest.console()}")
        return ended


class Guest:
    """A running guest; a context manager.

    mtu       of the tap device and of the guest's eth0
    kind      of the guest's RDMA device, which is named like it: rxe0 or siw0
    smp       processors; two when both ends of a test poll inside the guest
    accel     QEMU's accelerator: tcg or kvm
    cpu       QEMU's processor
    patience  seconds that booting may take
    """

    def __init__(
        self,
        mtu: int = 1500,
        kind: str = "rxe",
        smp: int = 1,
        memory_mb: int = 512,
        accel: str = "tcg",
        cpu: str = "max",
        patience: float = 120,
    ) -> None:
        made = cache.prepare()
        self.device = f"{kind}0"
        self.news = threading.Condition()
        self.dead = False
        self._jobs: dict[int, Job] = {}
        self._numbers = itertools.count()
        self._printed: collections.deque[str] = collections.deque(maxlen=200)
        self._channel, agent = socket.socketpair()
        self._monitor, monitor = socket.socketpair()
        self.tap = Tap(mtu)
        self.ip, self.ip6 = self.tap.guest_ip, self.tap.guest_ip6
        self.host_ip, self.host_ip6, self.netdev = self.tap.host_ip, self.tap.host_ip6, self.tap.name
        boot = self._new_job("boot")
        self._qemu = subprocess.Popen(
            _qemu_command(
                made.kernel,
                made.initrd,
                f"-accel {accel} -cpu {cpu}",
                smp,
                memory_mb,
                agent.fileno(),
                monitor.fileno(),
                self.tap,
            ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            pass_fds=[agent.fileno(), monitor.fileno(), self.tap.fd],
            start_new_session=True,  # Ctrl-C is for the tests; they close the guest
        )
        agent.close()
        monitor.close()
        self.tap.close()
        self._readers = [threading.Thread(target=t) for t in (self._read_console, self._read_channel)]
        for reader in self._readers:
            reader.start()
        try:
            boot.wait(patience)
            self.check(_NETWORK.format(mtu=mtu, ip=self.ip, ip6=self.ip6))
            if kind == "siw":
                self.check(f"insmod '{made.siw}'")
            self.check(f"rdma link add {self.device} type {kind} netdev eth0")
        except BaseException:
            self.close()
            raise

    def spawn(self, command: str) -> Job:
        """Start a shell command in the guest."""
        job = self._new_job(command)
        self.send(job=job.number, run=command)
        return job

    def run(self, command: str, timeout: float = 60) -> Result:
        """Run a shell command in the guest."""
        return self.spawn(command).wait(timeout)

    def check(self, command: str, timeout: float = 60) -> str:
        """Run a shell command in the guest that must succeed; its output."""
        rc, out = self.run(command, timeout)
        if rc:
            raise GuestError(f"exit {rc} in the guest: {command}\n{out}")
        return out

    def gid_index(self, address: str) -> int:
        """Where an IPv4 or IPv6 address stands in the GID table of the guest's device."""
        ip = ipaddress.ip_address(address)
        want = ip if ip.version == 6 else ipaddress.IPv6Address(f"::ffff:{ip}")
        gids = self.check(
            f"cd /sys/class/infiniband/{self.device}/ports/1/gids; for i in $(seq 0 15); do cat $i; done"
        )
        return [ipaddress.ip_address(gid) for gid in gids.split()].index(want)

    def console(self) -> str:
        """The last lines that the guest's kernel and QEMU printed."""
        return "".join(self._printed)

    def lost(self, patience: float = 10) -> str:
        """What a guest that died, or is silent for patience seconds, printed last; of one that lives ""."""
        with contextlib.suppress(GuestError):
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
        """Make the guest's kernel print where its processors are, and panic, even if it hangs (an NMI)."""
        with contextlib.suppress(OSError):
            for command in ("qmp_capabilities", "inject-nmi"):
                self._monitor.sendall(json.dumps({"execute": command}).encode())
        with self.news:
            self.news.wait_for(lambda: self.dead, 5)

    def send(self, **message: Any) -> None:
        try:
            self._channel.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self._died()

    def close(self) -> None:
        """End the guest."""
        with contextlib.suppress(OSError):  # the agent reads the end, and the guest powers itself off
            self._channel.shutdown(socket.SHUT_RDWR)
        try:
            self._qemu.wait(5)
        except subprocess.TimeoutExpired:
            self._qemu.kill()
            self._qemu.wait()
        for reader in self._readers:
            reader.join()
        self._channel.close()
        self._monitor.close()

    def __enter__(self) -> Guest:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _new_job(self, command: str) -> Job:
        number = next(self._numbers)
        job = self._jobs[number] = Job(self, number, command)
        return job

    def _read_channel(self) -> None:
        with contextlib.suppress(OSError), self._channel.makefile("r") as lines:
            for line in lines:
                message = json.loads(line)
                with self.news:
                    job = self._jobs[message["job"]]
                    job.out += message.get("out", "")
                    if "rc" in message:
                        job.rc = message["rc"]
                        del self._jobs[message["job"]]
                    self.news.notify_all()
        self._died()

    def _read_console(self) -> None:
        assert self._qemu.stdout is not None
        with self._qemu.stdout as lines:
            self._printed.extend(lines)

    def _died(self) -> None:
        time.sleep(0.1)  # let the console say why
        with self.news:
            self.dead = True
            self.news.notify_all()


_NETWORK = """set -e
ip link set lo up
echo 0 >/proc/sys/net/ipv6/conf/eth0/accept_dad  # else it cannot solicit neighbours in the first second
echo 1 >/proc/sys/net/ipv6/conf/eth0/keep_addr_on_down  # tests take the link down and up again
ip link set eth0 mtu {mtu} up
ip addr add {ip}/24 dev eth0
ip addr add {ip6}/64 dev eth0 nodad
until grep -q up /sys/class/net/eth0/operstate; do sleep .05; done
"""


# For one processor that stays alone QEMU before version 8 leaves out the barriers: guest and device do not
# see in time what the other one has written into a virtio ring, and once in hundreds of tests neither tells
# the other of a packet any more.  So there is room for a second one.
def _qemu_command(
    kernel: pathlib.Path,
    initrd: pathlib.Path,
    processor: str,
    smp: int,
    memory_mb: int,
    agent: int,
    monitor: int,
    tap: Tap,
) -> list[str]:
    mac = f"52:54:00:77:00:{tap.index:02x}"
    share = "local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap"
    words = f"""qemu-system-x86_64 {processor} -m {memory_mb} -smp {smp},maxcpus={max(smp, 2)}
        -nodefaults -no-user-config -no-reboot -display none -serial stdio
        -chardev socket,id=monitor,fd={monitor} -mon chardev=monitor,mode=control
        -kernel {kernel} -initrd {initrd} -virtfs {share}
        -device virtio-serial-pci -chardev socket,id=agent,fd={agent} -device virtserialport,chardev=agent
        -netdev tap,id=net,fd={tap.fd} -device virtio-net-pci,romfile=,netdev=net,mac={mac}"""
    return [
        *words.split(),
        "-append",
        f'console=ttyS0 panic=-1 unknown_nmi_panic quiet tsc=reliable agent="{AGENT}"',
    ]
