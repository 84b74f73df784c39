# SPDX-License-Identifier: Apache-2.0
"""Runs in the guest: starts the commands that the host sends and sends back what they print.

One JSON object a line, over a virtio port.  From the host: {"job", "run": shell script} or {"job", "signal"};
to the host: {"job", "out": text} as it comes, and {"job", "rc": status} at the end.  Job 0 is the boot.
"""

import contextlib
import json
import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any, BinaryIO


class Agent:
    def __init__(self, port: BinaryIO) -> None:
        self.port = port
        self.jobs: dict[int, subprocess.Popen[bytes]] = {}
        self.sending = threading.Lock()

    def serve(self) -> None:
        self.send(job=0, rc=0)
        while line := self.port.readline():  # the end: the host has gone
            request = json.loads(line)
            if "run" in request:
                threading.Thread(target=self.run, args=(request["job"], request["run"]), daemon=True).start()
            elif job := self.jobs.get(request["job"]):
                with contextlib.suppress(ProcessLookupError):  # it has just ended
                    os.killpg(job.pid, request["signal"])

    def run(self, number: int, script: str) -> None:
        job = self.jobs[number] = subprocess.Popen(
            ["/bin/sh", "-c", script],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        assert job.stdout is not None
        while out := os.read(job.stdout.fileno(), 65536):
            self.send(job=number, out=out.decode(errors="replace"))
        self.send(job=number, rc=job.wait())
        del self.jobs[number]

    def send(self, **message: Any) -> None:
        data = json.dumps(message).encode() + b"\n"
        with self.sending:
            while data:
                data = data[os.write(self.port.fileno(), data) :]


if __name__ == "__main__":
    while not (ports := list(Path("/dev").glob("vport*p1"))):
        time.sleep(0.01)
    with ports[0].open("r+b", buffering=0) as port:
        Agent(port).serve()
