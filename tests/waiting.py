# SPDX-License-Identifier: Apache-2.0
"""To wait for what no event tells."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE = 60.0  # seconds, on a machine that has other things to do
