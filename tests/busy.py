# SPDX-License-Identifier: Apache-2.0
"""A machine whose processors have other things to do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

COMPUTES = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(100_000))"


@contextmanager
def busy_processors() -> Iterator[None]:
    """Meanwhile a process for each processor computes all the time: others are interrupted anywhere."""
    with ExitStack() as ends:
        for _ in os.sched_getaffinity(0):
            process = subprocess.Popen([sys.executable, "-c", COMPUTES])
            ends.callback(process.wait)
            ends.callback(process.kill)
        yield
