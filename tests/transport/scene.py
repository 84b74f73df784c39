# SPDX-License-Identifier: Apache-2.0
"""Two ends on this host that reach each other by shared memory, and one operation of them at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import rnic
from rnic import SGE, QPAttr, SendFlags, SendWR, WROpcode
from rnic.testing import ALL_ACCESS, End, Options, Pair

SIZE = 1 << 18
HASTY = Options(timeout=14, retry_cnt=7)  # 67 ms, eight times
PATIENT = Options(timeout=20)  # 4 s: what is sent again was lost, on however busy a machine
NOBODY = 65534

Place = rnic.MR | tuple[int, int]  # where a region begins, or an address and an rkey


def request(opcode: WROpcode, pieces: list[SGE], there: Place, **fields: Any) -> SendWR:
    """For a peer's memory; signaled."""
    addr, rkey = there if isinstance(there, tuple) else (there.addr, there.rkey)
    return SendWR(
        opcode=opcode,
        send_flags=SendFlags.SIGNALED,
        sg_list=pieces,
        remote_addr=addr,
        rkey=rkey,
        **fields,
    )


def perform(end: End, opcode: WROpcode, pieces: list[SGE], there: Place, **fields: Any) -> rnic.WC:
    """A request, posted and waited for."""
    end.qp.post_send(request(opcode, pieces, there, **fields))
    (wc,) = end.wait()
    return wc


def arrive(end: End) -> None:
    """Wait until what the end has written is in its peer's memory.

    Of RoCE it is when the WRITE is complete. Of iWARP the socket has taken it then, and a READ tells.
    """
    assert perform(end, WROpcode.RDMA_READ, [], (0, 0)).ok


def send(end: End, pieces: list[SGE]) -> rnic.WC:
    """A message, waited for."""
    end.qp.post_send(SendWR(send_flags=SendFlags.SIGNALED, sg_list=pieces))
    (wc,) = end.wait()
    return wc


def alternate(ctx: rnic.Context, **more: Any) -> QPAttr:
    """A second path, to the first address of that context."""
    there = rnic.AHAttr(ctx.query_gid(1, 0))
    return QPAttr(alt_ah_attr=there, alt_pkey_index=0, alt_port_num=1, alt_timeout=14, **more)


def unreliable(ctx: rnic.Context, stack: ExitStack) -> tuple[rnic.QP, rnic.CompChannel, rnic.MR]:
    """A queue pair of an unreliable connection, the channel of its completions, and memory."""
    pd, channel = stack.enter_context(ctx.alloc_pd()), stack.enter_context(ctx.create_comp_channel())
    cq = stack.enter_context(ctx.create_cq(16, channel))
    init = rnic.QPInitAttr(send_cq=cq, recv_cq=cq, qp_type=rnic.QPType.UC)
    qp = stack.enter_context(pd.create_qp(init))
    return qp, channel, stack.enter_context(pd.alloc_mr(2 << 20, ALL_ACCESS))


@dataclass
class Scene:
    """Two ends in contexts of their own; source is a's memory, target b's."""

    a: End
    b: End
    source: rnic.MR
    target: rnic.MR

    def post(
        self,
        opcode: WROpcode,
        length: int,
        *,
        at: int = 0,
        to: int = 0,
        there: Place | None = None,
        **fields: Any,
    ) -> None:
        """From so far in source to so far in target, or to another place instead."""
        pieces = [SGE(self.source, at, length)]
        if opcode in (WROpcode.SEND, WROpcode.SEND_WITH_IMM):
            wr = SendWR(opcode=opcode, send_flags=SendFlags.SIGNALED, sg_list=pieces, **fields)
        else:
            place = (self.target.addr + to, self.target.rkey) if there is None else there
            wr = request(opcode, pieces, place, **fields)
        self.a.qp.post_send(wr)

    def do(self, opcode: WROpcode, length: int, **fields: Any) -> rnic.WC:
        self.post(opcode, length, **fields)
        (wc,) = self.a.wait()
        return wc

    def counted(self, name: str) -> int:
        return int(self.a.ctx.counters()[name])


@contextmanager
def by_lane(options: Options = HASTY) -> Iterator[Scene]:
    """Nothing has gone between them yet."""
    with Pair(local=True, options=options) as pair:
        made = Scene(pair.a, pair.b, pair.a.memory(SIZE), pair.b.memory(SIZE))
        made.source.buf[:] = os.urandom(SIZE)
        yield made
