# SPDX-License-Identifier: Apache-2.0
"""Streams of messages to a peer that cannot make a sender wait, as iWARP has no RNR.

Each end posts some receives at first; then it tells by WRITEs how many it has posted again, in a word of the
peer's memory for each queue pair, and sends no message that might find none there.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import rnic

TOLD = 1 << 62  # in the wr_id of such a WRITE
WORD = struct.Struct("=Q")


class Allowance:
    """Both ends' receives."""

    def __init__(
        self, qps: Sequence[rnic.QP], mr: rnic.MR, place: int, remote: tuple[int, int], least: int
    ) -> None:
        self.qps, self.mr, self.place = qps, mr, place
        self.addr, self.rkey = remote[0] + place, remote[1]
        self.least = least  # that the peer has posted to each; 0: it can make a sender wait
        self.told = [0] * len(qps)  # receives that were posted again, as the peer knows, or will
        self.telling = [False] * len(qps)

    def permits(self, index: int, messages: int) -> bool:
        """Whether so many messages, of all that were ever sent, find a receive."""
        if not self.least:
            return True
        with memoryview(self.mr.buf) as view:
            (more,) = WORD.unpack_from(view, self.place + WORD.size * index)
        return messages <= self.least + int(more)

    def tell(self, index: int, again: int, few: int) -> None:
        """So many have been posted again; a few more than told are not worth a word."""
        if not self.least or self.telling[index] or again - self.told[index] <= few:
            return
        self.told[index], self.telling[index] = again, True
        place = self.place + WORD.size * (len(self.qps) + index)
        with memoryview(self.mr.buf) as view:
            WORD.pack_into(view, place, again)
        self.qps[index].post_send(
            rnic.SendWR(
                wr_id=TOLD | index,
                opcode=rnic.WROpcode.RDMA_WRITE,
                send_flags=rnic.SendFlags.INLINE | rnic.SendFlags.SIGNALED,
                sg_list=[rnic.SGE(self.mr, offset=place, length=WORD.size)],
                remote_addr=self.addr + WORD.size * index,
                rkey=self.rkey,
            )
        )
