# SPDX-License-Identifier: Apache-2.0
"""Counters that flow rules add to."""

from rnic._nic import nic
from rnic.enums import CounterDescription

__all__ = ["FlowCounters"]


class FlowCounters(nic.FlowCounters):
    """Counters that flow rules add to (ibv_create_counters(3)); Context.create_flow_counters() makes them.

    A rule counts with them when SpecActionCount names them; several rules may.  close() raises EBUSY while
    one does.
    """

    __slots__ = ()

    def attach_counters_point_flow(self, counter_desc: CounterDescription, index: int = 0) -> None:
        """Let read() say at an index how many frames, or bytes, there were.

        ibv_attach_counters_point_flow(3), without a flow.  Raises VerbsError: EINVAL for an index that is
        taken, or beyond 15.
        """
        self.raw_attach(counter_desc, index)

    def read(self, ncounters: int = 1) -> list[int]:
        """The first values, 0 where nothing is attached (ibv_read_counters(3)).

        Raises VerbsError: EINVAL for more than 16.
        """
        return self.raw_read(ncounters)
