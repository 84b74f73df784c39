# SPDX-License-Identifier: Apache-2.0
"""The READs, WRITEs and atomics of a connection: posted when there is room, and ended one by one."""

from __future__ import annotations

from rnic._nic.nic import MR, SGE, Chain, Hold, Result, not_shared
from rnic.conn.device import at_once, let_go_memory
from rnic.conn.memory import MAX_OPS
from rnic.conn.ops import Op
from rnic.conn.parts import Parts
from rnic.endpoint import ClosedError, EndpointError
from rnic.enums import AccessFlags, WROpcode
from rnic.errors import VerbsError

KINDS = 4  # of work requests: the lower bits of a wr_id
RECEIVE, SEND, OP = range(3)


class Operating(Parts):
    """Operations on the peer's memory."""

    def start(self, op: Op) -> None:
        """Post a READ, WRITE or atomic, as soon as there is room."""
        self.courier.shut()
        self.check()
        if self._closing:
            raise ClosedError("the connection is being closed")
        self._queued_ops.append(op)

    def may_operate_short(self) -> bool:
        """Whether the courier may post a READ, WRITE or atomic."""
        return not self._posted_ops and (self.courier.open or self.take_short_way())

    def begin_batch(self) -> None:
        """There is memory for its copies, and it may go the short way."""
        self.check()
        self.operations.stage = self.memory.stage(self.pd)
        self.take_short_way()

    def go_on_with(self, batch: Chain) -> bool:
        """Post what there is room for, and look for the ends; whether all have ended."""
        if self.courier.open or self.take_short_way():
            return batch.step()
        for result in batch.rest():
            try:
                self.start(Op.of(result))
            except EndpointError as error:
                result.finish(error)
        return batch.is_over()

    def adopt(self, op: Op) -> None:
        """Take over an operation that the courier posted and that was not over soon."""
        short = self.operations
        op.number, op.posted, op.staged = short.pending, True, short.staged == short.pending
        if (left := self._posted_ops.get(op.number)) is not None:
            op.hold = left.hold
        self._posted_ops[op.number] = op
        short.pending = 0
        self.courier.shut()

    # ------------------------------------------------------------ posting

    def _post_ops(self) -> None:
        while self._queued_ops and len(self._posted_ops) < MAX_OPS and not self.ended:
            op = self._queued_ops[0]
            if not op.posted and not op.done:
                self._post_op(op)
            self._queued_ops.popleft()

    def _post_op(self, op: Op) -> None:
        if op.pieces is None and not self.raw and self.protocol.regions.get(op.remote.id) != op.remote:
            self._op_done(op, not_shared(op.remote))
            return
        try:
            op.number = self.operations.posted + 1
            at_once(self.qp.post_send, op.wr(op.number * KINDS + OP, self._local_side(op)), self._took_op)
        except VerbsError as error:
            self._op_done(op, error)
        else:
            self._note_op()

    def _note_op(self) -> None:
        if self._took_op:
            op = self._queued_ops[0]
            self._posted_ops[op.number] = op
            self.operations.posted, op.posted = op.number, True
            self._took_op.clear()

    def _local_side(self, op: Op) -> list[SGE]:
        if op.pieces is not None:
            return op.pieces
        if op.local is None:
            return [self.memory.result_sge(op.number)]
        if isinstance(op.local, MR):
            piece = SGE(op.local)
            op.hold = op.hold or Hold(op.local, 0, piece.length)
            return [piece]
        if not op.local:  # no region is empty
            return []
        op.hold = op.hold or self.pool.find(op.local, op.opcode is WROpcode.RDMA_READ)
        if op.hold is not None:
            return [op.hold.sge]
        if op.own_mr is None:
            access = AccessFlags.LOCAL_WRITE if op.opcode is WROpcode.RDMA_READ else AccessFlags(0)
            op.own_mr = self.pd.reg_mr(op.local, access)
        return [SGE(op.own_mr)]

    # ------------------------------------------------------------ the end of an operation

    def _op_done(self, op: Op | Result, error: Exception | None) -> None:
        if isinstance(op, Result):
            self.operations.end(op, error)
            return
        if op.own_mr is not None:
            let_go_memory(op.own_mr)
            op.own_mr = None
        if op.staged:
            if error is None and isinstance(op.local, memoryview):
                op.fill(self.memory.staged(len(op.local)))
            self.operations.staged, op.staged = 0, False
        if op.posted and op.local is None and op.pieces is None and not op.done and error is None:
            op.value = self.memory.result(op.number)
        op.finish(error)
        self._posted_ops.pop(op.number if op.posted else 0, None)

    def _fail_ops(self) -> None:
        error = self.error or ClosedError("the connection is closed")
        for op in (*self._posted_ops.values(), *self._queued_ops):
            self._op_done(op, error)
        self._queued_ops.clear()
