# SPDX-License-Identifier: Apache-2.0
"""Threads that a call needs."""

from __future__ import annotations

import threading
from errno import EAGAIN

from rnic.errors import VerbsError, exhausted


def begin(thread: threading.Thread, verb: str) -> None:
    """Start it. EAGAIN when no thread can be had: the error names the limits."""
    try:
        thread.start()
    except (RuntimeError, MemoryError) as error:
        raise VerbsError(EAGAIN, f"no thread {thread.name}: {exhausted(error)}", verb) from error
