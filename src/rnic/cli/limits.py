# SPDX-License-Identifier: Apache-2.0
"""Limits of the process, which a server of many clients raises."""

from __future__ import annotations

import resource
from contextlib import suppress


def raise_descriptors() -> None:
    """Take as many descriptors as the process may have (`ulimit -Hn`)."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # it stays as it is
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
