# SPDX-License-Identifier: Apache-2.0
"""Runs in the guest: carries out random programs of module_programs.py, which come as JSON on its input.

python3 guest_modules.py rw       commands, one after the other: prints the errno and text of each
python3 guest_modules.py disk     processes with operations on the disk: prints what each has seen
"""

from __future__ import annotations

import itertools
import json
import mmap
import os
import random
import sys
import zlib
from multiprocessing import Pool
from pathlib import Path

RW = Path("/proc/rnic_rw")
DISK = "/dev/rnicblk0"
SECTOR = 512


def rw(commands: list[str]) -> list[tuple[int, str]]:
    """Each by one write()."""
    fd = os.open(RW, os.O_WRONLY)
    return [one_rw(fd, command.encode("latin-1")) for command in commands]


def one_rw(fd: int, command: bytes) -> tuple[int, str]:
    try:
        os.write(fd, command)
        failed = 0
    except OSError as error:
        failed = error.errno or 0
    text = RW.read_bytes().decode("latin-1").rpartition("\ntext: ")[2]
    return failed, text.removesuffix("\n")


def pieces(buffer: memoryview, cuts: list[int]) -> list[memoryview]:
    """Of a buffer, at so many sectors from its beginning."""
    ends = [0, *(cut * SECTOR for cut in cuts), len(buffer)]
    return [buffer[a:b] for a, b in itertools.pairwise(ends)]


def process(program: tuple[bool, list[tuple[str, int, int, int, list[int]]]]) -> list[int]:
    """What the READs of one process have seen, as CRCs."""
    direct, operations = program
    fd = os.open(DISK, os.O_RDWR | (os.O_DIRECT if direct else 0))
    seen = []
    for what, offset, length, seed, cuts in operations:
        if what == "flush":
            os.fsync(fd)
            continue
        # Direct I/O wants sectors, at any sector of a page.
        start = seed % 8 * SECTOR if direct else 0
        with mmap.mmap(-1, start + length) as area, memoryview(area) as whole, whole[start:] as buffer:
            parts = pieces(buffer, cuts)
            try:
                if what == "write":
                    buffer[:] = random.Random(seed).randbytes(length)
                    done = os.pwritev(fd, parts, offset)
                else:
                    done = os.preadv(fd, parts, offset)
                    seen.append(zlib.crc32(buffer))
            finally:
                for part in parts:
                    part.release()
            if done != length:
                raise OSError(f"{what} of {length} bytes at {offset} has moved {done}")
    os.fsync(fd)
    os.close(fd)
    return seen


def disk(programs: list[tuple[bool, list[tuple[str, int, int, int, list[int]]]]]) -> list[list[int]]:
    """All processes at once."""
    with Pool(len(programs)) as pool:
        return pool.map(process, programs, chunksize=1)


if __name__ == "__main__":
    json.dump({"rw": rw, "disk": disk}[sys.argv[1]](json.load(sys.stdin)), sys.stdout)
