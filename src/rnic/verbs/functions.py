# SPDX-License-Identifier: Apache-2.0
"""Functions of libibverbs that belong to no object."""

from rnic.wording import Named

__all__ = ["ForkStatus", "flow_label_to_udp_sport", "fork_init", "is_fork_initialized"]

_LOWEST_PORT = 0xC000
_PORT_BITS = 14


class ForkStatus(Named):
    """Whether registered memory survives fork() (ibv_is_fork_initialized(3))."""

    DISABLED = 0
    """It does not."""
    ENABLED = 1
    """It does, as fork_init() was called."""
    UNNEEDED = 2
    """It does, whatever is called."""


def fork_init() -> None:
    """Make registered memory survive fork() (ibv_fork_init(3)). With rnic it always does, so the call does
    nothing.

    The memory is not pinned, so fork() copies it on write as any other memory. Memory of PD.alloc_mr() is a
    file, which parent and child share. A context belongs to the process that opened it: in a forked child it
    raises EINVAL.
    """


def is_fork_initialized() -> ForkStatus:
    """UNNEEDED: memory is not pinned, so fork() cannot take it away (ibv_is_fork_initialized(3))."""
    return ForkStatus.UNNEEDED


def flow_label_to_udp_sport(flow_label: int) -> int:
    """The UDP source port that hardware uses for a flow (ibv_flow_label_to_udp_sport(3); IBA annex A17).

    The function maps 20 bits to a port from 49152 on, so that switches spread flows over several paths. rnic
    itself sends every flow from port 4791, which all processes of a host share.
    """
    low = flow_label & (1 << _PORT_BITS) - 1
    high = flow_label >> _PORT_BITS & 0x3F
    return low ^ high | _LOWEST_PORT
