# SPDX-License-Identifier: Apache-2.0
"""A process with ends of programs in it.  Run as `python -m differential.worker FD`, by ways.Process."""

from __future__ import annotations

import sys
from multiprocessing.connection import Connection
from typing import Any

from differential.end import RnicEnd
from rnic import Context, Faults, open_device
from transport.worker import serve


class Worker:
    """The methods of a process."""

    def __init__(self) -> None:
        self.contexts: dict[bool, Context] = {}
        self.end: RnicEnd | None = None

    def setup(self, netns: str | None, uid: int | None) -> None:
        assert (netns, uid) == (None, None)

    def open(self, local: bool, faults: Faults | None, *args: Any) -> None:
        """The process' one end, on a context that stays open for the next."""
        if local not in self.contexts:
            self.contexts[local] = open_device("roce_lo", local=local)
        self.contexts[local].set_faults(faults)
        self.end = RnicEnd(self.contexts[local], *args)

    def do(self, method: str, *args: Any) -> Any:
        return getattr(self.end, method)(*args)

    def close(self) -> None:
        if self.end:
            self.end.close()
            self.end = None


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])), Worker())
