# SPDX-License-Identifier: Apache-2.0
"""Runs in the machine, as a program of its own: starts the commands that the host sends, moves their bytes.

One JSON object a line, over a virtio port. Bytes are base64. From the host:

    {"ping": n}                                     answered by {"pong": n}
    {"job": n, "run": script, ...}                  and if wanted "cwd": [folders], "env": {...},
                                                    "input": true, "split": true (stderr apart),
                                                    "tty": [rows, columns]
    {"job": n, "in": bytes}                         for its input; "" is the end
    {"job": n, "ack": count}                        so many bytes of its output have been taken
    {"job": n, "signal": number}
    {"job": n, "size": [rows, columns]}             of its terminal

To the host: {"up": true} at the start, {"job": n, "out": bytes} and "err", {"job": n, "took": count} of its
input, and at the end {"job": n, "rc": status}, which is negative for a signal.
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
from typing import Any

CHUNK = 65536  # bytes of a message
WINDOW = 1 << 20  # bytes of a job's output under way: whoever reads slowly keeps that job waiting alone


class Job:
    """A command that runs; each of its pipes has a thread."""

    def __init__(self, agent: "Agent", number: int, request: dict[str, Any]) -> None:
        self._agent, self._number = agent, number
        self._untaken, self._taken = 0, threading.Condition()
        self._input: queue.Queue[bytes] = queue.Queue()
        self._in, self._outputs = (
            -1,
            {"out": -1},
        )  # its ends of pipes, or of a terminal; each thread closes its own
        if request.get("tty"):
            self._start_on_terminal(request)
        else:
            self._start_on_pipes(request)
        if self._in >= 0:
            threading.Thread(target=self._move_input, daemon=True).start()
        threading.Thread(target=self._see_to_the_end, daemon=True).start()

    def _start_on_pipes(self, request: dict[str, Any]) -> None:
        stdin = subprocess.PIPE if request.get("input") else subprocess.DEVNULL
        stderr = subprocess.PIPE if request.get("split") else subprocess.STDOUT
        self.process = _start(request, stdin, subprocess.PIPE, stderr)
        self._outputs = {"out": _take(self.process.stdout)}
        if self.process.stderr:
            self._outputs["err"] = _take(self.process.stderr)
        if self.process.stdin:
            self._in = _take(self.process.stdin)

    def _start_on_terminal(self, request: dict[str, Any]) -> None:
        ours, theirs = pty.openpty()
        try:
            fcntl.ioctl(ours, termios.TIOCSWINSZ, _size(request["tty"]))
            self.process = _start(request, theirs, theirs, theirs, _have_terminal)
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        self._in, self._outputs = ours, {"out": os.dup(ours)}

    def tell(self, message: dict[str, Any]) -> None:
        """Something that the host wants of it."""
        if "in" in message:
            self._input.put(base64.b64decode(message["in"]))
        elif "ack" in message:
            with self._taken:
                self._untaken -= message["ack"]
                self._taken.notify()
        elif "size" in message:
            with contextlib.suppress(OSError):  # it has just ended
                fcntl.ioctl(self._in, termios.TIOCSWINSZ, _size(message["size"]))
        elif "signal" in message:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.killpg(self.process.pid, message["signal"])

    def _see_to_the_end(self) -> None:
        movers = [threading.Thread(target=self._move_output, args=one) for one in self._outputs.items()]
        for mover in movers:
            mover.start()
        for mover in movers:
            mover.join()
        self._input.put(b"")
        self._agent.end(self._number, self.process.wait())

    def _move_output(self, kind: str, fd: int) -> None:
        with contextlib.suppress(OSError):  # EIO: nobody has the terminal any more
            while data := os.read(fd, CHUNK):
                with self._taken:
                    self._taken.wait_for(lambda: self._untaken < WINDOW)
                    self._untaken += len(data)
                self._agent.send(job=self._number, **{kind: base64.b64encode(data).decode()})
        os.close(fd)

    def _move_input(self) -> None:
        while data := self._input.get():
            with contextlib.suppress(OSError):  # it reads no more: the rest is taken, and lost
                _write_all(self._in, data)
            self._agent.send(job=self._number, took=len(data))
        os.close(self._in)


def _start(
    request: dict[str, Any], stdin: int, stdout: int, stderr: int, prepare: Any = None
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        ["/bin/sh", "-c", request["run"]],
        bufsize=0,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
        preexec_fn=prepare,
        cwd=next(filter(os.path.isdir, request.get("cwd", ())), None),
        env=os.environ | request.get("env", {}),
    )


def _have_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _size(size: list[int]) -> bytes:
    return struct.pack("4H", *size, 0, 0)


def _take(pipe: Any) -> int:
    with pipe:
        return os.dup(pipe.fileno())


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


class Agent:
    """The machine's end of the port."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.requests = os.fdopen(os.dup(port), "rb")  # buffered; what is sent is not
        self.jobs: dict[int, Job] = {}
        self.sending = threading.Lock()

    def serve(self) -> None:
        """Until the host has gone."""
        self.send(up=True)
        while line := self.requests.readline():
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
        except (OSError, ValueError) as error:  # ValueError: a byte 0, or text that is no UTF-8
            self.send(job=number, out=base64.b64encode(f"{error}\n".encode()).decode())
            self.send(job=number, rc=126)  # as sh(1)

    def end(self, number: int, rc: int) -> None:
        """A job has ended."""
        self.jobs.pop(number, None)
        self.send(job=number, rc=rc)

    def send(self, **message: Any) -> None:
        """To the host, which may be slow."""
        with self.sending:
            _write_all(self.port, json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    while not (ports := list(Path("/dev").glob("vport*p1"))):
        time.sleep(0.01)
    Agent(os.open(ports[0], os.O_RDWR)).serve()
