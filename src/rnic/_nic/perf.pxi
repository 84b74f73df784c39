# SPDX-License-Identifier: Apache-2.0

cdef extern from "perf.h" nogil:
    enum:
        PERF_BUCKETS
        PERF_GROUP_MAX
        PERF_HEARD
        PERF_STREAM
        PERF_SINK
        PERF_LATENCY
        PERF_PINGPONG
        PERF_MEMORY

    struct perf_plan:
        int loop, opcode
        uint32_t size
        bint inlined, serving, both_ways
        uint32_t group
        bint chained
        uint64_t warmup_ns, iterations, ns

    struct perf_histogram:
        uint64_t count, min, max
        double sum, squares
        uint64_t bucket[PERF_BUCKETS]

    struct perf_qp:
        rnic_qp *qp

    struct perf_end:
        const rnic_ops *ops
        perf_qp *qps
        uint32_t num_qps
        rnic_cq *cq
        rnic_comp_channel *channel
        int line
        uint64_t source, target
        uint32_t room, lkey
        uint64_t remote_source, remote_target
        uint32_t rkey, depth, rx_depth, allowance, all_depth, yield_polls
        uint64_t words, remote_words
        uint64_t quiet_ns
        int (*interrupted)(void *) noexcept nogil
        void *owner
        bint tsc
        double stamp_ns
        uint64_t operations, ns
        double peak
        perf_histogram histogram
        rnic_wc bad
        const char *verb
        rnic_err err

    void perf_calibrate(perf_end *)
    int perf_run(perf_end *, const perf_plan *)
    int perf_fill(perf_end *)
    void perf_settle(perf_end *)


cdef int perf_interrupted(void *owner) noexcept with gil:
    cdef PerfEnd end = <PerfEnd>owner
    try:
        PyErr_CheckSignals()
        if end.tick is not None:
            end.tick(end.end.operations)
    except BaseException as error:
        end.signal = error
        return -1
    return 0


@cython.final
cdef class PerfEnd:
    """The measuring loops of `rnic perf`, compiled: one end of connections that are ready to send (perf.h).

    The first `room` bytes of `mr` are sent, the next ones are received, and in 8 bytes for each queue pair behind them a
    peer tells of its receives, of which there were `allowance` at first (perf.h). `remote` is (address, R_Key) of the peer's
    memory, which has the same layout. `line` is a stream socket to the peer. No other code may post to the queue
    pairs or poll the queue. `quiet` is in seconds. With `tsc` the times of samples come from the processor's own
    counter.
    """

    STREAM = PERF_STREAM
    SINK = PERF_SINK
    LATENCY = PERF_LATENCY
    PINGPONG = PERF_PINGPONG
    MEMORY = PERF_MEMORY
    GROUP_MAX = PERF_GROUP_MAX

    cdef perf_end end
    cdef tuple handles
    cdef object signal
    cdef public object tick              #: Called now and then with the operations measured so far, or None.

    def __cinit__(self, qps, CQ cq not None, CompChannel channel, MR mr not None, line, uint32_t room, remote, *,
                  uint32_t depth, uint32_t rx_depth, uint32_t yield_polls, double quiet, uint32_t allowance,
                  bint tsc):
        cdef Py_ssize_t i
        cdef tuple queues = tuple(qps)
        cdef uint64_t needed = 2 * <uint64_t>room
        cdef QP qp
        if allowance:
            needed += 8 * len(queues)
        if not queues or needed > mr.length or not yield_polls:
            raise ValueError("PerfEnd: no queue pairs, too small a region, or no yield_polls")
        self.handles = (*queues, cq, mr) if channel is None else (*queues, cq, mr, channel)
        for one in self.handles:
            (<Handle?>one).need("PerfEnd")
        self.end.qps = <perf_qp *>PyMem_Malloc(len(queues) * sizeof(perf_qp))
        if self.end.qps is NULL:
            raise MemoryError
        memset(self.end.qps, 0, len(queues) * sizeof(perf_qp))
        for i, one in enumerate(queues):
            qp = <QP?>one
            self.end.qps[i].qp = qp.p
        self.end.num_qps, self.end.ops = len(queues), cq.ops
        self.end.cq, self.end.channel = cq.p, NULL if channel is None else channel.p
        self.end.line, self.end.room, self.end.lkey = line.fileno(), room, mr.lkey
        self.end.source, self.end.target = mr.iova, mr.iova + room
        self.end.remote_source, self.end.rkey = remote
        self.end.remote_target = self.end.remote_source + room
        self.end.allowance = allowance
        self.end.words = self.end.source + 2 * <uint64_t>room
        self.end.remote_words = self.end.remote_source + 2 * <uint64_t>room
        self.end.depth, self.end.rx_depth, self.end.yield_polls = depth, rx_depth, yield_polls
        self.end.all_depth = depth * len(queues)
        self.end.quiet_ns = <uint64_t>(quiet * 1e9)
        self.end.interrupted, self.end.owner = perf_interrupted, <void *>self
        self.end.tsc = tsc
        with nogil:
            perf_calibrate(&self.end)

    def __dealloc__(self):
        PyMem_Free(self.end.qps)

    cdef int begin(self) except -1:
        for one in self.handles:
            (<Handle>one).need("PerfEnd")
        for one in self.handles:
            (<Handle>one).calls += 1
        return 0

    cdef int finish(self, int rc) except -1:
        for one in self.handles:
            (<Handle>one).calls -= 1
        if rc >= 0:
            return rc
        if self.signal is not None:
            error, self.signal = self.signal, None
            raise error
        if rc == -ETIMEDOUT:
            raise TimeoutError("nothing moved in time")
        if rc == -ECONNRESET:
            raise ConnectionResetError("the peer closed the line")
        if rc == -EIO:
            raise VerbsError(EIO, explained(&self.end.bad, NULL), "poll_cq")
        return check(rc, (<bytes>self.end.verb).decode(), &self.end.err)

    def fill(self):
        """Post all the receives that fit."""
        cdef int rc
        self.begin()
        with nogil:
            rc = perf_fill(&self.end)
        self.finish(rc)

    def settle(self):
        """Acknowledge completion events, so that the queue can be closed."""
        perf_settle(&self.end)

    @property
    def stamp_ns(self):
        """The nanoseconds that one timestamp takes; each sample includes them."""
        return self.end.stamp_ns

    def run(self, plan):
        """Run a loop. Returns whether the line sent something, or was closed. `plan` is a dict of struct perf_plan.

        Raises TimeoutError if nothing moved for `quiet` seconds, ConnectionResetError if the line is closed,
        VerbsError if a completion or a call failed. Handlers of signals may raise, too.
        """
        cdef perf_plan c = plan
        cdef int rc
        if not 1 <= c.size <= self.end.room or not 1 <= c.group <= min(self.end.depth, <uint32_t>PERF_GROUP_MAX):
            raise ValueError(f"{plan}: size or group")
        self.begin()
        with nogil:
            rc = perf_run(&self.end, &c)
        return self.finish(rc) == PERF_HEARD

    def result(self):
        """(operations, ns, peak operations per second) of the last run."""
        return self.end.operations, self.end.ns, self.end.peak

    def histogram(self):
        """The last run's samples as the fields of struct perf_histogram."""
        return self.end.histogram
