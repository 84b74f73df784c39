# SPDX-License-Identifier: Apache-2.0
"""Capturing what passes on the tap device that this computer and a guest share."""

from __future__ import annotations

import pathlib
import re
import signal
import subprocess
import time


class Capture:
    """tcpdump on a network device, writing to a file, from construction to stop()."""

    def __init__(self, netdev: str, path: pathlib.Path, what: str = "udp port 4791") -> None:
        self.path = path
        command = [
            "tcpdump",
            "-i",
            netdev,
            "-U",
            "-n",
            "-Z",
            "root",
            "-B",
            "65536",
            "-s",
            "0",
            "-w",
            str(path),
            what,
        ]
        self._tcpdump = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
        assert self._tcpdump.stderr is not None
        self._said = self._tcpdump.stderr.readline()  # "listening on ...": from here on nothing is missed
        while "listening on" not in self._said:
            line = self._tcpdump.stderr.readline()
            if not line:
                raise RuntimeError(f"tcpdump: {self._said}")
            self._said += line

    def stop(self) -> pathlib.Path:
        """End the capture; the file.  A packet that tcpdump could not keep is an error."""
        if self._tcpdump.poll() is None:
            time.sleep(
                1.2
            )  # the kernel hands packets over in blocks, and one that is not full after a second
            self._tcpdump.send_signal(signal.SIGINT)
            self._said += self._tcpdump.communicate(timeout=60)[1]
            lost = re.search(r"(\d+) packets? dropped by kernel", self._said)
            if not lost or lost[1] != "0":
                raise RuntimeError(f"the capture is not complete: {self._said}")
        return self.path
