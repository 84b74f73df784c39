# SPDX-License-Identifier: Apache-2.0
# One end of a connection: src/msg, with the messages as bytes and the buffers of Python's objects.
#
# Each change of state is one call of the machine.  So no signal's handler and no MemoryError of the interpreter can come
# in the middle of one.

cdef extern from "msg/msg.h" nogil:
    enum:
        MSG_RESULT
        MSG_CLOSED
    int64_t MSG_NEVER

    struct msg:
        pass

    struct msg_config:
        uint32_t receives, receive_size, send_size, max_regions
        uint64_t max_message, max_backlog, announce
        int64_t idle

    struct msg_peer:
        uint32_t receives, receive_size, max_regions, capabilities, access
        uint64_t max_message
        int version

    struct msg_memory:
        uint8_t *base
        uint32_t lkey, bounces
        uint64_t sends_at, results_at

    struct msg_error_t "msg_error":
        int kind
        uint32_t reason
        char text[256]

    struct msg_region:
        uint32_t id, rkey, access
        uint64_t addr, length, serial
        const uint8_t *array
        uint32_t array_bytes

    struct msg_in:
        msg_in *next
        uint64_t tag, bytes
        uint8_t *data
        void *object

    struct msg_op:
        int opcode
        bint fence, anywhere
        uint32_t region, rkey
        uint64_t addr, compare_add, swap
        rnic_sge sge
        rnic_sge *pieces
        int pieces_n
        void *owner
        int state, status
        uint32_t vendor_err
        uint64_t found

    struct msg_statistics:
        int state
        uint64_t messages_sent, messages_received, sends, receives, credit_sends, probes, credits, queued, backlog, held
        uint64_t partial

    msg *msg_open(const msg_config *, const msg_memory *, const msg_hooks *, rnic_qp *, rnic_cq *, rnic_cq *)
    void msg_release(msg *)
    void msg_free(msg *)
    int msg_post_receives(msg *, rnic_err *)
    void msg_greet(msg *, const msg_peer *, int64_t)
    void msg_greet_raw(msg *)
    void msg_establish(msg *)
    bint msg_established(const msg *)
    int msg_say_hello(msg *, const void *, uint32_t, uint32_t, int64_t, rnic_err *)
    int msg_hear_hello(msg *, int64_t, const uint8_t **, uint32_t *)
    bint msg_may_leave(const msg *)
    int msg_pump(msg *, int64_t)
    int msg_poll(msg *)
    int msg_poll_now(msg *)
    const rnic_wc *msg_failed(const msg *)
    int64_t msg_deadline(const msg *)
    int msg_send(msg *, const void *, uint64_t, uint64_t, uint64_t *)
    uint64_t msg_left(const msg *)
    uint64_t msg_handle(const msg *)
    uint64_t msg_sent(const msg *)
    bint msg_is_sending(const msg *)
    bint msg_is_closing(const msg *)
    bint msg_has_fetch_error(const msg *)
    bint msg_take_back(msg *, uint64_t)
    msg_in *msg_find(const msg *, const uint64_t *)
    void msg_take(msg *, msg_in *)
    void msg_drop(msg *, msg_in *)
    int msg_put_back(msg *, uint8_t *, uint64_t, uint64_t, void *)
    void msg_want(msg *, bint, bint)
    void msg_target(msg *, void *, uint64_t)
    int msg_fetch_error(msg *)
    uint64_t msg_offered(const msg *)
    bint msg_is_landing(const msg *)
    int msg_share(msg *, msg_region *)
    int msg_withdraw(msg *, uint32_t)
    uint32_t msg_released(const msg *)
    const msg_region *msg_regions(const msg *, uint32_t *)
    uint64_t msg_changes(const msg *)
    void msg_operate(msg *, msg_op *)
    msg_op *msg_done(msg *)
    bint msg_operates(const msg *)
    void msg_close(msg *, int64_t, int64_t)
    void msg_abort(msg *, const char *)
    void msg_lost(msg *, const char *)
    void msg_disconnected(msg *, const void *, uint32_t)
    uint32_t msg_farewell(const msg *, uint8_t *)
    void msg_fail_operations(msg *)
    int msg_state(const msg *)
    const msg_error_t *msg_error(const msg *)
    uint64_t msg_undelivered(const msg *)
    bint msg_heard_goodbye(const msg *)
    bint msg_is_spent(const msg *)
    void msg_count(const msg *, msg_statistics *)

cdef extern from "msg/msg.h":    # which call back with the interpreter's lock
    ctypedef bint c_bool "bool"
    struct msg_hooks:
        void *arg
        uint8_t *(*make)(void *, uint64_t, void **) noexcept
        uint8_t *(*grow)(void *, uint64_t, void **) noexcept
        void (*drop)(void *, void *) noexcept
        void (*copy)(void *, void *, const void *, uint64_t) noexcept
        void (*later)(void *, rnic_mr *) noexcept
        c_bool (*asks)(void *, uint64_t) noexcept

cdef extern from "Python.h":
    ctypedef struct PyObject
    PyObject *new_bytes "PyBytes_FromStringAndSize" (const char *, Py_ssize_t)
    char *start_of "PyBytes_AS_STRING" (PyObject *)
    int _PyBytes_Resize(PyObject **, Py_ssize_t)
    void PyErr_Clear()
    void Py_INCREF(object)
    void Py_DECREF(object)
    void Py_XDECREF(PyObject *)
    long long PyLong_AsLongLongAndOverflow(object, int *) except? -1

cdef extern from "<time.h>" nogil:
    int CLOCK_MONOTONIC
    int clock_gettime(int, timespec *)

cdef enum:
    FAREWELL = 148          # bytes of private data in a DREQ or REJ, at most
    STAGED = 16384          # bytes of a buffer that is copied for an operation; longer ones are registered
    STAGES = 262144         # bytes for such copies
    LONGEST_NS = 250000000  # a signal that comes just ahead of a sleep does not end the sleep, which therefore is short
    CHAIN = 16              # operations that are posted at a time
    ROUNDS = 4              # how often one step looks again, so that a busy peer does not keep a loop from other work
    LARGE = 4096            # bytes that are copied without the GIL

cdef enum:                  # what a call waits for
    ANY_MESSAGE
    TAGGED
    DEPARTURE
    OUTCOME


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


cdef uint8_t *make_message(void *arg, uint64_t length, void **object) noexcept:
    cdef PyObject *made = new_bytes(NULL, <Py_ssize_t>length)
    if made is NULL:
        PyErr_Clear()
        return NULL
    object[0] = made
    return <uint8_t *>start_of(made)


cdef uint8_t *grow_message(void *arg, uint64_t length, void **object) noexcept:
    """A larger one, with the same bytes: _PyBytes_Resize() would give back the old one when there is no memory."""
    cdef PyObject *old = <PyObject *>object[0]
    cdef PyObject *made = new_bytes(NULL, <Py_ssize_t>length)
    if made is NULL:
        PyErr_Clear()
        return NULL
    memcpy(start_of(made), start_of(old), len(<bytes>old))
    Py_XDECREF(old)
    object[0] = made
    return <uint8_t *>start_of(made)


cdef void drop_message(void *arg, void *object) noexcept:
    Py_XDECREF(<PyObject *>object)


cdef void copy_message(void *arg, void *to, const void *data, uint64_t length) noexcept:
    cdef Machine self
    if length < LARGE:
        memcpy(to, data, length)
        return
    self = <Machine>arg
    self.enter()
    with nogil:
        memcpy(to, data, length)
    self.leave()


cdef void keep_for_later(void *arg, rnic_mr *mr) noexcept:
    (<Machine>arg).late.append(<uintptr_t>mr)


cdef c_bool is_asked_for(void *arg, uint64_t tag) noexcept:
    return tag in (<Machine>arg).asked


cdef int64_t now_ns() noexcept nogil:
    cdef timespec ts
    clock_gettime(CLOCK_MONOTONIC, &ts)
    return <int64_t>ts.tv_sec * 1000000000 + ts.tv_nsec


@cython.final
@cython.freelist(8)
cdef class Sent:
    """The buffer of a message that has not left it."""

    cdef Py_buffer view
    cdef bint exported

    def __dealloc__(self):
        if self.exported:
            PyBuffer_Release(&self.view)


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


@cython.final
@cython.no_gc_clear
cdef class Machine:
    """One end of a connection (src/msg): its messages, its operations on the peer's memory, its regions.

    Numbers that calls return are src/msg/msg.h's: negative ones are an errno.  Times are seconds of monotonic().
    """

    cdef msg *p
    cdef const rnic_ext_drive *drive    # or NULL
    cdef QP qp
    cdef CQ cq                  # of SENDs and operations
    cdef CQ recv_cq             # perhaps the same
    cdef MR mr
    cdef object buffers         # Sent, by handle, in the order of the handles
    cdef list failed_ones       # operations that have failed, for failures()
    cdef Places places
    cdef object find
    cdef MR stage               # where the copies are
    cdef uint64_t staged_in, staged_out     # bytes of copies that were made, and that are free again, in their order
    cdef list late              # regions (rnic_mr *) whose deregistration was refused, for deregister()
    cdef object target          # the memory that an announced message is READ into: a memoryview,
    cdef uint64_t room          # and its bytes
    cdef list old               # those that were targets, while a READ writes into one
    cdef uint8_t *landed        # where the message in hand lies, if it is a number
    cdef object asked           # a container of the tags that calls ask for
    cdef int awaits             # what a call waits for
    cdef uint64_t mark          # its tag, or the message that is to leave its buffer,
    cdef Result operation       # or the operation that is to end
    cdef readonly dict shared       #: Memory that share() was called for (MR), by id, until somebody takes it out.
    cdef readonly dict withdrawn    #: By id the number of each withdrawal, until somebody takes it out.
    cdef uint32_t withdrawals   # how many there were
    cdef public uint32_t told   #: Somebody has seen to so many of `released`.
    cdef bint failing           # step() has told of a work request that failed
    cdef Spin spin
    cdef readonly bint armed    #: The queue was armed: its channel has an event, or will.
    cdef public object hand     #: The message that take() has taken, until somebody puts None here.
    cdef readonly uint64_t tag  #: Its tag.
    cdef readonly bint busy     #: Another thread is in a call.

    def __cinit__(self, QP qp not None, CQ cq not None, MR mr not None, how, *, CQ recv_cq=None, bounces, sends_at,
                  results_at, Places places=None, find=None):
        """The receives lie at the start of the memory, the SENDs from `sends_at` on, what atomics find from `results_at` on.

        `how` has the fields of rnic.Config.  `recv_cq`: where receives complete, if that is another queue than `cq`.
        rdma() needs `places`, memory that is registered, and `find(addr, length, reads)`, which registers memory for this.
        """
        cdef msg_config config
        cdef msg_memory memory
        cdef msg_hooks hooks
        config.receives, config.receive_size, config.send_size = how.receives, how.receive_size, how.send_size
        config.max_regions, config.max_message = how.max_regions, how.max_message
        config.max_backlog = min(how.max_backlog, UINT64_MAX)
        config.announce = (how.announce or 0) if how.access & RNIC_ACCESS_REMOTE_READ else 0    # the peer READs it
        config.idle = 0 if how.idle_interval is None else <int64_t>min(how.idle_interval * 1e9, 1e18)
        memory.base, memory.lkey, memory.bounces = <uint8_t *><uintptr_t>mr.addr, mr.lkey, bounces
        memory.sends_at, memory.results_at = sends_at, results_at
        hooks.arg, hooks.make, hooks.grow, hooks.drop = <void *>self, make_message, grow_message, drop_message
        hooks.copy, hooks.later, hooks.asks = copy_message, keep_for_later, is_asked_for
        qp.need("post_send")
        recv_cq = recv_cq or cq
        cq.need("poll_cq")
        recv_cq.need("poll_cq")
        mr.need("post_send")
        self.qp, self.cq, self.recv_cq, self.mr, self.buffers, self.late = qp, cq, recv_cq, mr, OrderedDict(), []
        self.failed_ones, self.old = [], []
        self.shared, self.withdrawn = {}, {}
        self.spin, self.places, self.find = Spin(how.spin), places, find
        self.drive = qp.ctx.drive
        self.p = msg_open(&config, &memory, &hooks, qp.p, cq.p, recv_cq.p)
        if self.p is NULL:
            raise MemoryError

    def __dealloc__(self):
        if self.p is not NULL:
            msg_release(self.p)
            self.gather()
            msg_free(self.p)

    cdef void enter(self):
        self.mr.calls += 1
        self.qp.calls += 1
        self.cq.calls += 1
        self.recv_cq.calls += 1

    cdef void leave(self):
        self.recv_cq.calls -= 1
        self.cq.calls -= 1
        self.qp.calls -= 1
        self.mr.calls -= 1

    cdef int alone(self, str what) except -1:
        if self.busy:
            raise RuntimeError(f"{what} while another call of this connection runs")
        return 0

    cdef int need(self, str what) except -1:
        self.alone(what)
        return self.need_all(what)

    cdef int need_all(self, str what) except -1:
        if not (self.qp.live and self.cq.live and self.recv_cq.live and self.mr.live):
            raise VerbsError(EINVAL, "the connection has been given back", what)
        return 0

    # ------------------------------------------------------------ opening

    def post_receives(self):
        """Post the receives that the hello promises."""
        cdef rnic_err err
        self.need("post_recv")
        err.text[0] = 0
        check(msg_post_receives(self.p, &err), "post_recv", &err)

    def greet(self, hello):
        """What the peer's hello says: the fields of Hello, and the version that both speak."""
        cdef msg_peer peer
        peer.receives, peer.receive_size, peer.max_regions = hello.receives, hello.receive_size, hello.max_regions
        peer.capabilities, peer.access = hello.capabilities, hello.access
        peer.max_message, peer.version = hello.max_message, hello.version
        msg_greet(self.p, &peer, now_ns())

    def greet_raw(self):
        """The peer has said no hello, and that is allowed."""
        msg_greet_raw(self.p)

    def establish(self):
        """The peer is ready to receive."""
        msg_establish(self.p)

    @property
    def established(self):
        """The peer is known to be ready: establish() was called, or something has come."""
        return msg_established(self.p)

    def say_hello(self, bytes hello not None, access):
        """Send the hello as the first SEND; `access`: what the peer is assumed to grant until its own has come."""
        cdef rnic_err err
        self.need("post_send")
        err.text[0] = 0
        check(msg_say_hello(self.p, PyBytes_AS_STRING(hello), len(hello), access, now_ns(), &err), "post_send", &err)

    def hear_hello(self):
        """The peer's hello, if its first SEND has come, for greet(); None: not yet, or failed() says why not."""
        cdef const uint8_t *hello = NULL
        cdef uint32_t length = 0
        self.need("poll_cq")
        came = msg_hear_hello(self.p, now_ns(), &hello, &length)
        return (<const char *>hello)[:length] if came > 0 else None

    # ------------------------------------------------------------ moving

    def pump(self):
        """Move what can be moved; 1: there is more, call again; negative: a work request has failed."""
        self.need("poll_cq")
        return self.move()

    def step(self):
        """Move all that can be moved, and have the channel tell of what comes.

        1: there is more, but other work has its turn; negative: a work request has failed.
        """
        cdef int rc = 0
        self.need("poll_cq")
        self.quiet()
        for _ in range(ROUNDS):
            rc = self.move_on()
            self.failing = rc < 0
            if rc <= 0 and self.armed:
                return rc
            if rc <= 0:
                self.arm()
        return 1

    cdef int move_on(self) except? -1:
        """As move(); raises what the device says when the queue cannot be polled, in a forked child for instance."""
        cdef int rc = self.move()
        if rc < 0 and msg_failed(self.p) is NULL:
            self.cq.poll(1)
            raise VerbsError(EIO, "the completion queue has failed", "poll_cq")
        return rc

    cdef int move(self) except? -1:
        cdef int rc
        self.busy = True
        try:
            rc = msg_pump(self.p, now_ns())
            self.gather()
        finally:
            self.busy = False
        return rc

    cdef int gather(self) except -1:
        """Operations that have ended, and buffers that messages have left, are their callers' again."""
        cdef msg_op *op = msg_done(self.p)
        cdef uint64_t left
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
        if self.buffers:
            left = msg_left(self.p)
            while self.buffers and <uint64_t>next(iter(self.buffers)) <= left:
                self.buffers.popitem(last=False)
        if self.old and not msg_is_landing(self.p):
            self.old.clear()
        return 0

    def look(self, spin=None):
        """Look for completions for a moment, without the interpreter's lock; whether there are any.

        `spin`: so many seconds, also if such looks were in vain before.
        """
        self.need("poll_cq")
        if spin is None:
            return self.look_for() > 0
        return self.look_until(<int64_t>(<double>spin * 1e9)) > 0

    cdef int look_for(self) except? -1:
        cdef int64_t began = now_ns(), spin = self.spin.now(began)
        if spin == 0:
            return 0
        got = self.look_until(spin)
        self.spin.note(got != 0, now_ns())
        return got

    cdef int look_until(self, int64_t spin) except? -1:
        cdef int got
        cdef int64_t before = now_ns(), now = before, until = before + spin
        self.busy = True
        self.enter()
        with nogil:
            got = msg_poll(self.p)
            while got == 0 and now < until:
                before = now
                got = msg_poll(self.p)
                now = now_ns()
                if now - before > AWAY_NS:
                    break
        self.leave()
        self.busy = False
        if now - before > AWAY_NS:
            self.spin.note_away(now)
        return got

    def note_wait(self):
        """Note the end of a wait; if it was short, look for longer the next time."""
        self.spin.note_wait()

    # ------------------------------------------------------------ a loop that does the device's work

    def device(self):
        """The descriptor that is readable when something has come for the device; -1: another thread takes it anyway."""
        return -1 if self.drive is NULL else self.drive.descriptor(self.qp.ctx.p)

    def look_at_device(self):
        """Take what has come for the device, for whichever connection."""
        cdef bint found
        self.need_all("look_at_device()")
        self.enter()
        with nogil:
            found = self.drive.look(self.qp.ctx.p)
        self.leave()
        return found

    def settle(self):
        """The loop is going to sleep.  False: something has come already."""
        cdef bint may
        self.need_all("settle()")
        self.enter()
        with nogil:
            may = self.drive.settle(self.qp.ctx.p)
        self.leave()
        return may

    @property
    def ready(self):
        """A completion is there."""
        return self.drive.has(self.cq.p) or self.drive.has(self.recv_cq.p)

    cpdef int arm(self) except -1:
        """Have the channel, or both channels, tell of the next completion."""
        self.need("req_notify_cq")
        self.arm_one(self.cq)
        if self.recv_cq is not self.cq:
            self.arm_one(self.recv_cq)
        self.armed = True
        return 0

    cdef int arm_one(self, CQ cq) except -1:
        cdef rnic_err err
        err.text[0] = 0
        check(cq.ops.req_notify_cq(cq.p, 0, &err), "req_notify_cq", &err)
        return 0

    cpdef bint quiet(self) except -1:
        """Take the queues' events out of their channels; False: something else has made a descriptor readable."""
        self.need("get_cq_event")
        if not self.armed:
            return False
        found = self.take_event(self.cq)
        if self.recv_cq is not self.cq:
            found = self.take_event(self.recv_cq) or found
        self.armed = not found
        return found

    cdef bint take_event(self, CQ of):
        cdef rnic_cq *cq = NULL
        cdef rnic_err err
        if of.ops.get_cq_event(of.channel.p, &cq, &err) < 0:
            return False
        of.ops.ack_cq_events(cq, 1, &err)
        return True

    def deadline(self):
        """The time at which pump() must run at the latest; None: there is none."""
        cdef int64_t due = msg_deadline(self.p)
        return None if due == MSG_NEVER else due / 1e9

    def failed(self):
        """The first completion (WC) that says why it failed; None: none failed."""
        cdef const rnic_wc *wc = msg_failed(self.p)
        return None if wc is NULL else completion(self.cq.causes, self.cq.ctx.p, wc)

    def completion_of(self, Result one not None):
        """The completion (WC) of an operation that has failed."""
        cdef rnic_wc wc
        memset(&wc, 0, sizeof(wc))
        wc.status, wc.vendor_err, wc.qp_num = one.op.status, one.op.vendor_err, self.qp.qp_num
        return completion(self.cq.causes, self.cq.ctx.p, &wc)

    # ------------------------------------------------------------ messages

    def send(self, message, tag=0):
        """Send a message.  0: it has left its buffer; more: its handle, it is queued; less: an errno, it was refused.

        EINVAL: it is no buffer of values in C order.
        """
        cdef uint64_t number, handle = 0
        cdef Sent sent = Sent.__new__(Sent)
        cdef int rc
        try:
            number = PyNumber_Index(tag)
        except OverflowError:
            raise ValueError(f"send(): tag {tag}, it can be 0 to 2**64 - 1") from None
        try:
            take_buffer(message, &sent.view, PyBUF_C_CONTIGUOUS, "send()")
        except (BufferError, TypeError, ValueError):
            return -EINVAL
        sent.exported = True
        self.need("send()")
        self.busy = True
        rc = msg_send(self.p, sent.view.buf, sent.view.len, number, &handle)
        self.busy = False
        if rc <= 0:
            return rc
        try:
            self.buffers[handle] = sent
        except MemoryError:
            self.take_back(handle)
            raise
        return handle

    @property
    def handle(self):
        """The handle of the message that was sent last."""
        return msg_handle(self.p)

    @property
    def left(self):
        """Messages up to this handle have left their buffers."""
        return msg_left(self.p)

    @property
    def sent(self):
        """As left, but when the connection has ended with an error: as it was then."""
        return msg_sent(self.p)

    @property
    def closing(self):
        """close() was called."""
        return msg_is_closing(self.p)

    @property
    def sending(self):
        """Messages are queued, or are not known to have arrived."""
        return msg_is_sending(self.p)

    def take_back(self, handle):
        """The call that sent the message has ended; whether the message goes on from a copy.  Else the peer drops it."""
        self.alone("send()")
        self.busy = True
        goes_on = msg_take_back(self.p, handle)
        self.busy = False
        self.buffers.pop(handle, None)
        return goes_on

    def has(self, tag=None):
        """Whether a message is there: with this tag, or any."""
        cdef uint64_t number = 0 if tag is None else tag
        return msg_find(self.p, NULL if tag is None else &number) is not NULL

    def take(self, tag=None):
        """Take the next message, or the next with a tag, into `hand`; False: there is none.

        It stays there, also when an exception hides the result, until somebody puts None there.  A message that was READ
        into the memory of aim() is the number of its bytes.
        """
        cdef uint64_t number = 0 if tag is None else tag
        self.alone("take()")
        return self.grab(NULL if tag is None else &number)

    cdef bint grab(self, const uint64_t *tag) except -1:
        cdef msg_in *found
        if self.hand is not None:
            if tag is NULL or tag[0] == self.tag:
                return True
            self.put_back()
        found = msg_find(self.p, tag)
        if found is NULL:
            return False
        self.tag = found.tag
        self.landed = found.data
        self.hand = found.bytes if found.object is NULL else <object><PyObject *>found.object
        msg_take(self.p, found)
        msg_drop(self.p, found)
        return True

    cdef int put_back(self) except -1:
        """The message in hand is not the one that is asked for: it comes next again."""
        cdef PyObject *object = NULL
        cdef uint8_t *data = NULL
        cdef uint64_t length
        if isinstance(self.hand, bytes):
            object, data, length = <PyObject *>self.hand, <uint8_t *>PyBytes_AS_STRING(self.hand), len(<bytes>self.hand)
        else:
            length = self.hand
            data = self.landed
        if msg_put_back(self.p, data, length, self.tag, object) < 0:
            raise MemoryError
        if object is not NULL:
            Py_INCREF(self.hand)
        self.hand = None
        return 0

    def recv(self, tag, double until):
        """Wait until a message is in `hand`, as take() takes it; as wait_sent() otherwise."""
        self.awaits = ANY_MESSAGE if tag is None else TAGGED
        self.mark = 0 if tag is None else tag
        return self.wait(until)

    def wait_sent(self, uint64_t handle, double until):
        """Wait until a message has left its buffer.

        False: Python has something to see to, which pump() does, or the time has come.
        """
        self.awaits, self.mark = DEPARTURE, handle
        return self.wait(until)

    def wait_done(self, Result one not None, double until):
        """Wait until an operation has ended; as wait_sent() otherwise."""
        self.awaits, self.operation = OUTCOME, one
        try:
            return self.wait(until)
        finally:
            self.operation = None

    cdef bint wait(self, double until) except -1:
        cdef int rc
        self.need("poll_cq")
        while not self.has_come():
            rc = self.move_on()
            if self.has_come():
                break
            if (rc < 0 and not self.failing) or not self.may_come():
                return False
            if rc > 0:
                PyErr_CheckSignals()
                if now_ns() >= until * 1e9:
                    return False
            elif self.look_for() <= 0:
                if now_ns() >= until * 1e9 or not self.sleep(self.sleeps_until(until)):
                    return False
                self.spin.note_wait()
        return not self.has_news()

    cdef bint sleep(self, double until) except -1:
        """Sleep until there may be a completion; False: Python has something to see to, or the time has come."""
        cdef bint event, drives = self.drive is not NULL
        if not drives and not self.armed:
            self.arm()
            return True
        if drives:
            event = self.drive_until(until)
        else:
            event = is_readable(self.cq.channel, self.cq.channel.p.fd, until, "recv")
        if self.busy or not event:
            return drives and not self.busy and now_ns() < until * 1e9
        self.armed = True
        if not self.quiet():
            return False
        if not drives:
            self.arm()      # whoever waits for the descriptor next has its event
        return True

    cdef bint drive_until(self, double until) except -1:
        """Sleep, and do the device's work meanwhile; whether the channel may have an event.  A sleep may end early."""
        cdef int rc
        cdef int64_t due = now_ns() + LONGEST_NS
        cdef rnic_cq **queues = [self.cq.p, self.recv_cq.p]
        cdef bint goes_on = due < until * 1e9
        if not goes_on:
            due = <int64_t>(until * 1e9)
        self.cq.channel.calls += 1
        self.enter()
        self.armed = False
        with nogil:
            rc = self.drive.wait_cq(queues, 2, self.cq.channel.p.fd, <uint64_t>due, goes_on)
        self.leave()
        self.cq.channel.calls -= 1
        PyErr_CheckSignals()
        self.need_all("recv")
        if rc == -EAGAIN:
            self.drive = NULL   # the device has failed: its descriptors tell
        return rc > 0

    cdef bint has_come(self) except -1:
        if self.awaits == OUTCOME:
            return self.operation.done
        if self.awaits == DEPARTURE:
            return msg_sent(self.p) >= self.mark
        return self.grab(NULL if self.awaits == ANY_MESSAGE else &self.mark)

    cdef bint may_come(self):
        """It may come still, and Python has nothing to see to."""
        cdef int state = msg_state(self.p)
        if state >= MSG_CLOSED or self.has_news():
            return False
        if self.awaits == DEPARTURE or self.awaits == OUTCOME:
            return True
        if msg_heard_goodbye(self.p) or msg_has_fetch_error(self.p):
            return False
        return self.target is None or msg_offered(self.p) <= self.room

    cdef bint has_news(self):
        """Operations have failed, or regions were released, and nobody has seen to them."""
        return (len(self.failed_ones) > 0 and not self.failing) or msg_released(self.p) != self.told

    cdef double sleeps_until(self, double until):
        cdef int64_t due = msg_deadline(self.p)
        return until if due == MSG_NEVER else min(until, due / 1e9)

    def tags(self):
        """The tags of the messages that are there, in their order."""
        cdef msg_in *one = msg_find(self.p, NULL)
        found = []
        while one is not NULL:
            found.append(one.tag)
            one = one.next
        return found

    def want(self, bint next_one, tags=()):
        """Note that calls wait for a message of any tag, or with these, a container that is looked into later, too."""
        self.alone("want()")
        self.asked = tags
        msg_want(self.p, next_one, len(tags) > 0)

    def aim(self, view):
        """READ an announced message that comes next into these bytes, a memoryview; None: into none.

        What was aimed at before is not used any more, once no READ writes into it.
        """
        cdef Py_buffer found
        self.alone("aim()")
        if self.hand is not None and not isinstance(self.hand, bytes):  # it lies where nobody will look for it
            self.hand = (<const char *>self.landed)[:<Py_ssize_t>self.hand]
        if msg_is_landing(self.p):
            self.old.append(self.target)
        self.busy = True
        msg_target(self.p, NULL, 0)
        self.busy = False
        self.target = None
        if view is None or self.hand is not None:
            return
        self.target, self.room = view, len(view)
        if self.room == 0:
            return
        PyObject_GetBuffer(view, &found, PyBUF_WRITABLE)
        msg_target(self.p, found.buf, found.len)
        PyBuffer_Release(&found)    # the view has an export of its own

    @property
    def landing(self):
        """A READ writes into the bytes of aim()."""
        return msg_is_landing(self.p)

    @property
    def offered(self):
        """Bytes of an announced message that comes next and is not being READ; 0: there is none."""
        return msg_offered(self.p)

    def fetch_error(self):
        """Why an announced message could not be READ, an errno, told once; 0: nothing is wrong."""
        return -msg_fetch_error(self.p)

    @property
    def fetch_failed(self):
        """fetch_error() has something to tell."""
        return msg_has_fetch_error(self.p)

    # ------------------------------------------------------------ regions and operations

    def share(self, MR mr not None, access, bytes array=b""):
        """Share memory, which is in `shared` then; its id, or a negative errno."""
        cdef msg_region region
        cdef int rc
        region.addr, region.length, region.rkey, region.access = mr.addr, mr.length, mr.rkey, access
        region.array, region.array_bytes = <const uint8_t *>PyBytes_AS_STRING(array) if array else NULL, len(array)
        self.need("share()")
        rc = msg_share(self.p, &region)
        if rc < 0:
            return rc
        self.shared[region.id] = mr
        return region.id

    def withdraw(self, number):
        """Tell the peer that it may no longer use a region, once."""
        cdef int rc
        self.need("withdraw()")
        if number in self.withdrawn:
            return 0
        rc = msg_withdraw(self.p, number)
        if rc == 0:
            self.withdrawals += 1
            self.withdrawn[number] = self.withdrawals
        return rc

    @property
    def released(self):
        """How many withdrawals the peer has confirmed, modulo 2**32."""
        return msg_released(self.p)

    def gone(self, bint ended):
        """Of those that are `withdrawn`, the ids that the peer uses no more; all when the connection has ended."""
        cdef uint32_t released = msg_released(self.p)
        return [number for number, nth in self.withdrawn.items() if ended or <int32_t>(released - <uint32_t>nth) >= 0]

    @property
    def changes(self):
        """Counts when regions() changes."""
        return msg_changes(self.p)

    def regions(self):
        """The peer's regions: a number that no other has had, id, addr, length, rkey, access, and the array's description."""
        cdef uint64_t changes = msg_changes(self.p)
        cdef uint32_t n = 0, i = 0
        cdef const msg_region *one
        cdef msg_region region
        found = []
        while True:     # a finaliser may call the connection whenever an object is made
            if changes != msg_changes(self.p):
                changes, i, found = msg_changes(self.p), 0, []
            one = msg_regions(self.p, &n)
            if i >= n:
                return found
            region = one[i]
            i += 1
            array = b"" if region.array is NULL else (<const char *>region.array)[:region.array_bytes]
            found.append((region.serial, region.id, region.addr, region.length, region.rkey, region.access, array))

    def rdma(self, int opcode, local, remote, offset, bint fence=False):
        """Queue a READ or WRITE between a buffer, or an MR, and the peer's region; pump() posts it.

        None: nothing was done: the connection is closed, or `local` cannot be this, or is no buffer of values in C order.
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
        """Queue a READ or WRITE as this request has it, in memory that no region of the peer's names; pump() posts it."""
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
            raise ValueError(f"region {remote.id} grants {remote.access.name or 'nothing'}, and {WROpcode(opcode).name} "
                             f"needs {AccessFlags(needs).name}")
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
        one.op.sge.addr, one.op.sge.length, one.op.sge.lkey = mr.iova + at, <uint32_t>one.length, mr.lkey
        return 0

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
        one.op.sge.addr, one.op.sge.length, one.op.sge.lkey = self.stage.iova + at, <uint32_t>one.length, self.stage.lkey
        return True

    def failures(self):
        """Operations that have failed and that nobody has finished: whoever knows why does."""
        self.failed_ones = [one for one in self.failed_ones if not one.done]
        return self.failed_ones

    @property
    def operates(self):
        """Operations are queued or under way."""
        return msg_operates(self.p)

    # ------------------------------------------------------------ the end

    def close(self, timeout):
        """Say goodbye when all that is queued has left; what comes meanwhile is dropped."""
        self.alone("close()")
        msg_close(self.p, now_ns(), MSG_NEVER if timeout is None else <int64_t>min(timeout * 1e9, 1e18))

    def abort(self, str text not None):
        """End the connection at once, and tell the peer why."""
        self.alone("abort()")
        msg_abort(self.p, text.encode("utf-8", "replace"))
        self.gather()

    def lost(self, str text not None):
        """The connection has ended."""
        self.alone("lost()")
        msg_lost(self.p, text.encode("utf-8", "replace"))
        self.gather()

    def disconnected(self, bytes private_data not None):
        """The peer has disconnected."""
        self.alone("disconnected()")
        msg_disconnected(self.p, PyBytes_AS_STRING(private_data), len(private_data))
        self.gather()

    def farewell(self):
        """Private data for the DREQ."""
        cdef uint8_t data[FAREWELL]
        cdef uint32_t n = msg_farewell(self.p, data)
        return (<const char *>data)[:n]

    def fail_operations(self):
        """No operation goes on: the queue pair is flushed, or gone."""
        self.alone("fail_operations()")
        msg_fail_operations(self.p)
        self.gather()

    def release(self):
        """The queue pair is gone: give up what is under way; the memory for copies, to be deregistered, or None."""
        self.alone("release()")
        msg_release(self.p)
        self.gather()
        self.buffers.clear()
        stage, self.stage = self.stage, None
        return stage

    def deregister(self):
        """Deregister memory for which that was refused, as a process was stopped inside a copy; whether all is done."""
        cdef rnic_err err
        for at in list(self.late):
            if self.qp.ops.dereg_mr(<rnic_mr *><uintptr_t>at, &err) < 0:
                return False
            self.late.remove(at)
        return True

    @property
    def may_leave(self):
        """Neither end needs anything more of the other."""
        return msg_may_leave(self.p)

    @property
    def state(self):
        """enum msg_state."""
        return msg_state(self.p)

    @property
    def error(self):
        """What ended the connection: kind, reason and text (bytes); kind 0: nothing."""
        cdef const msg_error_t *e = msg_error(self.p)
        return e.kind, e.reason, <bytes>e.text

    @property
    def undelivered(self):
        """When it has ended with an error: messages that the peer has perhaps not received."""
        return msg_undelivered(self.p)

    @property
    def heard_goodbye(self):
        """The peer has said goodbye: no message follows those that wait."""
        return msg_heard_goodbye(self.p)

    @property
    def spent(self):
        """And these have been taken."""
        return msg_is_spent(self.p)

    def count(self):
        """struct msg_statistics."""
        cdef msg_statistics found
        msg_count(self.p, &found)
        return found


@cython.final
cdef class Chain:
    """Operations that are posted some at a time, and whose ends are waited for together."""

    cdef object machine
    cdef list under_way     # some may have ended
    cdef int64_t given
    cdef public bint fenced         #: The next one is to wait for READs and atomics before it.
    cdef readonly Result failed     #: The first operation that has failed; None: none has.

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
        """Whether all have ended; what has is forgotten here, but for the first that failed."""
        cdef Py_ssize_t n = 0
        while n < len(self.under_way) and (<Result>self.under_way[n]).done:
            if self.failed is None and (<Result>self.under_way[n]).error is not None:
                self.failed = self.under_way[n]
            n += 1
        del self.under_way[:n]
        return not self.under_way
