# SPDX-License-Identifier: Apache-2.0
# READs, WRITEs and atomics in the peer's memory: what is refused, where their bytes lie, and their ends.

cdef enum:
    STAGED = 16384          # bytes of a buffer that is copied for an operation; longer ones are registered
    STAGES = 262144         # bytes for such copies
    CHAIN = 16              # operations that are posted at a time


cdef int64_t longest = <int64_t>1 << 31
LONGEST = longest
"""Bytes of one READ or WRITE at most (IBA 9.7.2)."""


cdef uint64_t word(value, str name) except? 1:
    """The 8 bytes that an atomic takes for a number, as an unsigned one; a negative one is its two's complement."""
    try:
        number = PyNumber_Index(value)
    except TypeError:
        raise TypeError(f"{name} is a whole number, not {type(value).__name__}") from None
    if not -(1 << 63) <= number < 1 << 64:
        raise ValueError(f"{name} is {number}; 8 bytes hold -2**63 to 2**64 - 1")
    return number & 0xFFFFFFFFFFFFFFFF


@cython.final
@cython.freelist(256)
cdef class Result:
    """A READ, WRITE or atomic: its outcome is there when it is `done`."""

    cdef msg_op op
    cdef readonly object local      #: The buffer or MR; None: it has none, or has ended.
    cdef readonly object remote     #: The peer's region,
    cdef readonly int64_t offset    #: where in it,
    cdef readonly int64_t length    #: and how many bytes.
    cdef readonly int64_t index     #: Which one of a batch it is, from 0.
    cdef readonly object error      #: What went wrong, or None.
    cdef readonly bint told         #: result() has raised it.
    cdef readonly bint done         #: It has ended.
    cdef Hold hold                  # registered memory that has the bytes; None: they are copied
    cdef Py_buffer view
    cdef bint exported
    cdef uint8_t *stage             # their copy; NULL: there is none
    cdef uint64_t staged_end        # where that ends, counted from the first copy
    cdef rnic_sge *pieces           # of carry_out()

    def __dealloc__(self):
        PyMem_Free(self.pieces)
        if self.exported:
            PyBuffer_Release(&self.view)

    def __repr__(self):
        state = "under way" if not self.done else "done" if self.error is None else "failed"
        return f"<Result {self.index}: {self.what()}, {state}>"

    def what(self):
        """What was to be done, in words."""
        region = getattr(self.remote, "id", "?")
        return f"{WROpcode(self.op.opcode).name} of {self.length} bytes at {self.offset} of region {region}"

    @property
    def opcode(self):
        """WROpcode."""
        return self.op.opcode

    @property
    def status(self):
        """Once it has ended: WCStatus; negative, an errno: it was not posted."""
        return self.op.status

    @property
    def vendor_err(self):
        """Once it has ended: VendorErr."""
        return self.op.vendor_err

    def result(self):
        """What was there before, of an atomic; None of the others.  Raises what went wrong."""
        if not self.done:
            raise RuntimeError(f"{self.what()} has not ended: results are there when the batch's block has ended")
        if self.error is not None:
            self.told = True
            raise self.error
        return self.op.found if self.is_atomic() else None

    cdef bint is_atomic(self):
        return self.op.opcode == RNIC_WR_ATOMIC_FETCH_AND_ADD or self.op.opcode == RNIC_WR_ATOMIC_CMP_AND_SWP

    cpdef finish(self, error=None):
        """It has ended; what comes first counts."""
        if self.done:
            return
        if error is None and self.stage is not NULL and self.op.opcode == RNIC_WR_RDMA_READ:
            memcpy(self.view.buf, self.stage, self.length)
        self.error, self.done = error, True
        self.hold = self.local = None
        if self.exported:
            self.exported = False
            PyBuffer_Release(&self.view)


@cython.no_gc_clear
cdef class Operating(Messaging):
    """Its operations on the peer's memory."""

    cdef list failed_ones       # those that have failed, for failures()
    cdef Places places
    cdef object find
    cdef MR stage               # where the copies are
    cdef uint64_t staged_in, staged_out     # bytes of copies that were made, and that are free again, in their order

    def __cinit__(self, *_, Places places=None, find=None, **more):
        """rdma() needs `places`, memory that is registered, and `find(addr, length, reads)`, which registers memory."""
        self.failed_ones, self.places, self.find = [], places, find

    cdef int gather(self) except -1:
        """Operations that have ended are their callers' again."""
        cdef msg_op *op = msg_done(self.p)
        while op is not NULL:
            one = <Result>op.owner
            Py_DECREF(one)
            if op.status == RNIC_WC_SUCCESS:
                one.finish()
                if one.stage is not NULL:
                    self.staged_out = one.staged_end
            else:
                self.failed_ones.append(one)
            op = msg_done(self.p)
        return Messaging.gather(self)

    def rdma(self, int opcode, local, remote, offset, bint fence=False):
        """Queue a READ or WRITE between a buffer, or an MR, and the peer's region; pump() posts it.

        None: nothing was done: the connection is closed, or `local` cannot be this, or is no buffer of values in C
        order.
        """
        cdef Result one = Result.__new__(Result)
        cdef bint reads = opcode == RNIC_WR_RDMA_READ
        cdef uint64_t length
        cdef MR mr
        if self.is_closed():
            return None
        if isinstance(local, MR):
            mr = <MR>local
            if mr.pd is not self.mr.pd or (reads and not mr.can_be_filled()):
                return None
            length = mr.length
        else:
            try:
                take_buffer(local, &one.view, PyBUF_C_CONTIGUOUS, "the call")
            except (BufferError, TypeError, ValueError):
                return None
            one.exported, length = True, one.view.len
            if reads and one.view.readonly and length:
                return None
        self.aim_at(one, opcode, remote, offset, length, fence)
        one.local = local
        if one.exported:
            self.place(one, reads)
        else:
            mr.need("post_send")
            self.lie_in(one, mr, 0)
        return self.queue(one)

    def atomic(self, int opcode, remote, offset, compare_add, swap=0, bint fence=False):
        """Queue an atomic operation on 8 bytes of the peer's region; None: the connection is closed."""
        cdef Result one = Result.__new__(Result)
        one.op.compare_add = word(compare_add, "n" if opcode == RNIC_WR_ATOMIC_FETCH_AND_ADD else "compare")
        one.op.swap = word(swap, "swap")
        if self.is_closed():
            return None
        self.aim_at(one, opcode, remote, offset, MSG_RESULT, fence)
        return self.queue(one)

    cdef bint is_closed(self):
        return msg_state(self.p) >= MSG_CLOSED or msg_is_closing(self.p)

    def carry_out(self, SendWR wr not None):
        """Queue a READ or WRITE as the request has it, in memory that no region of the peer names; pump() posts it."""
        cdef Result one = Result.__new__(Result)
        cdef Py_ssize_t i, n = len(wr.sg)
        self.need("post_send")
        if wr.c.opcode != RNIC_WR_RDMA_READ and wr.c.opcode != RNIC_WR_RDMA_WRITE:
            raise ValueError(f"{wr!r} is no READ or WRITE")
        one.pieces = <rnic_sge *>PyMem_Malloc((n or 1) * sizeof(rnic_sge))
        if one.pieces is NULL:
            raise MemoryError
        for i in range(n):
            one.pieces[i] = wr.sges[i]
            one.length += wr.sges[i].length
        one.local = wr.sg
        one.op.opcode, one.op.fence = wr.c.opcode, (wr.c.send_flags & RNIC_SEND_FENCE) != 0
        one.op.anywhere, one.op.addr, one.op.rkey, one.op.owner = True, wr.remote_addr, wr.rkey, <void *>one
        one.op.pieces, one.op.pieces_n = one.pieces, n
        return self.queue(one)

    cdef int aim_at(self, Result one, int opcode, remote, offset, uint64_t length, bint fence) except -1:
        """Where in the peer's memory: what the peer would refuse, which would end the connection, is refused here."""
        cdef bint reads = opcode == RNIC_WR_RDMA_READ, writes = opcode == RNIC_WR_RDMA_WRITE
        cdef int huge = 0, needs = (RNIC_ACCESS_REMOTE_READ if reads else RNIC_ACCESS_REMOTE_WRITE if writes else
                                    RNIC_ACCESS_REMOTE_ATOMIC)
        cdef uint64_t size
        cdef int granted
        try:
            size, granted, one.op.addr, one.op.region, one.op.rkey = (
                remote.length, remote.access, remote.addr, remote.id, remote.rkey)
        except AttributeError:
            raise TypeError(f"{WROpcode(opcode).name}: remote is a Region, as next_region() returns it, not "
                            f"{type(remote).__name__}") from None
        number = PyNumber_Index(offset)
        one.offset = PyLong_AsLongLongAndOverflow(number, &huge)
        if length > <uint64_t>longest:
            raise ValueError(f"{length} bytes are more than {LONGEST}, the most of one operation: use several")
        if huge or one.offset < 0 or <uint64_t>one.offset + length > size:
            raise ValueError(f"{length} bytes at {number} are beyond region {remote.id} of {size} bytes")
        if not granted & needs:
            raise ValueError(f"region {remote.id} grants {remote.access.name or 'nothing'}, and "
                             f"{WROpcode(opcode).name} needs {AccessFlags(needs).name}")
        one.op.addr += <uint64_t>one.offset
        if not reads and not writes and one.op.addr % MSG_RESULT:
            raise ValueError(f"{WROpcode(opcode).name} needs an address that is a multiple of 8, not offset {number}")
        self.need("post_send")
        one.op.opcode, one.op.fence, one.op.owner, one.remote, one.length = opcode, fence, <void *>one, remote, length
        return 0

    cdef Result queue(self, Result one):
        """From here on nothing can fail but the operation."""
        if one.stage is not NULL:
            if one.op.opcode == RNIC_WR_RDMA_WRITE:
                memcpy(one.stage, one.view.buf, one.length)
            self.staged_in = one.staged_end
        Py_INCREF(one)
        msg_operate(self.p, &one.op)
        self.gather()
        return one

    cdef int lie_in(self, Result one, MR mr, uint64_t at) except -1:
        one.hold = Hold(mr)
        self.name_bytes(one, mr, at)
        return 0

    cdef void name_bytes(self, Result one, MR mr, uint64_t at):
        one.op.sge.addr, one.op.sge.length, one.op.sge.lkey = mr.iova + at, <uint32_t>one.length, mr.lkey

    cdef int place(self, Result one, bint reads) except -1:
        """Where its bytes are: in registered memory, or, short ones, in a copy."""
        cdef MR mr
        if one.length == 0:
            return 0
        mr = self.places.at(<uintptr_t>one.view.buf, one.length, reads)
        if mr is not None:
            self.lie_in(one, mr, <uintptr_t>one.view.buf - mr.addr)
        elif not self.copies(one):
            self.lie_in(one, self.find(<uintptr_t>one.view.buf, one.length, reads), 0)
        return 0

    cdef bint copies(self, Result one) except -1:
        """Whether there is room for a copy; it is used in the order of the operations."""
        cdef uint64_t length = (one.length + 7) // 8 * 8, at = self.staged_in % STAGES, skipped = 0
        if one.length > STAGED:
            return False
        if self.stage is None:
            self.stage = self.mr.pd.alloc_mr(STAGES, RNIC_ACCESS_LOCAL_WRITE)
            self.stage.quiet = True
        if at + length > STAGES:
            skipped, at = STAGES - at, 0
        if self.staged_in + skipped + length - self.staged_out > STAGES:
            return False
        one.stage, one.staged_end = <uint8_t *><uintptr_t>self.stage.addr + at, self.staged_in + skipped + length
        self.name_bytes(one, self.stage, at)
        return True

    def failures(self):
        """Operations that have failed and that nobody has finished: whoever knows why does."""
        self.failed_ones = [one for one in self.failed_ones if not one.done]
        return self.failed_ones

    def completion_of(self, Result one not None):
        """The completion (WC) of an operation that has failed."""
        cdef rnic_wc wc
        memset(&wc, 0, sizeof(wc))
        wc.status, wc.vendor_err, wc.qp_num = one.op.status, one.op.vendor_err, self.qp.qp_num
        return completion(self.cq.causes, self.cq.ctx.p, &wc)

    @property
    def operates(self):
        """Operations are queued or under way."""
        return msg_operates(self.p)

    def release(self):
        """The queue pair is gone: give up what is under way; the memory for copies, to be deregistered, or None."""
        self.alone("release()")
        msg_release(self.p)
        self.gather()
        self.buffers.clear()
        stage, self.stage = self.stage, None
        return stage


@cython.final
cdef class Chain:
    """Operations that are posted some at a time, and whose ends are waited for together."""

    cdef object machine
    cdef list under_way     # some may have ended
    cdef int64_t given
    cdef public bint fenced         #: The next one is to wait for READs and atomics before it.
    cdef readonly Result failed     #: The first operation that failed and says why, or that failed; None: none has.
    cdef bint flushed               # it does not say why

    def __init__(self, machine):
        self.machine, self.under_way = machine, []

    def add(self, Result one not None):
        """Add one, which is queued; returns it."""
        one.index, self.given, self.fenced = self.given, self.given + 1, False
        self.under_way.append(one)
        if self.given % CHAIN == 0:
            self.machine.pump()
            self.is_over()
        return one

    cpdef bint is_over(self):
        """Whether all have ended; what has is forgotten here, but for `failed`."""
        cdef Py_ssize_t n = 0
        while n < len(self.under_way) and (<Result>self.under_way[n]).done:
            self.note(self.under_way[n])
            n += 1
        del self.under_way[:n]
        return not self.under_way

    cdef void note(self, Result one):
        """Note the first that failed; one that was only flushed gives way to a later one that says why."""
        cdef bint says_why = one.op.status != RNIC_WC_WR_FLUSH_ERR
        if one.error is not None and (self.failed is None or (says_why and self.flushed)):
            self.failed, self.flushed = one, not says_why
