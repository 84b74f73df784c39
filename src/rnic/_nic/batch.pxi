# SPDX-License-Identifier: Apache-2.0
# Many operations and one wait: they are posted in chains, and their ends are looked for, as those of Operations are.

cdef enum:
    CHAIN = 16              # work requests that are posted at a time
    STAGE = 4096            # bytes of a buffer that is copied at most; conn/memory.py
    STEP = 1024             # operations that one step posts; then others have their turn


@cython.final
@cython.freelist(256)
cdef class Result:
    """The outcome of an operation of a batch, there when its block has ended."""

    cdef readonly bint done         #: It has ended.
    cdef readonly object error      #: What went wrong, or None.
    cdef readonly int64_t index     #: Which one of the batch it is, from 0.
    cdef readonly int opcode        #: WROpcode.
    cdef readonly object local      #: The buffer or MR; None: it has none, or has ended.
    cdef readonly object remote     #: The peer's region,
    cdef readonly int64_t offset    #: where in it,
    cdef readonly int64_t length    #: and how many bytes.
    cdef readonly uint64_t compare_add  #: What an atomic adds, or compares with.
    cdef readonly uint64_t swap         #: What COMPARE_SWAP puts in its place.
    cdef readonly bint fenced       #: It waits for READs and atomics before it.
    cdef int64_t number             # as posted
    cdef uint64_t value
    cdef Py_buffer view
    cdef bint exported
    cdef readonly Hold hold         #: Registered memory that has the bytes; None: they are copied.

    def __dealloc__(self):
        if self.exported:
            PyBuffer_Release(&self.view)

    def __repr__(self):
        state = "under way" if not self.done else "done" if self.error is None else "failed"
        return f"<Result {self.index}: {self.what()}, {state}>"

    def what(self):
        """What was to be done, in words."""
        region = getattr(self.remote, "id", "?")
        return f"{WROpcode(self.opcode).name} of {self.length} bytes at {self.offset} of region {region}"

    def result(self):
        """What was there before, of an atomic; None of the others.  Raises what went wrong."""
        if not self.done:
            raise RuntimeError(f"{self.what()} has not ended: results are there when the batch's block has ended")
        if self.error is not None:
            raise self.error
        return self.value if self.is_atomic() else None

    def finish(self, error, uint64_t value=0):
        """It has ended; what came first counts."""
        if self.done:
            return
        self.error, self.value, self.done = error, value, True
        self.hold = self.local = None
        if self.exported:
            self.exported = False
            PyBuffer_Release(&self.view)

    cdef bint is_atomic(self):
        return self.opcode not in (RNIC_WR_RDMA_READ, RNIC_WR_RDMA_WRITE)


def not_shared(region):
    """The ValueError for an operation on a region that the peer does not share now."""
    return ValueError(f"region {region.id} is not shared by the peer, or not any more: next_region() returns the peer's "
                      "regions, and share() one of your own memory, for the peer")


def word(value, name):
    """The 8 bytes that an atomic takes for a number, as an unsigned one; a negative one is its two's complement."""
    try:
        number = PyNumber_Index(value)
    except TypeError:
        raise TypeError(f"{name} is a whole number, not {type(value).__name__}") from None
    if not -(1 << 63) <= number < 1 << 64:
        raise ValueError(f"{name} is {number}; 8 bytes hold -2**63 to 2**64 - 1")
    return number & 0xFFFFFFFFFFFFFFFF


cdef class Chain:
    """Operations in the order of the calls, as many under way as the queue holds.

    `operations`: where they are posted; `find`: a Hold on memory that is registered; `check`: raises what is wrong with
    an operation, or makes a buffer of what is none; `waits`: a call looks a moment for room.
    """

    cdef Operations ops
    cdef object find, check
    cdef bint waits, fenced
    cdef list results
    cdef Py_ssize_t head        # of these, the first that was not posted
    cdef Py_ssize_t seen        # and the first that has not ended
    cdef int64_t given          # operations in all
    cdef readonly Result failed     #: The first that failed, or None.
    cdef readonly bint tired        #: The last step has posted much, and there is more: take another one.
    cdef readonly bint begun        #: The block has begun.
    cdef readonly bint over         #: It has ended: no more operations are taken.

    def __init__(self, Operations operations not None, find, check, bint waits):
        self.ops, self.find, self.check, self.waits = operations, find, check, waits
        self.results = []

    def read(self, local, remote, offset=0):
        """Fill a buffer or an MR from the peer's region, from `offset` on; it is full when the block has ended."""
        return self.move(RNIC_WR_RDMA_READ, local, remote, offset, RNIC_ACCESS_REMOTE_READ)

    def write(self, local, remote, offset=0):
        """Write a buffer or an MR into the peer's region, at `offset`; leave it as it is until the block has ended."""
        return self.move(RNIC_WR_RDMA_WRITE, local, remote, offset, RNIC_ACCESS_REMOTE_WRITE)

    def fence(self):
        """What comes next waits until the READs and atomics before it have ended: a WRITE cannot overtake them."""
        self.fenced = True

    def fetch_add(self, remote, n, offset=0):
        """Add to 8 bytes of the peer's region; result() tells what was there before."""
        return self.atomic(RNIC_WR_ATOMIC_FETCH_AND_ADD, remote, offset, word(n, "n"), 0)

    def compare_swap(self, remote, compare, swap, offset=0):
        """Replace 8 bytes of the peer's region if they are `compare`; result() tells what was there before."""
        return self.atomic(RNIC_WR_ATOMIC_CMP_AND_SWP, remote, offset, word(compare, "compare"), word(swap, "swap"))

    cdef Result atomic(self, int opcode, remote, offset, uint64_t compare_add, uint64_t swap):
        cdef Result r = self.fresh(opcode)
        r.length, r.compare_add, r.swap = RESULT_BYTES, compare_add, swap
        return self.add(r, remote, offset, RNIC_ACCESS_REMOTE_ATOMIC)

    cdef Result move(self, int opcode, local, remote, offset, int access):
        cdef Result r = self.fresh(opcode)
        cdef bint reads = opcode == RNIC_WR_RDMA_READ
        cdef MR mr
        if isinstance(local, MR):
            mr = local
            mr.need("post_send")
            if mr.pd is not self.ops.mr.pd or mr.length > <uint64_t>MOST_OF_ONE or (reads and not mr.can_be_filled()):
                self.check(opcode, local, remote, offset)
            r.length = mr.length
            r.hold = Hold(mr, 0, r.length)
        else:
            if not PyObject_CheckBuffer(local):
                local = self.check(opcode, local, remote, offset)
            try:
                take_buffer(local, &r.view, PyBUF_C_CONTIGUOUS | (PyBUF_WRITABLE if reads else 0), "batch()")
            except Exception:
                local = self.check(opcode, local, remote, offset)
                if len(local):
                    raise
                take_buffer(local, &r.view, PyBUF_C_CONTIGUOUS, "batch()")   # what is empty may be read-only
            r.exported, r.length = True, r.view.len
            self.place(r, local, reads)
        r.local = local
        return self.add(r, remote, offset, access)

    cdef int place(self, Result r, local, bint reads) except -1:
        """Where its bytes are: in registered memory, or, short ones, in a copy."""
        cdef MR mr
        if r.length == 0:
            return 0
        mr = self.ops.places.at(<uintptr_t>r.view.buf, r.length, reads)
        if mr is not None:
            r.hold = Hold(mr, <uintptr_t>r.view.buf - mr.addr, r.length)
        elif r.length > STAGE:
            r.hold = self.find(memoryview(local), reads)
        return 0

    cdef Result fresh(self, int opcode):
        cdef Result r = Result.__new__(Result)
        if not self.begun:
            block = "with" if self.waits else "async with"
            raise RuntimeError(f"the batch has not begun, so nothing would wait: begin a block: {block} conn.batch() as batch")
        if self.over:
            raise RuntimeError("the batch has ended: begin another one")
        r.opcode, r.fenced = opcode, self.fenced
        return r

    cdef Result add(self, Result r, remote, offset, int access):
        if not self.fits(r, remote, offset, access):
            self.check(r.opcode, r.local, remote, offset)
            raise ValueError(f"{r.what()} cannot be")
        r.remote, r.offset, r.index = remote, offset, self.given
        self.results.append(r)
        self.given += 1
        self.fenced = False
        if len(self.results) - self.head >= CHAIN:
            self.work(False)
        return r

    cdef bint fits(self, Result r, remote, offset, int access):
        cdef int64_t at
        try:
            at = PyNumber_Index(offset)
            if not <int>remote.access & access or at < 0 or r.length > MOST_OF_ONE:
                return False
            if r.is_atomic() and (<uint64_t>remote.addr + <uint64_t>at) % RESULT_BYTES:
                return False
            return at <= <int64_t>remote.length - r.length
        except Exception:
            return False

    def begin(self):
        """The block begins."""
        self.begun = True

    def step(self):
        """Post what there is room for, and look for the ends; whether all have ended."""
        self.work(True)
        return self.is_over()

    def rest(self):
        """Those that were not posted; whoever takes them sees to them."""
        rest = self.results[self.head:]
        self.head = len(self.results)
        return rest

    def end(self):
        """The block has ended; the operations go on."""
        self.over = True

    def is_over(self):
        """Whether all have ended; what has is forgotten here, but for the first that failed."""
        cdef Result r
        while self.seen < self.head:
            r = self.results[self.seen]
            if not r.done:
                break
            if r.error is not None and self.failed is None:
                self.failed = r
            self.seen += 1
        if self.seen > STEP:
            del self.results[:self.seen]
            self.head -= self.seen
            self.seen = 0
        return self.seen == len(self.results)

    cdef int work(self, bint to_the_end) except -1:
        cdef Courier way = self.ops.way
        cdef int left = STEP
        cdef int64_t room
        self.tired = False
        if way.busy:
            return 0
        way.busy = True
        try:
            while way.open and way.is_live() and left > 0:
                room = RESULTS - len(self.ops.under_way)
                if self.head < len(self.results) and room > 0:
                    left -= self.post_some(min(room, CHAIN))
                elif self.head == len(self.results) and not to_the_end:
                    break
                elif (to_the_end and self.is_over()) or not self.ops.gather(to_the_end or self.waits):
                    break
        finally:
            way.busy = False
            self.is_over()
        self.tired = left <= 0
        return 0

    cdef int post_some(self, int64_t most) except -1:
        """The next ones, in one chain; how many were seen to."""
        cdef rnic_send_wr wr[CHAIN]
        cdef rnic_sge sge[CHAIN]
        cdef const rnic_send_wr *bad = NULL
        cdef rnic_err err
        cdef Result r
        cdef Courier way = self.ops.way
        cdef int i, rc, n = 0
        cdef Py_ssize_t at = self.head
        while at < len(self.results) and n < most:
            r = self.results[at]
            at += 1
            known = self.ops.known.get(r.remote.id)
            if known is not r.remote and known != r.remote:
                r.finish(not_shared(r.remote))
                continue
            r.number = self.ops.posted + 1 + n
            self.fill(&wr[n], &sge[n], r)
            self.ops.under_way[r.number] = r
            wr[n].next = NULL
            if n:
                wr[n - 1].next = &wr[n]
            n += 1
        if n:
            err.text[0] = 0
            way.qp.calls += 1
            with nogil:
                rc = way.qp.ops.post_send(way.qp.p, wr, &bad, &err)
            way.qp.calls -= 1
            if rc < 0:
                way.open = False
                for i in range(bad - wr, n):
                    r = self.ops.under_way.pop(self.ops.posted + 1 + i)
                    r.finish(VerbsError(-rc, err.text.decode(errors="replace"), "post_send"))
                n = bad - wr
            self.ops.posted += n
        i = at - self.head
        self.head = at
        return i

    cdef int fill(self, rnic_send_wr *wr, rnic_sge *sge, Result r) except -1:
        cdef MR mr
        memset(wr, 0, sizeof(rnic_send_wr))
        wr.wr_id, wr.sg_list, wr.num_sge = <uint64_t>r.number * WR_KINDS + OF_OPERATION, sge, r.length > 0
        wr.opcode, wr.send_flags = r.opcode, RNIC_SEND_SIGNALED | (RNIC_SEND_FENCE if r.fenced else 0)
        if r.is_atomic():
            wr.wr.atomic.remote_addr, wr.wr.atomic.rkey = <uint64_t>r.remote.addr + <uint64_t>r.offset, r.remote.rkey
            wr.wr.atomic.compare_add, wr.wr.atomic.swap = r.compare_add, r.swap
            sge.addr, sge.lkey = <uintptr_t>self.ops.result_of(r.number), self.ops.mr.lkey
        else:
            wr.wr.rdma.remote_addr, wr.wr.rdma.rkey = <uint64_t>r.remote.addr + <uint64_t>r.offset, r.remote.rkey
            if r.hold is not None:
                mr = r.hold.mr
                sge.addr, sge.lkey = mr.iova + r.hold.offset, mr.lkey
            else:
                sge.addr, sge.lkey = <uintptr_t>self.ops.stage_of(r.number), self.ops.stage.lkey
                if r.opcode == RNIC_WR_RDMA_WRITE:
                    memcpy(self.ops.stage_of(r.number), r.view.buf, r.length)
        sge.length = <uint32_t>r.length
        return 0
