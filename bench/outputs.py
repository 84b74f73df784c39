# SPDX-License-Identifier: Apache-2.0
"""What the peers print, read.  Decimal units: a GB is 10^9 bytes, unlike MiB where a program counts so."""

from __future__ import annotations

import json

from procs import BrokenError, Values

MIB = 1 << 20


def iperf3(text: str) -> Values:
    """Of -J: the bytes that the receiver got."""
    return {"gbytes_per_s": json.loads(text)["end"]["sum_received"]["bits_per_second"] / 8e9}


def ucx_perftest(text: str) -> Values:
    """Of -f -v.  Its latencies are half round trips where the test is a ping-pong (*_lat); its MB are MiB.

    The median is of the last 2048 iterations, the mean ("overall") of all.
    """
    rows = [line.split(",") for line in text.splitlines() if line.strip()[:1].isdigit()]
    if not rows or len(rows[-1]) < 8:
        raise BrokenError("ucx_perftest printed no figures")
    count, median, _, overall, _, bandwidth, _, rate = (float(field) for field in rows[-1][:8])
    return {
        "iterations": count,
        "median_us": median,
        "mean_us": overall,
        "gbytes_per_s": bandwidth * MIB / 1e9,
        "messages_per_s": rate,
    }


def fi_pingpong(text: str, size: int) -> Values:
    """The mean of half a round trip.  It is told as MB/sec too, both with two digits: the larger is finer."""
    rows = [line.split() for line in text.splitlines() if line[:1].isdigit()]
    if not rows or len(rows[-1]) < 8:
        raise BrokenError("fi_pingpong printed no figures")
    rate, mean = float(rows[-1][5]), float(rows[-1][6])
    mean = size / rate if rate > mean else mean
    return {"mean_us": mean, "gbytes_per_s": size / mean / 1e3}


def perftest(text: str) -> Values:
    """Of ib_*_bw (its MB are MiB) or ib_*_lat (half round trips of a send)."""
    lines = [line.split() for line in text.splitlines()]
    heads = [line for line in lines if line[:1] == ["#bytes"]]
    rows = [line for line in lines if line and line[0].isdigit()]
    if not heads or not rows:
        raise BrokenError("perftest printed no figures")
    if "BW" in heads[-1]:
        return {"gbytes_per_s": float(rows[-1][3]) * MIB / 1e9}
    return {"median_us": float(rows[-1][4]), "mean_us": float(rows[-1][5])}


def cmtime(text: str, connections: int) -> Values:
    """The sum of its steps, each of which all connections take before the next one begins."""
    rows = [line.partition(":") for line in text.splitlines() if line.count(".") >= 3]
    if len(rows) != 7:
        raise BrokenError("cmtime printed no figures")
    return {"us_each": sum(float(rest.split()[0]) for _, _, rest in rows) * 1e3 / connections}
