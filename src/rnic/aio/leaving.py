# SPDX-License-Identifier: Apache-2.0
"""The end of a program whose framework closes what it has at exit, as Dask does."""

from __future__ import annotations

import atexit
import weakref

from rnic._nic.nic import close_contexts
from rnic.rdmacm.registry import Registry, registry

__all__ = ["close_late"]


def close_late() -> None:
    """Close connections and devices behind all that atexit.register() was given, instead of before it.

    Functions at exit are called from the youngest on. So a framework that imports rnic finds its connections
    closed when its own function is called. Finalizers are called at the place of the first one that was
    made, and distributed makes one before it registers a function, for this purpose.
    """
    for close in (close_contexts, registry.close):  # the second is called first
        atexit.unregister(close)
        weakref.finalize(Registry, close)
