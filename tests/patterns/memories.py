# SPDX-License-Identifier: Apache-2.0
"""Servers of one-sided structures, in threads, and their clients."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import rnic
from patterns.ends import HOST, WAIT
from rnic.patterns.onesided import serve


@contextmanager
def served(kind: Any, **sizes: int) -> Iterator[tuple[int, Any]]:
    """A server in a thread for each client: its port, and its memory."""
    with rnic.listen(HOST, 0) as listener:
        memory = kind(listener.alloc, **sizes)
        serving = threading.Thread(target=listener.serve, args=(partial(serve, shared=memory),))
        serving.start()
        try:
            yield listener.port, memory
        finally:
            listener.close()
            serving.join(WAIT)
        assert not serving.is_alive()
        assert memory.clients == 0


@contextmanager
def client(kind: Any, port: int) -> Iterator[Any]:
    with rnic.connect(HOST, port) as conn:
        yield kind.over(conn, WAIT)
