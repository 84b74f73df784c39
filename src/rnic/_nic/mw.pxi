# SPDX-License-Identifier: Apache-2.0
# A window uses the region that it is bound to.  Binding and invalidating are work, of this side or of the peer, so it is
# asked when the region is to be closed; until then the window holds the region of its last bind.


cdef class MW(Handle):
    """A memory window: a key for a part of a memory region, which work requests grant and withdraw (ibv_alloc_mw(3))."""

    cdef rnic_mw *p
    cdef MR latest              # the region of the last bind that was posted
    cdef readonly PD pd         #: The protection domain.

    def __cinit__(self, PD pd not None, int mw_type):
        cdef rnic_err err
        pd.need_verb("alloc_mw", pd.ops.alloc_mw is not NULL)
        err.text[0] = 0
        check(pd.ops.alloc_mw(pd.p, mw_type, &self.p, &err), "alloc_mw", &err)
        self.pd = pd
        self.attach(pd.ctx, (pd, pd.ctx), "dealloc_mw")

    cdef int destroy(self, rnic_err *err):
        cdef int rc
        with nogil:
            rc = self.ops.dealloc_mw(self.p, err)
        return rc

    cdef void gone(self):
        self.latest = None

    cdef str label(self):
        return f"MW rkey 0x{self.rkey:08x}" if self.live else "MW"

    @property
    def rkey(self):
        """The key for peers, as the last posted bind makes it; it is valid when that bind has completed."""
        self.need("rkey")
        return self.p.rkey

    @property
    def type(self):
        """The type (MWType)."""
        self.need("type")
        return as_member(MWType, self.p.type)

    cdef int ask(self, rnic_mw_bind_info *info) except -1:
        cdef rnic_err err
        cdef int rc
        self.need_verb("query_mw", self.ctx.query is not NULL)
        err.text[0] = 0
        with nogil:
            rc = self.ctx.query.mw(self.p, info, &err)
        return check(rc, "query_mw", &err)

    def raw_query(self):
        """The MR of the current binding, or None, and the other fields of struct rnic_mw_bind_info."""
        cdef rnic_mw_bind_info info
        self.ask(&info)
        mr = next((one for one in self.owners if type(one) is MR and (<MR>one).p is info.mr), None)
        return mr, info.addr, info.length, info.mw_access_flags

    cdef bint bound_to(self, MR mr):
        cdef rnic_mw_bind_info info
        cdef rnic_err err
        if self.ctx.query is NULL:      # the window may be bound to it as long as there is the window
            return True
        return self.ctx.query.mw(self.p, &info, &err) < 0 or info.mr is mr.p

    cdef void begin_bind(self, MR mr):
        """A bind to mr is being posted: neither can be closed now, and the window needs mr until it is bound
        elsewhere.

        The region of the last bind is released when the window is no longer bound to it.
        """
        self.calls += 1
        if mr is not None:
            mr.calls += 1
        for one in self.owners:
            if type(one) is MR and one is not mr and one is not self.latest:
                self.let_go(<MR>one)
        self.latest = mr
        if mr is not None and mr not in self.owners:
            self.owners = (mr, *self.owners)
            mr.users[<uintptr_t><void *>self] = weakref.ref(self)

    cdef void end_bind(self, MR mr):
        self.calls -= 1
        if mr is not None:
            mr.calls -= 1

    cdef void let_go(self, MR mr):
        """Releases the region, unless the window is bound to it."""
        if self.bound_to(mr):
            return
        self.owners = tuple([one for one in self.owners if one is not mr])
        mr.users.pop(<uintptr_t><void *>self, None)
        if mr.closing:
            mr.finish_if_unused()


cdef MR bind_info_of(info, rnic_mw_bind_info *c, str verb):
    """The C struct of a record with libibverbs' fields; its MR, or None."""
    cdef MR mr = info.mr
    c.mr = NULL
    if mr is not None:
        mr.need(verb)
        c.mr = mr.p
    whole(verb, "bind_info.addr", info.addr, 64)
    whole(verb, "bind_info.length", info.length, 64)
    c.addr, c.length, c.mw_access_flags = info.addr, info.length, info.mw_access_flags
    return mr
