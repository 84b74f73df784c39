#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes docs/conformance.md from tests/conformance: make conformance."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from conformance.table import page  # noqa: E402 - tests are no package

(ROOT / "docs/conformance.md").write_text(page())
