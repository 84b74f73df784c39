# SPDX-License-Identifier: Apache-2.0
"""Whether anything moves, though nothing completes: packets_moved() of perf.c."""

from __future__ import annotations

import rnic


def packets_moved(cq: rnic.CQ) -> int:
    """Packets of its device, and copies in their place, but no refusals for want of a receive or repeats."""
    c = rnic.Counters.from_values(cq.context.raw_counters())
    return c.rx_packets - c.rnr_nak_received + c.tx_packets - c.requests_resent + c.local_direct
