# SPDX-License-Identifier: Apache-2.0
"""`rnic perf`: bandwidth, latency and message rate between two processes, as perftest measures them.

command     the command line, and what of it does not fit together
plan        what is measured: both ends have the same one
line        what the ends say to each other over TCP
end         a process' queue pairs and memory, connected
session     the two ends, from the first word to the last result
native      the measuring loops, compiled        interpreted   the same by the Python API
samples     percentiles                          report        rows, JSON, and where it was measured
"""

from rnic.cli.perf.command import perf

__all__ = ["perf"]
