# SPDX-License-Identifier: Apache-2.0
"""A process that has run out of something."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

_STANDARD = 3  # input, output and errors: what is closed meanwhile, by a collector or a thread, is above them


@contextmanager
def no_descriptors() -> Iterator[None]:
    """This process can open nothing; what is open works."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (_STANDARD, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
