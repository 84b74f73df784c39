# SPDX-License-Identifier: Apache-2.0
"""What tests need of Debian.  The summary of `make test` gathers what was missing in one line."""

from __future__ import annotations

import shutil
from typing import NoReturn

import pytest

INSTALL = "apt-get install "


def lacking(*packages: str) -> str:
    """The reason of a test that is skipped for want of packages."""
    return INSTALL + " ".join(packages)


def need_package(*packages: str) -> NoReturn:
    """Skips the test, as these packages are missing."""
    pytest.skip(lacking(*packages))


def need(program: str, package: str) -> None:
    """Skips the test where the program is not installed."""
    if not shutil.which(program):
        need_package(package)
