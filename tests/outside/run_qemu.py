# SPDX-License-Identifier: Apache-2.0
"""QEMU: a machine without a system migrates by RDMA for so many seconds; its memory is compared."""

import json
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

MIB = 64
MACHINE = ("qemu-system-x86_64", "-M", "pc,accel=tcg", "-m", str(MIB), "-display", "none", "-nodefaults")


class Monitor:
    """QEMU's monitor of JSON."""

    def __init__(self, path: Path, process: subprocess.Popen[bytes]) -> None:
        while not path.exists():
            assert process.poll() is None, "QEMU has ended"
            time.sleep(0.05)
        self._sock = socket.socket(socket.AF_UNIX)
        self._sock.connect(str(path))
        self._lines = self._sock.makefile()
        self._lines.readline()
        self.do("qmp_capabilities")

    def do(self, command: str, **arguments: object) -> Any:
        """What a command returns."""
        self._sock.sendall(json.dumps({"execute": command, "arguments": arguments}).encode())
        while "return" not in (answer := json.loads(self._lines.readline())):
            assert "error" not in answer, answer
        return answer["return"]

    def memory(self, file: Path) -> bytes:
        """All of the machine's."""
        self.do("pmemsave", val=0, size=MIB << 20, filename=str(file))
        return file.read_bytes()


def migrate(folder: Path, uri: str) -> None:
    processes = []
    try:
        ends = []
        for name, more in (("from", ()), ("to", ("-S", "-incoming", uri))):
            path = folder / name
            path.unlink(missing_ok=True)
            processes.append(subprocess.Popen([*MACHINE, *more, "-qmp", f"unix:{path},server,nowait"]))
            ends.append(Monitor(path, processes[-1]))
        ends[0].do("migrate", uri=uri)
        while (status := ends[0].do("query-migrate").get("status")) != "completed":
            assert status != "failed", "the migration has failed"
            time.sleep(0.05)
        assert ends[0].memory(folder / "memory") == ends[1].memory(folder / "memory")
    finally:
        for process in processes:
            process.kill()
            process.wait()


rounds, end = 0, time.monotonic() + float(sys.argv[1])
with tempfile.TemporaryDirectory() as place:
    while not rounds or time.monotonic() < end:
        migrate(Path(place), f"rdma:{sys.argv[2]}:{4444 + rounds % 100}")
        rounds += 1
print(f"{rounds} migrations, the memory is the same")
