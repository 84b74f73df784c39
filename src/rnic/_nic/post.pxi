# SPDX-License-Identifier: Apache-2.0

cdef uint64_t last_token = 0
cdef enum:
    RECEIVES                # the kinds of work
    SENDS
    SENDS_WHOLE             # all of the chain or nothing
    SENDS_BEHIND            # they may wait for what is under way
    OPERATIONS
cdef enum:
    KEPT_AT_FIRST = 64      # memory regions that are held before it is looked which can be let go


cdef class Poster(Handle):
    """An object to which work is posted: it keeps the work's memory regions alive."""

    cdef set kept               # MRs that posted work may still use
    cdef Py_ssize_t kept_limit
    cdef uint64_t token         # a work request that carries it has its MRs in `kept`

    def __cinit__(self):
        self.kept, self.kept_limit = set(), KEPT_AT_FIRST
        self.new_token()

    # What a class fills in.

    cdef int submit(self, int work, void *head, const void **bad, rnic_err *err) noexcept nogil:
        """Passes a chain to the provider."""
        return -EINVAL

    cdef bint idle(self):
        """Whether no work is outstanding."""
        return False

    cdef int post(self, wrs, type kind, str verb, int sends=SENDS) except -1:
        """Links the C structs of the work requests into a chain, and passes it to the provider in one call."""
        cdef tuple chain = chain_of(wrs, kind)
        cdef Py_ssize_t i, first = len(chain)
        cdef int work = OPERATIONS if kind is OpsWR else RECEIVES if kind is not SendWR else sends
        cdef void *head = NULL
        cdef const void *bad = NULL
        cdef rnic_err err
        cdef WorkRequest wr
        cdef int rc
        self.need(verb)
        if first == 0:
            return 0
        if len(self.kept) > self.kept_limit:
            self.let_go()
        self.calls += 1
        try:
            while first > 0:
                wr = <WorkRequest>chain[first - 1]
                wr.enter_chain(first - 1)
                first -= 1
                if kind is SendWR:
                    (<SendWR>wr).hold(verb)
                head = wr.fill(head)
                if wr.kept_by != self.token:
                    self.keep(wr)
            err.text[0] = 0
            if work == RECEIVES:    # which are but put into a queue: letting go of the GIL would take longer
                rc = self.submit(work, head, &bad, &err)
            else:
                with nogil:
                    rc = self.submit(work, head, &bad, &err)
        finally:
            self.calls -= 1
            for i in range(first, len(chain)):
                (<WorkRequest>chain[i]).leave_chain()
        if rc < 0:
            i = index_of(chain, bad)
            if work == SENDS_WHOLE:
                raise VerbsError(-rc, f"{text_of(&err)} (work request {i} of {len(chain)}; none is posted)", verb)
            raise PostError(-rc, text_of(&err), verb, chain[i], i)
        return 0

    # Memory of posted work

    cdef void new_token(self):
        global last_token
        last_token += 1
        self.token = last_token

    cdef int keep(self, WorkRequest wr) except -1:
        """Keeps the request's memory regions from now on, and marks the request, so that it is asked only once."""
        for sge in wr.sg:
            if (<SGE>sge).mr is not None:
                self.kept.add((<SGE>sge).mr)
        wr.kept_by = self.token
        return 0

    cdef int let_go(self) except -1:
        """Releases regions that are closed and, if no work is outstanding or being posted, all regions.

        Finalisers may run here, and with them other threads; regions that these keep meanwhile stay kept.
        """
        kept, self.kept = self.kept, set()
        self.new_token()
        if self.calls or not self.idle():
            self.kept.update([mr for mr in kept if not (<MR>mr).closed])
        self.kept_limit = max(KEPT_AT_FIRST, 2 * len(self.kept))
        return 0


cdef tuple chain_of(wrs, type kind):
    """The work requests as a tuple, which cannot change while it is posted."""
    if type(wrs) is kind:
        return (wrs,)
    cdef tuple chain = tuple(wrs)
    for wr in chain:
        if type(wr) is not kind:
            raise TypeError(f"a chain of {kind.__name__} cannot hold {type(wr).__name__}")
    return chain


cdef Py_ssize_t index_of(tuple chain, const void *bad):
    """The place of the work request with that C struct; 0 if the provider named none."""
    cdef Py_ssize_t i
    for i in range(len(chain)):
        if (<WorkRequest>chain[i]).struct_at is bad:
            return i
    return 0
