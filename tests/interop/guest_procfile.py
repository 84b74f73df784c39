# SPDX-License-Identifier: Apache-2.0
"""Runs in the guest: what programs do with /proc/procfile, whose module is loaded.

    python3 guest_procfile.py write TEXT... write each TEXT by one write(), and say what comes of it
    python3 guest_procfile.py nowhere       the same with a pointer to no memory
    python3 guest_procfile.py fill COUNT    add so many lines
    python3 guest_procfile.py parts COUNT   read so many lines in parts, and change them meanwhile
    python3 guest_procfile.py crowd COUNT   processes add and remove so many lines each, while others read
    python3 guest_procfile.py hold          open it, say "open", and wait for the end of the input

The exit status is 1, with a traceback, if anything is not as it must be.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from pathlib import Path

FILE = Path("/proc/procfile")
WRITERS, READERS = 3, 2
STANDING = 300  # lines that stay, so that a reader is on its way for long


def write(*texts: str) -> None:
    """The texts have Python's escapes."""
    fd = os.open(FILE, os.O_WRONLY)
    for text in texts:
        try:
            os.write(fd, text.encode().decode("unicode_escape").encode("latin-1"))
        except OSError as error:
            print(errno.errorcode[error.errno or 0])
        else:
            print("written")


def nowhere() -> None:
    fd = os.open(FILE, os.O_WRONLY)
    libc = ctypes.CDLL(None, use_errno=True)
    written = libc.write(fd, ctypes.c_void_p(8), ctypes.c_size_t(16))
    print(errno.errorcode[ctypes.get_errno()] if written < 0 else "written")


def command(text: str) -> None:
    fd = os.open(FILE, os.O_WRONLY)
    os.write(fd, text.encode())
    os.close(fd)


def read() -> list[str]:
    return FILE.read_text().splitlines()


def fill(count: int) -> None:
    for i in range(count):
        command(f"add line {i} {'.' * 150}")


def parts(count: int) -> None:
    """Lines in front of the reader and behind it are removed, and more are added."""
    fill(count)
    gone = [1, 2, count - 1, count]
    fd = os.open(FILE, os.O_RDONLY)
    text = os.read(fd, 1000)
    for number in gone:
        command(f"remove {number}")
    command("add the last")
    while more := os.read(fd, 1000):
        text += more
    numbers = [int(line.split()[0]) for line in text.decode().splitlines()]
    assert numbers == [*range(1, count - 1), count + 1], numbers  # 1 and 2 were read before
    assert [int(line.split()[0]) for line in read()] == [*range(3, count - 1), count + 1]


def crowd(count: int) -> None:
    """What one writer adds it removes, and never finds gone; a reader sees whole lines, in order."""

    def writer(me: int) -> None:
        for i in range(count):
            command(f"add {me} {i}")
            (mine,) = [line for line in read() if line.endswith(f" {me} {i}")]
            command(f"remove {mine.split()[0]}")

    def reader() -> None:
        for _ in range(count):
            lines = [line.split() for line in read()]
            assert all(len(words) == 3 for words in lines), lines
            numbers = [int(words[0]) for words in lines]
            assert numbers == sorted(set(numbers)), numbers

    for i in range(STANDING):
        command(f"add standing {i}")
    pids = []
    for i in range(WRITERS + READERS):
        if not (pid := os.fork()):
            writer(i) if i < WRITERS else reader()
            os._exit(0)  # not reached after an error, whose exit status is 1
        pids.append(pid)
    assert all(os.waitpid(pid, 0)[1] == 0 for pid in pids)
    assert [line.split()[1:] for line in read()] == [["standing", str(i)] for i in range(STANDING)]


def hold() -> None:
    with FILE.open():
        print("open", flush=True)
        sys.stdin.read()


def main(what: str, *words: str) -> None:
    calls = {"fill": fill, "parts": parts, "crowd": crowd}
    if what in calls:
        calls[what](int(words[0]))
    else:
        {"write": write, "nowhere": nowhere, "hold": hold}[what](*words)


main(*sys.argv[1:])
