# SPDX-License-Identifier: Apache-2.0
"""Runs in the machine, as a program of its own: starts the commands that the host sends, moves their bytes.

One JSON object a line, over a virtio port. Bytes are base64. From the host:

    {"ping": n}                                     answered by {"pong": n}
    {"job": n, "run": script, "cwd": folder, "env": {...}, "tty": [rows, columns] or null, "input": bool}
    {"job": n, "in": bytes}                         for its input; "" is the end
    {"job": n, "ack": count}                        so many bytes of its output have been taken
    {"job": n, "signal": number}
    {"job": n, "size": [rows, columns]}             of its terminal

To the host: {"up": true} at the start, {"job": n, "out": bytes}, {"job": n, "took": count} of its input, and
at the end {"job": n, "rc": status}, which is negative for a signal.
"""

import base64
import contextlib
import fcntl
import json
import os
import pty
import queue
import struct
import subprocess
import termios
import threading
import time
from pathlib import Path
from typing import Any, BinaryIO

CHUNK = 65536  # bytes of a message
WINDOW = 1 << 20  # bytes of output that may be under way: a host that is slow keeps its own job waiting alone


class Job:
    """A command that runs; its output and its input have a thread each."""

    def __init__(self, agent: "Agent", number: int, request: dict[str, Any]) -> None:
        self._agent, self._number = agent, number
        self._untaken, self._taken = 0, threading.Condition()
        self._input: queue.Queue[bytes] = queue.Queue()
        if request.get("tty"):
            self._start_on_terminal(request)
        else:
            self._start_on_pipes(request)
        threading.Thread(target=self._move_output, daemon=True).start()

    def _start_on_pipes(self, request: dict[str, Any]) -> None:
        self.process = _start(
            request, subprocess.PIPE if request.get("input") else subprocess.DEVNULL, subprocess.PIPE
        )
        assert self.process.stdout is not None
        self._out = os.dup(self.process.stdout.fileno())  # each thread closes its own
        self.process.stdout.close()
        if self.process.stdin is not None:
            self._in = os.dup(self.process.stdin.fileno())
            self.process.stdin.close()
            threading.Thread(target=self._move_input, daemon=True).start()

    def _start_on_terminal(self, request: dict[str, Any]) -> None:
        self._in, theirs = pty.openpty()
        self._out = os.dup(self._in)
        self.resize(request["tty"])
        try:
            self.process = _start(request, theirs, theirs, lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        finally:
            os.close(theirs)
        threading.Thread(target=self._move_input, daemon=True).start()

    def tell(self, message: dict[str, Any]) -> None:
        """Something that the host wants of it."""
        if "in" in message:
            self._input.put(base64.b64decode(message["in"]))
        elif "ack" in message:
            with self._taken:
                self._untaken -= message["ack"]
                self._taken.notify()
        elif "size" in message:
            self.resize(message["size"])
        elif "signal" in message:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.killpg(self.process.pid, message["signal"])

    def resize(self, size: list[int]) -> None:
        """Its terminal has another size, in rows and columns."""
        with contextlib.suppress(OSError):  # it has just ended
            fcntl.ioctl(self._in, termios.TIOCSWINSZ, struct.pack("4H", *size, 0, 0))

    def _move_output(self) -> None:
        with contextlib.suppress(OSError):  # EIO: nobody has the terminal any more
            while out := os.read(self._out, CHUNK):
                with self._taken:
                    self._taken.wait_for(lambda: self._untaken < WINDOW)
                    self._untaken += len(out)
                self._agent.send(job=self._number, out=base64.b64encode(out).decode())
        os.close(self._out)
        self._input.put(b"")
        self._agent.end(self._number, self.process.wait())

    def _move_input(self) -> None:
        while data := self._input.get():
            with contextlib.suppress(OSError):  # it reads no more: the rest is taken, and lost
                _write_all(self._in, data)
            self._agent.send(job=self._number, took=len(data))
        os.close(self._in)


def _start(request: dict[str, Any], stdin: int, out: int, prepare: Any = None) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        ["/bin/sh", "-c", request["run"]],
        bufsize=0,
        stdin=stdin,
        stdout=out,
        stderr=subprocess.STDOUT if out == subprocess.PIPE else out,
        start_new_session=True,
        preexec_fn=prepare,
        cwd=request.get("cwd"),
        env=os.environ | request.get("env", {}),
    )


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


class Agent:
    """The machine's end of the port."""

    def __init__(self, port: BinaryIO) -> None:
        self.port = port
        self.jobs: dict[int, Job] = {}
        self.sending = threading.Lock()

    def serve(self) -> None:
        """Until the host has gone."""
        self.send(up=True)
        while line := self.port.readline():
            message = json.loads(line)
            if "ping" in message:
                self.send(pong=message["ping"])
            elif "run" in message:
                self.start(message)
            elif job := self.jobs.get(message["job"]):
                job.tell(message)

    def start(self, message: dict[str, Any]) -> None:
        """A job begins."""
        number = message["job"]
        try:
            self.jobs[number] = Job(self, number, message)
        except OSError as error:
            self.send(job=number, out=base64.b64encode(f"{error}\n".encode()).decode())
            self.send(job=number, rc=126)  # as sh(1)

    def end(self, number: int, rc: int) -> None:
        """A job has ended."""
        self.jobs.pop(number, None)
        self.send(job=number, rc=rc)

    def send(self, **message: Any) -> None:
        """To the host, which may be slow."""
        with self.sending:
            _write_all(self.port.fileno(), json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    while not (ports := list(Path("/dev").glob("vport*p1"))):
        time.sleep(0.01)
    with ports[0].open("r+b", buffering=0) as port:
        Agent(port).serve()
