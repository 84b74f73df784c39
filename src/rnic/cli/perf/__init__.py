# SPDX-License-Identifier: Apache-2.0
"""`rnic perf`: bandwidth, latency and message rate between two processes, as perftest measures them.

command       the command line, and what of it does not fit together
options       the options, in groups
plan          what is measured: both ends have the same one
line          what the ends say to each other over TCP
end           a process' queue pairs and memory, connected
session       the two ends, from the first word to the last result
native        the measuring loops, compiled
interpreted   the same by the Python API
samples       percentiles
report        a record of each size, and its row
output        where records go
plot          a picture of them
progress      how far it is
"""

from rnic.cli.perf.command import perf

__all__ = ["perf"]
