# SPDX-License-Identifier: Apache-2.0
"""A log of another process: it WRITEs lines into a ring in this one's memory, and takes part in nothing else.

python ring.py                the reader starts the writer
python ring.py PORT           the writer alone
"""

from __future__ import annotations

import subprocess
import sys

import rnic
from rnic.patterns.ring import RingReader, RingWriter

HOST = "127.0.0.1"
LINES = 1000


def write(port: int) -> None:
    """Puts lines as they come, many at a time where they come together."""
    with rnic.connect(HOST, port) as conn:
        writer = RingWriter.over(conn, timeout=5.0)
        for number in range(0, LINES, 10):
            writer.put_many([b"line %d" % n for n in range(number, number + 10)], timeout=5.0)
        writer.end(timeout=5.0)


def read() -> None:
    """Each look takes all the lines that have come: a reader that is late takes more of them at a time."""
    with rnic.listen(HOST, 0) as listener:
        writer = subprocess.Popen([sys.executable, __file__, str(listener.port)])
        with listener.accept(timeout=10.0) as conn:
            reader, looks, lines = RingReader.over(conn, 1 << 14, timeout=5.0), 0, list[bytes]()
            while found := reader.get_many(timeout=5.0):
                looks += 1
                lines += found
        assert writer.wait(10.0) == 0
    assert lines == [b"line %d" % n for n in range(LINES)]
    print(f"{len(lines)} lines came, {len(lines) / looks:.0f} at a time")


if len(sys.argv) > 1:
    write(int(sys.argv[1]))
else:
    read()
