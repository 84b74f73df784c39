# SPDX-License-Identifier: Apache-2.0
"""That contents are the same everywhere."""

from __future__ import annotations

import re


def same(**outputs: str) -> str:
    """The digest that each of the outputs of sha256sum shows; ValueError, if they differ or there is none."""
    found = {where: re.findall(r"^[0-9a-f]{64}", output, re.M) for where, output in outputs.items()}
    digests = {digest for some in found.values() for digest in some}
    if len(digests) != 1 or not all(found.values()):
        raise ValueError(f"the contents differ: {found}")
    return digests.pop()
