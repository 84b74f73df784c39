# SPDX-License-Identifier: Apache-2.0
"""The machine of the kernel modules stands still while they work: its peers notice, and go on."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from cm_programs import python
from link import OURS
from memory import Lines, Memory
from modules import SOURCE, Box

from rnic.vm import Machine
from waiting import until

pytestmark = pytest.mark.interop

PORT = 7471
CLIENT = "/proc/rnic_client"


class Mortal:
    """A machine with one RDMA device, and rnic's device that it talks with."""

    def __init__(self, machine: Machine, kind: str) -> None:
        self.machine, self.kind, self.box = machine, kind, Box(machine)
        self.device = f"{OURS[kind]}_{machine.netdev}"

    @contextmanager
    def server(self) -> Iterator[tuple[Lines, int]]:
        """peer_listener.py, and its port."""
        words = ("--bind", self.machine.host_ip, "--port", 0, "--device", self.device)
        with python(SOURCE / "peer_listener.py", *words) as process:
            lines = Lines(process)
            try:
                yield lines, int(lines.line("listening on port").split()[3])
            finally:
                lines.kill()

    def signal(self, number: int) -> None:
        """SIGSTOP: it does nothing more, and nobody is told. SIGKILL: its network goes with it."""
        os.kill(self.machine.facts["qemu"], number)


@pytest.fixture(params=["rxe", "siw"])
def mortal(request: pytest.FixtureRequest) -> Iterator[Mortal]:
    with Machine(transport=request.param, accelerator="tcg") as machine:
        machine.check("modprobe rdma_cm")
        yield Mortal(machine, request.param)


ANSWERED = "10 texts answered, 0 messages wrong"
# What the two servers say. Over RoCE a probe finds that the machine stands still; they end a minute later.
SAID = {
    ("rxe", signal.SIGSTOP): ("does not acknowledge any more",) * 2,
    ("siw", signal.SIGSTOP): (ANSWERED, "disconnected"),
    ("rxe", signal.SIGKILL): (ANSWERED, "disconnected"),
    ("siw", signal.SIGKILL): (ANSWERED, "disconnected"),
}


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL], ids=["stopped", "killed"])
def test_peers_notice_that_the_machine_is_no_more(mortal: Mortal, tmp_path: Path, number: int) -> None:
    box, machine = mortal.box, mortal.machine
    with ExitStack() as stack:
        memory = stack.enter_context(Memory(tmp_path / "memory", 8 << 20, mortal.kind))
        server, port = stack.enter_context(mortal.server())
        for name, words in (
            ("agent", {}),
            ("listener", {"port": PORT}),
            ("client", {"addr": machine.host_ip, "port": port, "texts": 10}),  # and is idle then
            ("blockdev", {"addr": machine.host_ip, "port": memory.port}),
        ):
            box.load(name, **words)
        memory.line("connected")
        words = (machine.ip, "--port", PORT, "--device", mortal.device, "--count")
        asking = stack.enter_context(python(SOURCE / "peer_client.py", *words, 10**6))
        idle = stack.enter_context(python(SOURCE / "peer_client.py", *words, 1, "--hold"))
        machine.spawn("while dd if=/dev/urandom of=/dev/rnicblk0 bs=64K count=100 oflag=direct; do :; done")
        until(lambda: any(memory.bytes), "the first block")
        # Two digits: one ask is the idle client's.
        machine.check("until grep -q '^asks [1-9][0-9]' /proc/rnic_listener; do sleep .1; done")
        assert idle.stdout is not None
        assert idle.stdout.readline() == "1 texts answered\n"

        mortal.signal(number)
        for client in (asking, idle):
            out, _ = client.communicate(timeout=120)
            assert client.returncode == 1
            assert "the connection has ended: " in out or "has gone" in out
        for peer, line in zip((server, memory), SAID[mortal.kind, number], strict=True):
            peer.line(line)
        assert memory.process.poll() is None
