# SPDX-License-Identifier: Apache-2.0
"""Both ends of a program that agrees with its peer by TCP."""

from __future__ import annotations

from pathlib import Path

from ibverbs.programs import free_port, listens
from ucma.under import HOST, Program
from waiting import until

NETDEV, PEER = "rn0", "rn1"  # a veth pair
ADDRESS, OTHER = "10.91.0.1", f"roce_{NETDEV}"


def both(server: str, client: str, within: Path) -> tuple[str, str]:
    """What a server and its client have said, which end well.  PORT and HOST in the words are theirs."""
    port = free_port()
    one, other = (text.replace("PORT", str(port)).replace("HOST", HOST).split() for text in (server, client))
    with Program(*one, within=within) as first:
        until(lambda: listens(port) or first.process.poll() is not None, f"{one[0]} listens")
        with Program(*other, within=within) as second:
            said = second.good()
        return first.good(), said
