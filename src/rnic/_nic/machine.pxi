# SPDX-License-Identifier: Apache-2.0
# How the calls of a connection wait: they poll, sleep, and arm the queues.

cdef enum:
    LONGEST_NS = 250000000  # a signal that comes just ahead of a sleep does not end the sleep, which therefore is short
    ROUNDS = 4              # how often one step looks again, so that a busy peer does not keep a loop from other work

cdef double FOREVER = 4e9   # seconds

cdef unsigned long main_thread = threading.main_thread().ident     # which runs the handlers of signals


def _note_fork():
    global main_thread
    main_thread = threading.get_ident()


os.register_at_fork(after_in_child=_note_fork)


cdef enum:                  # what a call waits for
    ANY_MESSAGE
    TAGGED
    DEPARTURE
    OUTCOME


@cython.final
@cython.no_gc_clear
cdef class Machine(Operating):
    """One end of a connection (src/msg): its messages, its operations on the peer's memory, its regions.

    Numbers that calls return are src/msg/msg.h's: negative ones are an errno.  Times are seconds of monotonic().
    """

    cdef int awaits             # what a call waits for
    cdef uint64_t mark          # its tag, or the message that is to leave its buffer,
    cdef Result operation       # or the operation that is to end
    cdef bint idle              # its sleep has ended by the time: it goes on without another look
    cdef bint failing           # step() has told of a work request that failed
    cdef Spin spin
    cdef readonly bint armed    #: The queue was armed: its channel has an event, or will.

    def __cinit__(self, QP qp not None, CQ cq not None, MR mr not None, how, **more):
        self.spin = Spin(how.spin)

    def __dealloc__(self):
        if self.p is not NULL:
            msg_release(self.p)
            self.gather()
            msg_free(self.p)

    cpdef int step(self) except? -1:
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

    def step_on(self):
        """step(). deadline(), or infinity, if the connection is open as before, and nothing but messages and results has come;
        None: there is more to see to.
        """
        cdef uint64_t changes = msg_changes(self.p)
        cdef int64_t due
        if (self.step() != 0 or msg_state(self.p) != MSG_OPEN or changes != msg_changes(self.p) or self.has_news()
                or self.failing or msg_is_closing(self.p) or msg_has_fetch_error(self.p)):
            return None
        due = msg_deadline(self.p)
        return INFINITY if due == MSG_NEVER else due / 1e9

    cdef int move_on(self) except? -1:
        """As move(); raises what the device says when the queue cannot be polled, in a forked child for instance."""
        cdef int rc = self.move()
        if rc < 0 and msg_failed(self.p) is NULL:
            self.cq.poll(1)
            raise VerbsError(EIO, "the completion queue has failed", "poll_cq")
        return rc

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
            return self.look_between() if self.drive is not NULL and self.spin.may_yield(began) else 0
        got = self.look_until(spin)
        self.spin.note(got != 0, now_ns())
        return got

    cdef int look_between(self) except? -1:
        """Let other programs have the processor, and look what they have sent."""
        cdef int got = 0
        cdef int64_t before = 0, now = 0
        self.busy = True
        self.enter()
        with nogil:
            for _ in range(YIELDS):
                before = now_ns()
                self.drive.give_way(self.qp.ctx.p)
                now = now_ns()
                got = msg_poll(self.p)
                if got != 0 or now - before > AWAY_NS:
                    break
        self.leave()
        self.busy = False
        if now - before > AWAY_NS:
            self.spin.note_away(now)
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
        """The descriptor that is readable when something has come for the device; -1: another thread takes it."""
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

    # ------------------------------------------------------------ a call that waits

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
        self.idle = False
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
            elif self.idle or self.look_for() <= 0:
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
        cdef bint goes_on = PyThread_get_thread_ident() == main_thread and due < until * 1e9
        if not goes_on:
            due = <int64_t>(min(until, FOREVER) * 1e9)
        self.cq.channel.calls += 1
        self.enter()
        self.armed = False
        with nogil:
            rc = self.drive.wait_cq(queues, 2, self.cq.channel.p.fd, <uint64_t>due, goes_on)
        self.leave()
        self.cq.channel.calls -= 1
        self.idle = rc == 0 and now_ns() >= due
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
