# SPDX-License-Identifier: Apache-2.0
"""The machine of the kernel modules stands still while they work: its peers notice, and go on."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from cm_programs import python
from link import OURS
from memory import Memory
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
    def server(self) -> Iterator[tuple[subprocess.Popen[str], int]]:
        """peer_listener.py, which ends when a client has gone, and its port."""
        words = ("--bind", self.machine.host_ip, "--port", 0, "--device", self.device, "--clients", 1)
        with python(SOURCE / "peer_listener.py", *words) as process:
            assert process.stdout
            found = re.match(r"listening on port (\d+)", process.stdout.readline())
            assert found
            yield process, int(found[1])

    def stop(self) -> None:
        """It does nothing more, and nobody is told."""
        os.kill(self.machine.facts["qemu"], signal.SIGSTOP)


@pytest.fixture(params=["rxe", "siw"])
def mortal(request: pytest.FixtureRequest) -> Iterator[Mortal]:
    with Machine(transport=request.param, accelerator="tcg") as machine:
        machine.check("modprobe rdma_cm")
        yield Mortal(machine, request.param)


def test_peers_notice_that_the_machine_is_no_more(mortal: Mortal, tmp_path: Path) -> None:
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
        words = (machine.ip, "--port", PORT, "--device", mortal.device, "--count", 10**6)
        asking = stack.enter_context(python(SOURCE / "peer_client.py", *words))
        machine.spawn("while dd if=/dev/urandom of=/dev/rnicblk0 bs=64K count=100 oflag=direct; do :; done")
        until(lambda: any(memory.bytes), "the first block")
        machine.check("until grep -q '^asks [1-9]' /proc/rnic_listener; do sleep .1; done")

        mortal.stop()
        out, _ = asking.communicate(timeout=120)
        assert asking.returncode == 1
        assert "the connection has ended: " in out
        out, _ = server.communicate(timeout=120)
        assert "10 texts answered, 0 messages wrong" in out
        memory.line("disconnected")
        assert memory.process.poll() is None
