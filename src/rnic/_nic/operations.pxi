# SPDX-License-Identifier: Apache-2.0
# READs, WRITEs and atomics by the short way: posted, and over soon, without a step of the interpreter in between.

cdef enum:
    RESULT_BYTES = 8        # conn/memory.py
    RESULTS = 64

cdef int64_t MOST_OF_ONE = <int64_t>1 << 31   # bytes of a READ or WRITE (IBA 9.7.2)


def blank(Py_ssize_t size):
    """Bytes that nobody has written yet, and where they lie: for a READ to fill before anybody sees them."""
    found = PyBytes_FromStringAndSize(NULL, size)
    return found, <uintptr_t>PyBytes_AS_STRING(found)


@cython.final
cdef class Operations:
    """Posts READs, WRITEs and atomics to a Courier's queue, and looks for their ends as it does for messages.

    What it cannot do is left to the long way: then nothing was done, or the operation is `pending`.
    """

    cdef Courier way
    cdef MR mr
    cdef uint8_t *base
    cdef Places places          # memory that is registered
    cdef object find            # a Hold on memory that is registered for this if need be; None: it has to be for the call alone
    cdef dict under_way         # those that were posted and have not ended, by number: of a batch, and of the long way
    cdef public MR stage        #: Where the short ones of a batch are copied, in the order of their numbers.
    cdef dict known             # the peer's regions that may be used now, by id
    cdef int64_t results_at, staged_at, staged_size
    cdef public int64_t posted  #: How many were, here or the long way: the number of the last one.
    cdef public int64_t pending     #: The one that was posted here, and was not over soon; who takes it puts 0 here.
    cdef public int64_t staged      #: The one that goes through the buffer for copies; 0: none.

    def __cinit__(self, Courier way not None, MR mr not None, dict known not None, Places places not None, find,
                  dict under_way not None, *, int64_t results_at, int64_t staged_at, int64_t staged_size):
        """`known`: the peer's regions, by id; in the memory: results of atomics, and a buffer for copies."""
        self.way, self.mr, self.known, self.places, self.find = way, mr, known, places, find
        self.under_way = under_way
        self.base = <uint8_t *><uintptr_t>mr.addr
        self.results_at, self.staged_at, self.staged_size = results_at, staged_at, staged_size

    def atomic(self, int opcode, remote, offset, uint64_t compare_add, uint64_t swap):
        """What was there before; None: it is `pending`, or, where that is 0, nothing was done."""
        cdef uint8_t *found = self.result_of(self.posted + 1)
        cdef rnic_send_wr wr
        memset(&wr, 0, sizeof(wr))
        if not self.aims(&wr, remote, offset, RESULT_BYTES, RNIC_ACCESS_REMOTE_ATOMIC):
            return None
        wr.wr.atomic.compare_add, wr.wr.atomic.swap = compare_add, swap
        if wr.wr.atomic.remote_addr % RESULT_BYTES:
            return None
        wr.opcode = opcode
        if not self.operate(&wr, <uintptr_t>found, RESULT_BYTES, self.mr.lkey, None, None):
            return None
        return (<uint64_t *>found)[0]

    cdef uint8_t *result_of(self, int64_t number):
        return self.base + self.results_at + number % RESULTS * RESULT_BYTES

    cdef uint8_t *stage_of(self, int64_t number):
        return <uint8_t *><uintptr_t>self.stage.addr + number % RESULTS * STAGE

    def end(self, Result r, error):
        """One of a batch has ended."""
        cdef uint8_t *found
        self.under_way.pop(r.number, None)
        if self.staged == r.number:     # an exception has kept it from being adopted
            self.staged = 0
        if error is not None or r.done:
            r.finish(error)
        elif r.is_atomic():
            found = self.result_of(r.number)
            r.finish(None, (<uint64_t *>found)[0])
        else:
            if r.opcode == RNIC_WR_RDMA_READ and r.hold is None and r.length:
                memcpy(r.view.buf, self.stage_of(r.number), r.length)
            r.finish(None)

    cdef int gather(self, bint wait) except -1:
        """Take the ends that are there, of a batch; `wait`: look a moment for the first.  How many."""
        cdef rnic_wc wc
        cdef int found = 0
        while self.under_way and self.way.take(&wc, False, wait and not found) > 0:
            r = self.under_way.get(<int64_t>(wc.wr_id // WR_KINDS)) if wc.wr_id % WR_KINDS == OF_OPERATION else None
            if wc.status == RNIC_WC_SUCCESS and isinstance(r, Result):
                self.way.ledger.heard = True
                self.end(r, None)
                found += 1
            elif self.way.is_noted(&wc):
                self.way.return_credits()
            elif not self.way.is_taken(&wc, False):
                break
        return found

    def write(self, local, remote, offset):
        """Writes an MR, registered memory, or a copy of a short buffer.  True: it is there; else as atomic()."""
        cdef rnic_send_wr wr
        memset(&wr, 0, sizeof(wr))
        wr.opcode = RNIC_WR_RDMA_WRITE
        return self.move(&wr, local, remote, offset, RNIC_ACCESS_REMOTE_WRITE)

    def read(self, local, remote, offset):
        """Fills an MR, registered memory, or a short buffer by way of a copy.  True: it is full; else as atomic()."""
        cdef rnic_send_wr wr
        memset(&wr, 0, sizeof(wr))
        wr.opcode = RNIC_WR_RDMA_READ
        return self.move(&wr, local, remote, offset, RNIC_ACCESS_REMOTE_READ)

    cdef move(self, rnic_send_wr *wr, local, remote, offset, int access):
        cdef Py_buffer view
        cdef bint reads = wr.opcode == RNIC_WR_RDMA_READ
        if isinstance(local, MR):
            if (<MR>local).length > <uint64_t>MOST_OF_ONE or (reads and not (<MR>local).can_be_filled()):
                return None
            return self.operate_on(wr, local, 0, (<MR>local).length, None, remote, offset, access)
        try:
            if not PyObject_CheckBuffer(local) and hasattr(local, "__dlpack__"):
                local = Tensor(local)
            take_buffer(local, &view, PyBUF_C_CONTIGUOUS | (PyBUF_WRITABLE if reads else 0), "the call")
        except Exception:   # the long way raises what is right
            return None
        try:
            return self.move_view(wr, local, &view, remote, offset, access, reads)
        finally:
            PyBuffer_Release(&view)

    cdef move_view(self, rnic_send_wr *wr, local, Py_buffer *view, remote, offset, int access, bint reads):
        cdef MR mr = self.places.at(<uintptr_t>view.buf, view.len, reads) if view.len else None
        cdef Hold hold = None
        if mr is not None:
            return self.operate_on(wr, mr, <uintptr_t>view.buf - mr.addr, view.len, None, remote, offset, access)
        if view.len > self.staged_size:
            data = memoryview(local)    # kept until the end: such a registration keeps nobody from freeing the buffer
            if self.aims(wr, remote, offset, view.len, access):
                hold = self.find(data, reads)
            return None if hold is None else self.operate_on(wr, hold.mr, 0, view.len, data, remote, offset, access)
        if not self.is_staged(view.len) or not self.aims(wr, remote, offset, view.len, access):
            return None
        if not reads:
            memcpy(self.base + self.staged_at, view.buf, view.len)
        if not self.operate_staged(wr, view.len):
            return None
        if reads:
            memcpy(view.buf, self.base + self.staged_at, view.len)
        return True

    cdef operate_on(self, rnic_send_wr *wr, MR mr, uint64_t at, int64_t length, data, remote, offset, int access):
        if mr.pd is not self.mr.pd or not mr.live or not self.aims(wr, remote, offset, length, access):
            return None
        return True if self.operate(wr, mr.iova + at, length, mr.lkey, Hold(mr, at, length), data) else None

    cdef bint is_staged(self, int64_t length):
        """There is a buffer for a copy."""
        return 0 < length <= self.staged_size and self.staged == 0

    cdef bint operate_staged(self, rnic_send_wr *wr, int64_t length) except -1:
        """The copy is in use until the end of the operation, also when an exception hides that it was posted."""
        cdef bint done
        self.staged = self.posted + 1
        done = self.operate(wr, <uintptr_t>(self.base + self.staged_at), length, self.mr.lkey, None, None)
        if not self.pending:
            self.staged = 0
        return done

    cdef bint aims(self, rnic_send_wr *wr, remote, offset, int64_t length, int access):
        """The bytes are the peer's region's, which allows that."""
        cdef int64_t at
        cdef int granted
        if not self.way.open or self.way.busy or self.pending:
            return False
        try:
            granted = remote.access
            if self.known.get(remote.id) is not remote or not granted & access:
                return False
            at = PyNumber_Index(offset)
            if at < 0 or length > MOST_OF_ONE or at > <int64_t>remote.length - length:
                return False
            wr.wr.rdma.remote_addr, wr.wr.rdma.rkey = <uint64_t>remote.addr + <uint64_t>at, remote.rkey
            wr.wr.atomic.rkey = remote.rkey
        except Exception:
            return False
        return True

    cdef bint operate(self, rnic_send_wr *wr, uint64_t addr, int64_t length, uint32_t lkey, Hold hold, data) except -1:
        """Posts it and looks for its end.  False: it is `pending`, or was not posted.

        One that is pending is among those under way, with what it uses, also when an exception hides it.
        """
        cdef rnic_sge sge
        cdef rnic_wc wc
        cdef int64_t number = self.posted + 1
        sge.addr, sge.length, sge.lkey = addr, <uint32_t>length, lkey
        wr.wr_id, wr.sg_list, wr.num_sge = <uint64_t>number * WR_KINDS + OF_OPERATION, &sge, 1
        wr.send_flags = RNIC_SEND_SIGNALED
        self.way.busy = True
        try:
            if not self.way.is_posted(wr):
                return False
            self.posted = self.pending = number
            while self.way.take(&wc, False, True) > 0:
                if wc.wr_id == wr.wr_id and wc.status == RNIC_WC_SUCCESS:
                    self.pending = 0
                    return True
                if not self.way.is_noted(&wc) and not self.way.is_taken(&wc, False):
                    break
        finally:
            self.way.busy = False
            if self.pending == number:
                self.under_way[number] = left_behind(number, hold, data)
        return False


cdef Result left_behind(int64_t number, Hold hold, data):
    """An operation of which only what it uses is known."""
    cdef Result r = Result.__new__(Result)
    r.opcode, r.number, r.hold, r.local = RNIC_WR_RDMA_WRITE, number, hold, data
    return r
