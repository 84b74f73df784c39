# SPDX-License-Identifier: Apache-2.0
# One end of a connection (src/msg): how it is opened, moved and ended.
#
# Each change of state is one call of the machine.  So no signal's handler and no MemoryError of the interpreter can
# come in the middle of one.  The machine has layers, each with the state of its subject: here it moves, then come its
# messages and regions (messages.pxi), its operations (operations.pxi), and how its calls wait (machine.pxi).

cdef extern from "<time.h>" nogil:
    int CLOCK_MONOTONIC
    int clock_gettime(int, timespec *)

cdef enum:
    FAREWELL = 148          # bytes of private data in a DREQ or REJ, at most


cdef int64_t now_ns() noexcept nogil:
    cdef timespec ts
    clock_gettime(CLOCK_MONOTONIC, &ts)
    return <int64_t>ts.tv_sec * 1000000000 + ts.tv_nsec


@cython.no_gc_clear
cdef class Moving:
    """One end of a connection, as far as pump() moves it; it waits for nothing."""

    cdef msg *p
    cdef const rnic_ext_drive *drive    # or NULL
    cdef QP qp
    cdef CQ cq                  # of SENDs and operations
    cdef CQ recv_cq             # perhaps the same
    cdef MR mr
    cdef list late              # regions (rnic_mr *) whose deregistration was refused, for deregister()
    cdef readonly bint busy     #: Another thread is in a call.

    def __cinit__(self, QP qp not None, CQ cq not None, MR mr not None, how, *, CQ recv_cq=None, bounces, sends_at,
                  results_at, **more):
        """The receives lie at the start of the memory, the SENDs from `sends_at` on, and from `results_at` on what
        atomics find.

        `how` has the fields of rnic.Config.  `recv_cq`: where receives complete, if that is another queue than `cq`.
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
        self.qp, self.cq, self.recv_cq, self.mr, self.late = qp, cq, recv_cq, mr, []
        self.drive = qp.ctx.drive
        self.p = msg_open(&config, &memory, &hooks, qp.p, cq.p, recv_cq.p)
        if self.p is NULL:
            raise MemoryError

    @cython.final
    cdef void enter(self):
        self.mr.calls += 1
        self.qp.calls += 1
        self.cq.calls += 1
        self.recv_cq.calls += 1

    @cython.final
    cdef void leave(self):
        self.recv_cq.calls -= 1
        self.cq.calls -= 1
        self.qp.calls -= 1
        self.mr.calls -= 1

    @cython.final
    cdef int alone(self, str what) except -1:
        if self.busy:
            raise RuntimeError(f"{what} while another call of this connection runs")
        return 0

    @cython.final
    cdef int need(self, str what) except -1:
        self.alone(what)
        return self.need_all(what)

    @cython.final
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

    @cython.final
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
        """What has ended is its caller's again: each layer sees to its own."""
        return 0

    def deadline(self):
        """The time at which pump() must run at the latest; None: there is none."""
        cdef int64_t due = msg_deadline(self.p)
        return None if due == MSG_NEVER else due / 1e9

    def failed(self):
        """The first completion (WC) that says why it failed; None: none failed."""
        cdef const rnic_wc *wc = msg_failed(self.p)
        return None if wc is NULL else completion(self.cq.causes, self.cq.ctx.p, wc)

    # ------------------------------------------------------------ the end

    def close(self, timeout):
        """Say goodbye when all that is queued has left; what comes meanwhile is dropped."""
        self.alone("close()")
        msg_close(self.p, now_ns(), MSG_NEVER if timeout is None else <int64_t>min(timeout * 1e9, 1e18))

    def abort(self, str text not None):
        """End the connection at once, and tell the peer why."""
        self.alone("abort()")
        why = text.encode("utf-8", "replace")
        self.busy = True    # an announced message is copied without the GIL
        msg_abort(self.p, why)
        self.busy = False
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
