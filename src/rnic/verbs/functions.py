# SPDX-License-Identifier: Apache-2.0
"""Functions of libibverbs that act on no object."""

from enum import IntEnum

__all__ = ["ForkStatus", "flow_label_to_udp_sport", "fork_init", "is_fork_initialized"]

_LOWEST_PORT = 0xC000
_PORT_BITS = 14


class ForkStatus(IntEnum):
    """Whether registered memory survives fork() (ibv_is_fork_initialized(3))."""

    DISABLED = 0
    ENABLED = 1
    UNNEEDED = 2


def fork_init() -> None:
    """Make registered memory survive fork() (ibv_fork_init(3)): it always does, so nothing is left to do.

    Memory that is not pinned is copied on write as any other; that of PD.alloc_mr() is a file's, which parent
    and child share.  A context stays its opener's: in a forked child it raises EINVAL, which names fork.
    """


def is_fork_initialized() -> ForkStatus:
    """UNNEEDED: memory is not pinned, so no fork() can take it away (ibv_is_fork_initialized(3))."""
    return ForkStatus.UNNEEDED


def flow_label_to_udp_sport(flow_label: int) -> int:
    """The UDP source port that hardware gives to a flow (ibv_flow_label_to_udp_sport(3); IBA annex A17).

    20 bits become one of the ports from 49152 on, so that switches spread flows over their ways.  rnic itself
    sends every flow from port 4791, which all processes of a host share.
    """
    low = flow_label & (1 << _PORT_BITS) - 1
    high = flow_label >> _PORT_BITS & 0x3F
    return low ^ high | _LOWEST_PORT
