# SPDX-License-Identifier: Apache-2.0
"""A process with ends of programs in it.  Run as `python -m differential.worker FD`, by ways.Process."""

from __future__ import annotations

import sys
from multiprocessing.connection import Connection
from typing import Any

from differential.end import RnicEnd
from differential.iwarp_end import end_on
from rnic import Context, Faults, open_device
from transport.worker import serve


class Worker:
    """The methods of a process."""

    def __init__(self) -> None:
        self.contexts: dict[tuple[str, bool | None], Context] = {}
        self.end: RnicEnd | None = None

    def setup(self, netns: str | None, uid: int | None) -> None:
        assert (netns, uid) == (None, None)

    def open(self, device: str, local: bool | None, faults: Faults | None, *args: Any) -> None:
        """The process' one end, on a context that stays open for the next."""
        context = self.contexts.get((device, local)) or open_device(device, local=local)
        self.contexts[device, local] = context
        context.set_faults(faults)
        self.end = end_on(context, *args)

    def do(self, method: str, *args: Any) -> Any:
        return getattr(self.end, method)(*args)

    def close(self) -> None:
        if self.end:
            self.end.close()
            self.end = None


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])), Worker())
