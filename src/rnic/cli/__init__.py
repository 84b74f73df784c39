# SPDX-License-Identifier: Apache-2.0
"""The command `rnic`: one module a command, over the public API alone.

main       the group, and the one place where an error becomes a line and an exit code
command    what all commands have               help       their help, as wide as the terminal
screen     lines and tables that fit a terminal   network  addresses of this host, what servers say
signals    Ctrl-C and its kin                   completion `rnic completion`, for shells
devices    `rnic devices`, `rnic info`          devinfo    their layout, as ibv_devinfo's
pingpong   `rnic pingpong rc`, `ud`             exchange   its TCP exchange, as ibv_rc_pingpong's
demo       `rnic demo`: the sender              transfer   its protocol, and the receiver
perf/      `rnic perf`: what perftest measures
kv         `rnic kv`: the store of rnic.patterns.onesided
lab3/      `rnic lab3`: the file transfer exercise
cm         the example programs of RDMA-CM: `rnic rping`, `ucmatose`, `udaddy`, `mckey` ...
measure    latency and bandwidth                endpoint   opening and connecting RC queue pairs
params     numbers, sizes and texts on the command line and in output
child      ending a second process that a command has started
"""

from rnic.cli.main import main

__all__ = ["main"]
