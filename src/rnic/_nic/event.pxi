# SPDX-License-Identifier: Apache-2.0


@cython.final
cdef class EventFd:
    """An eventfd(2), not blocking, that is closed with this object.

    As a number it would be lost when the handler of a signal raises between the call that makes it and the store.
    """

    cdef readonly int fd    #: -1 when it is closed.

    def __cinit__(self, str verb):
        """Raises VerbsError, of that verb, when there is no descriptor."""
        self.fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)
        if self.fd < 0:
            raise VerbsError(errno, f"eventfd: {exhausted(errno)}", verb)

    def close(self):
        """Close it; the second time does nothing."""
        cdef int fd = self.fd
        self.fd = -1
        if fd >= 0:
            close(fd)

    def __dealloc__(self):
        if self.fd >= 0:
            close(self.fd)


@cython.final
cdef class CompChannel(Handle):
    """A completion channel: a file descriptor that reports completions (ibv_create_comp_channel(3)).

    CQ.req_notify() requests one event here for the queue's next completion.
    """

    cdef rnic_comp_channel *p

    def __cinit__(self, Context context not None):
        cdef rnic_err err
        context.need("create_comp_channel")
        err.text[0] = 0
        check(context.ops.create_comp_channel(context.p, &self.p, &err), "create_comp_channel", &err)
        self.attach(context, (context,), "destroy_comp_channel")

    cdef int destroy(self, rnic_err *err):
        return self.ops.destroy_comp_channel(self.p, err)

    def fileno(self):
        """A file descriptor that is readable while events wait, for select, epoll and asyncio."""
        self.need("fileno")
        return self.p.fd

    def get_cq_event(self, timeout=None):
        """Wait for an event, and return the CQ that it is from (ibv_get_cq_event(3)).

        Call CQ.req_notify() before. `timeout` is in seconds; None waits for ever, 0 does not wait. Raises
        TimeoutError at its end. Acknowledge every event with CQ.ack_events(), or the queue cannot be closed. Then
        call req_notify() again, and poll the queue until it is empty: completions before req_notify() make no event.
        """
        cdef rnic_cq *cq = NULL
        cdef rnic_err err
        cdef double deadline = deadline_of(timeout)
        cdef int rc
        while True:
            self.need("get_cq_event")
            err.text[0] = 0
            # With the GIL: the CQ behind the event cannot go before it is held here.
            rc = self.ops.get_cq_event(self.p, &cq, &err)
            if rc != -EAGAIN:
                check(rc, "get_cq_event", &err)
                found = self.ctx.user(cq.cq_context)
                if found is not None:
                    (<CQ?>found).unacked += 1
                    return found
                self.ops.ack_cq_events(cq, 1, &err)     # of a queue that is being collected
                continue
            self.wait_event(deadline)

    cdef int wait_event(self, double deadline) except -1:
        """As wait_readable(), and does the device's work meanwhile where the provider lets it."""
        cdef const rnic_ext_drive *drive = self.ctx.drive
        cdef int rc = -EAGAIN
        cdef double ends = monotonic() + LONGEST_SLEEP
        cdef bint goes_on = ends < deadline
        cdef uint64_t until = <uint64_t>(min(deadline, ends) * 1e9)
        if drive is not NULL and monotonic() < deadline:
            self.calls += 1
            with nogil:
                rc = drive.wait_channel(self.p, until, goes_on)
            self.calls -= 1
            PyErr_CheckSignals()
        if rc == -EAGAIN:
            wait_readable(self, self.p.fd, deadline, "get_cq_event")
        return 0

    def wake(self):
        """Make the descriptor readable until unwake(), though no queue has an event: get_cq_event(0) finds nothing.

        A program can so use one descriptor to wait for completions and for something else. A closed channel is left
        alone.
        """
        if self.live and self.pid == getpid():
            eventfd_write(self.p.fd, 1)

    def unwake(self):
        """Undo one wake(). A channel that is closed, or was not woken, is left alone."""
        cdef eventfd_t one
        if self.live and self.pid == getpid():
            eventfd_read(self.p.fd, &one)

    cdef str label(self):
        return f"CompChannel fd {self.p.fd}" if self.live else "CompChannel"
