# SPDX-License-Identifier: Apache-2.0
"""How the modules are tested whose peer lends memory, which is peer_memory.py: rw and blockdev."""

from __future__ import annotations

from typing import ClassVar

from rnic.kmod.roles import Commanded, WrongError, shown
from rnic.kmod.steps import Step

SIZE = 4 << 20  # bytes of the peer's memory
LENGTHS = (1, 4096, 5000, 1 << 20)


class Memory(Commanded):
    """Its peer is there before it is loaded."""

    port = "0"  # any that is free, until there is one
    more: tuple[str, ...] = ()  # parameters

    @property
    def parameters(self) -> tuple[str, ...]:  # type: ignore[override]
        """Where its peer is, which is started now."""
        self.serve()
        return (f"addr={self.box.machine.host_ip}", f"port={self.port}", *self.more)

    def serve(self) -> None:
        """A new peer, at the port of the last one."""
        self.close()
        words = ("--bind", self.box.machine.host_ip, "--port", self.port, "--size", str(SIZE))
        self.server = self._open.enter_context(self.program("peer_memory.py", *words))
        self.port = self.server.expect(r"bytes at port (\d+)", self.seconds)[1]

    def lose_the_peer(self) -> None:
        """It dies without a word."""
        assert self.server
        self.server.kill()


class Rw(Memory):
    """READs and WRITEs, by commands."""

    file = "/proc/rnic_rw"
    steps: ClassVar[dict[Step, str]] = {
        Step.PROC: "read_proc",
        Step.CONNECT: "write_a_byte",
        Step.MESSAGE: "write_and_read",
        Step.HOSTILE: "be_refused",
        Step.DEATH: "have_nobody",
    }

    def write_a_byte(self) -> None:
        """With a connection of its own, as every command."""
        self.command("write 0 a")

    def write_and_read(self) -> None:
        """The module itself compares, and the peer, which changes what it is lent."""
        for seed, length in enumerate(LENGTHS):
            self.command(f"pattern {seed} {length} {seed}")
            self.command(f"api {seed} {length} {seed}")
        self.command("lend hello")

    def be_refused(self) -> None:
        """What the peer has not allowed fails, and harms nothing that comes later."""
        for text in ("beyond", "badkey"):
            self.end_of(self.start(text), f"{shown(text)} is written")
        self.write_a_byte()

    def have_nobody(self) -> None:
        """Without a peer a command fails; it succeeds with the next one."""
        self.lose_the_peer()
        self.end_of(self.start("write 0 a"), "the peer has died")
        self.serve()
        self.write_a_byte()


class Disk(Memory):
    """blockdev: a disk in the peer's memory, from its loading on."""

    disk = "/dev/rnicblk0"
    more = ("timeout=5",)  # seconds until a peer counts as lost
    steps: ClassVar[dict[Step, str]] = {
        Step.PROC: "look",
        Step.CONNECT: "read_a_sector",
        Step.MESSAGE: "write_and_read",
        Step.DEATH: "have_no_disk",
    }

    def look(self) -> None:
        """The kernel lists it."""
        if "rnicblk0" not in self.box.check("cat /proc/partitions"):
            raise WrongError("/proc/partitions has no rnicblk0")

    def read_a_sector(self) -> None:
        """Of zeros, as the peer's memory is."""
        if self.do(f"dd if={self.disk} bs=512 count=1 iflag=direct status=none | tr -d '\\0'"):
            raise WrongError("the first sector is not that of the peer's memory")

    def write_and_read(self) -> None:
        """Random bytes come back, past the kernel's cache."""
        self.do(f"""set -e; head -c {SIZE} /dev/urandom >/run/kmod
            dd if=/run/kmod of={self.disk} bs=1M oflag=direct conv=fsync status=none
            dd if={self.disk} bs=64K iflag=direct status=none | cmp - /run/kmod; rm /run/kmod""")

    def have_no_disk(self) -> None:
        """Without the peer a write ends, with an error."""
        self.lose_the_peer()
        job = self.box.machine.spawn(f"dd if=/dev/zero of={self.disk} bs=4K count=1 oflag=direct")
        self.end_of(job, "the peer has died")

    def do(self, script: str) -> str:
        """Run it in the machine, where it must succeed; what it prints."""
        rc, out = self.box.run(script, self.seconds)
        if rc:
            raise WrongError(f"exit {rc} of {shown(' '.join(script.split()))}", out)
        return out
