# SPDX-License-Identifier: Apache-2.0

cdef enum:
    POLL_STACK = 64     # completions that are polled into the stack; more go through the heap


cdef struct Kept:       # completions that were taken from the queue when there was no memory to tell of them
    Kept *next
    int n
    rnic_wc wc[POLL_STACK]      # of one from the heap: as many as were asked for


cdef int clipped(n) except? -1:
    """n as an int, the largest that there is for what is larger."""
    try:
        return n
    except OverflowError:
        return INT_MAX if n > 0 else -1


cdef class CQ(Handle):
    """A completion queue: completions wait here for poll() (IBA 10.8; ibv_create_cq(3))."""

    cdef rnic_cq *p
    cdef const rnic_ext_now *now         # or NULL
    cdef const rnic_ext_causes *causes   # or NULL
    cdef unsigned unacked                #: events taken from the channel, not acknowledged yet
    cdef readonly CompChannel channel    #: Where this queue reports events, or None.
    cdef readonly object cq_context      #: The caller's own.
    cdef bint in_batch                   # between start_poll() and end_poll(), see CQEX
    cdef Kept *kept                      # who polls next is told of them
    cdef Kept spare
    cdef bint spare_used

    def __cinit__(
        self, Context context not None, cqe, CompChannel channel=None, cq_context=None, comp_vector=0,
        extensions=None,
    ):
        """`extensions`: the fields of struct rnic_cq_init_attr_ex that are not arguments already."""
        cdef rnic_err err
        cdef rnic_comp_channel *ch = NULL
        cdef rnic_cq_init_attr_ex attr
        verb = "create_cq" if extensions is None else "create_cq_ex"
        limited(verb, "cqe", cqe, context, "max_cqe", least=1)
        whole(verb, "comp_vector", comp_vector, 31)
        context.need_verb(verb, extensions is None or context.ops.create_cq_ex is not NULL)
        if channel is not None:
            channel.need(verb)
            ch = channel.p
        err.text[0] = 0
        if extensions is None:
            check(
                context.ops.create_cq(context.p, cqe, ch, comp_vector, <void *>self, &self.p, &err), verb, &err
            )
        else:
            memset(&attr, 0, sizeof(attr))
            attr.cqe, attr.comp_vector = cqe, comp_vector
            attr.channel, attr.cq_context = ch, <void *>self
            attr.wc_flags, attr.comp_mask = extensions["wc_flags"], extensions["comp_mask"]
            attr.flags = extensions["flags"]
            check(context.ops.create_cq_ex(context.p, &attr, &self.p, &err), verb, &err)
        self.now, self.causes, self.channel = context.now, context.causes, channel
        self.cq_context = cq_context
        self.attach(context, (context,) if channel is None else (channel, context), "destroy_cq")

    def __dealloc__(self):
        while self.kept is not NULL:
            block, self.kept = self.kept, self.kept.next
            self.give_back(block)

    cdef int destroy(self, rnic_err *err):
        # With the GIL: see CompChannel.get_cq_event().
        return self.ops.destroy_cq(self.p, err)

    cdef void settle(self):
        cdef rnic_err err
        if self.unacked and self.pid == getpid():
            self.ops.ack_cq_events(self.p, self.unacked, &err)
            self.unacked = 0

    @property
    def cqe(self):
        """The number of completions that the queue can hold."""
        self.need("cqe")
        return self.p.cqe

    def poll(self, n=1):
        """Return up to `n` completions, oldest first, without waiting (ibv_poll_cq(3)); an empty list means none.

        Any `n` from 1 on is allowed. Raises VerbsError if the queue has overrun: completions were lost.
        """
        cdef rnic_wc stack[POLL_STACK]
        cdef rnic_wc *wc = stack
        cdef Kept *block = NULL
        cdef int got, most = clipped(n)
        if most < 1:
            raise ValueError(f"poll({n}): at least one completion has to be asked for")
        self.need("poll_cq")
        if self.in_batch:
            raise VerbsError(EBUSY, f"a batch of {self.label()} is being polled: end_poll() first", "poll_cq")
        if self.kept is not NULL:
            return self.tell_kept(most)
        if most > POLL_STACK:
            most = min(most, max(self.p.cqe, POLL_STACK))
            block = <Kept *>PyMem_Malloc(sizeof(Kept) + (most - POLL_STACK) * sizeof(rnic_wc))
            if block is NULL:
                raise MemoryError
            wc = block.wc
        try:
            got = -EAGAIN
            if self.now is not NULL:
                got = self.now.poll_cq(self.p, most, wc)   # in less time than it takes to let go of the GIL
            if got == -EAGAIN:
                self.calls += 1
                with nogil:
                    got = self.ops.poll_cq(self.p, most, wc)
                self.calls -= 1
            if got < 0:
                self.raise_poll_error(got, "poll_cq")
            try:
                return completions(self.causes, self.p.ctx, wc, got)
            except MemoryError:
                self.keep(block, stack, got)
                block = NULL
                raise
        finally:
            self.give_back(block)

    cdef void give_back(self, Kept *block):
        if block is &self.spare:
            self.spare_used = False
        else:
            PyMem_Free(block)

    cdef void keep(self, Kept *block, rnic_wc *stack, int n):
        """Behind those that are kept already.  Should a second thread come here at once, there may be no room for its own."""
        cdef Kept **at = &self.kept
        if block is NULL:
            block = <Kept *>PyMem_Malloc(sizeof(Kept)) if self.spare_used else &self.spare
            if block is NULL:
                return
            self.spare_used |= block is &self.spare
            memcpy(block.wc, stack, n * sizeof(rnic_wc))
        while at[0] is not NULL:
            at = &at[0].next
        block.n, block.next = n, NULL
        at[0] = block

    cdef list tell_kept(self, int most):
        # Out of everybody's reach meanwhile: a finaliser that runs in here may poll, too.
        cdef Kept *block = self.kept
        cdef list found = None
        cdef int told = 0
        self.kept = block.next
        try:
            found = completions(self.causes, self.p.ctx, block.wc, min(most, block.n))
            told = <int>len(found)
        finally:
            block.n -= told
            memmove(block.wc, block.wc + told, block.n * sizeof(rnic_wc))
            if block.n:
                block.next, self.kept = self.kept, block
            else:
                self.give_back(block)
        return found

    cdef int raise_poll_error(self, int rc, str verb) except -1:
        if self.pid != getpid():
            why = "a device does not survive fork()"
        elif rc == -EBUSY:
            why = f"{self.label()} was created SINGLE_THREADED, and another thread is polling it"
        else:
            why = f"{self.label()} overran"
        raise VerbsError(-rc, why, verb)

    def modify(self, attr):
        """Change the moderation of completion events (ibv_modify_cq(3)); `attr` is a ModifyCQAttr.

        A moderated event comes when `cq_count` completions are there, or `cq_period` microseconds after the first of
        them. Only completions that would raise the event count. A period of 0 ends moderation. An event that waits
        when the limits change comes at once. Raises VerbsError: EINVAL if the queue has no channel.
        """
        cdef rnic_modify_cq_attr c
        cdef rnic_err err
        fields = attr.as_struct()
        for name, value in fields["moderate"].items():
            limited("modify_cq", name, value, self.ctx, f"cq_mod_caps.max_{name}", bits=16)
        c = fields
        self.need_verb("modify_cq", self.ops.modify_cq is not NULL)
        err.text[0] = 0
        check(self.ops.modify_cq(self.p, &c, &err), "modify_cq", &err)

    def req_notify(self, bint solicited_only=False):
        """Request one event in the channel for the next completion (ibv_req_notify_cq(3)).

        With `solicited_only`, for the next completion of a message that the peer sent with SOLICITED, or of a failed
        request.
        """
        cdef rnic_err err
        self.need("req_notify_cq")
        err.text[0] = 0
        check(self.ops.req_notify_cq(self.p, solicited_only, &err), "req_notify_cq", &err)

    def ack_events(self, n=1):
        """Acknowledge n events that get_cq_event() returned for this queue (ibv_ack_cq_events(3))."""
        cdef rnic_err err
        whole("ack_cq_events", "n", n)
        self.need("ack_cq_events")
        err.text[0] = 0
        check(self.ops.ack_cq_events(self.p, n, &err), "ack_cq_events", &err)
        self.unacked -= min(n, self.unacked)

    def resize(self, cqe):
        """Change the size to at least `cqe` completions; those in the queue stay (ibv_resize_cq(3))."""
        cdef rnic_err err
        limited("resize_cq", "cqe", cqe, self.ctx, "max_cqe", least=1)
        self.need_verb("resize_cq", self.ops.resize_cq is not NULL)
        err.text[0] = 0
        check(self.ops.resize_cq(self.p, cqe, &err), "resize_cq", &err)

    cdef str label(self):
        return f"CQ of {self.p.cqe}" if self.live else "CQ"
