# SPDX-License-Identifier: Apache-2.0
"""A folder in which modules are built for a test, and that goes with this process, however that ends."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rnic.kmod.errors import KmodError

# Makes the folder, tells its name, and removes it when its input ends, as it does with this process.  A
# compiler that outlives this process may still write there: so it tries again.
_GUARD = """
folder=$(mktemp -d "$0/rnic-kmod-XXXXXX") || exit
echo "$folder"
read -r _
for _ in 1 2 3 4 5 6 7 8 9; do
    chmod -R u+rwX "$folder"
    rm -rf "$folder" && break
    sleep 1
done 2>/dev/null
"""


@contextmanager
def scratch() -> Iterator[Path]:
    """A new folder; it is removed at the end, also after SIGKILL of this process."""
    with subprocess.Popen(
        ["/bin/sh", "-c", _GUARD, tempfile.gettempdir()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is for this process
    ) as guard:
        assert guard.stdin
        assert guard.stdout
        assert guard.stderr
        made = guard.stdout.readline().rstrip("\n")
        if not made:
            raise KmodError(f"no folder to build the module in: {guard.stderr.read().strip()}")
        try:
            yield Path(made)
        finally:
            guard.stdin.close()
            guard.wait()
