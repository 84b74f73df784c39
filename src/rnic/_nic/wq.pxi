# SPDX-License-Identifier: Apache-2.0


cdef class WQ(Poster):
    """A receive work queue: receives for RAW_PACKET queue pairs that spread frames (ibv_create_wq(3))."""

    cdef rnic_wq *p
    cdef readonly PD pd              #: The protection domain of the receives' memory.
    cdef readonly CQ cq              #: Where receives complete.
    cdef readonly object wq_context  #: The caller's own.
    cdef readonly uint32_t wq_num    #: Its number, which failed completions carry as qp_num.
    cdef readonly uint32_t max_wr    #: Receives that it holds, as granted.
    cdef readonly uint32_t max_sge   #: SGEs in a receive, as granted.

    def __cinit__(self, Context context not None, init):
        cdef rnic_wq_init_attr attr
        cdef rnic_err err
        cdef PD pd = init.pd
        cdef CQ cq = init.cq
        for name, value, limit in (("max_wr", init.max_wr, "max_qp_wr"), ("max_sge", init.max_sge, "max_sge")):
            limited("create_wq", name, value, context, limit)
        for needed in (context, pd, cq):
            (<Handle?>needed).need("create_wq")
        context.need_verb("create_wq", context.ops.create_wq is not NULL)
        memset(&attr, 0, sizeof(attr))
        attr.wq_context, attr.wq_type, attr.create_flags = <void *>self, init.wq_type, init.create_flags
        attr.max_wr, attr.max_sge, attr.pd, attr.cq = init.max_wr, init.max_sge, pd.p, cq.p
        err.text[0] = 0
        check(context.ops.create_wq(context.p, &attr, &self.p, &err), "create_wq", &err)
        self.pd, self.cq, self.wq_context, self.wq_num = pd, cq, init.wq_context, self.p.wq_num
        self.max_wr, self.max_sge = attr.max_wr, attr.max_sge
        self.attach(context, (cq, pd, context), "destroy_wq")

    cdef int destroy(self, rnic_err *err):
        cdef int rc
        with nogil:
            rc = self.ops.destroy_wq(self.p, err)
        return rc

    cdef void gone(self):
        self.kept = set()

    cdef str label(self):
        return f"WQ {self.wq_num}"

    def raw_modify(self, attr):
        """ibv_modify_wq with all fields of struct rnic_wq_attr."""
        cdef rnic_wq_attr c = attr
        cdef rnic_err err
        self.need("modify_wq")
        err.text[0] = 0
        check(self.ops.modify_wq(self.p, &c, &err), "modify_wq", &err)

    @property
    def state(self):
        """The current state of the work queue (WQState)."""
        cdef int state = 0
        cdef uint32_t depth = 0
        cdef rnic_err err
        self.need_verb("query_wq", self.ctx.query is not NULL)
        err.text[0] = 0
        check(self.ctx.query.wq(self.p, &state, &depth, &err), "query_wq", &err)
        return as_member(WQState, state)

    def post_recv(self, wrs):
        """Post a RecvWR, or a sequence of them as one chain (ibv_post_wq_recv(3)), as QP.post_recv() does."""
        self.post(wrs, RecvWR, "post_wq_recv")

    cdef int submit(self, int work, void *head, const void **bad, rnic_err *err) noexcept nogil:
        return self.ops.post_wq_recv(self.p, <rnic_recv_wr *>head, <const rnic_recv_wr **>bad, err)

    cdef bint idle(self):
        cdef int state = 0
        cdef uint32_t depth = 0
        cdef rnic_err err
        return self.ctx.query is not NULL and self.ctx.query.wq(self.p, &state, &depth, &err) == 0 and depth == 0


cdef class RwqIndTable(Handle):
    """Which work queue a frame goes to, by its hash (ibv_create_rwq_ind_table(3))."""

    cdef rnic_rwq_ind_table *p
    cdef readonly tuple ind_tbl          #: The work queues, by hash.
    cdef readonly uint32_t ind_tbl_num   #: Its number.

    def __cinit__(self, Context context not None, init):
        cdef rnic_rwq_ind_table_init_attr attr
        cdef rnic_err err
        cdef tuple wqs = tuple(init.ind_tbl)
        cdef Py_ssize_t i
        cdef int rc
        context.need_verb("create_rwq_ind_table", context.ops.create_rwq_ind_table is not NULL)
        for wq in wqs:
            (<WQ?>wq).need("create_rwq_ind_table")
        if init.log_ind_tbl_size > 31 or init.log_ind_tbl_size < 0 or len(wqs) != 1 << init.log_ind_tbl_size:
            size = f"2**{init.log_ind_tbl_size}"
            raise VerbsError(EINVAL, f"ind_tbl has {len(wqs)} work queues, not {size}", "create_rwq_ind_table")
        attr.log_ind_tbl_size = init.log_ind_tbl_size
        attr.ind_tbl = <rnic_wq **>PyMem_Malloc(len(wqs) * sizeof(rnic_wq *))
        if attr.ind_tbl is NULL:
            raise MemoryError
        for i in range(len(wqs)):
            attr.ind_tbl[i] = (<WQ>wqs[i]).p
        err.text[0] = 0
        rc = context.ops.create_rwq_ind_table(context.p, &attr, &self.p, &err)
        PyMem_Free(attr.ind_tbl)
        check(rc, "create_rwq_ind_table", &err)
        self.ind_tbl, self.ind_tbl_num = wqs, self.p.ind_tbl_num
        self.attach(context, (*dict.fromkeys(wqs), context), "destroy_rwq_ind_table")

    cdef int destroy(self, rnic_err *err):
        return self.ops.destroy_rwq_ind_table(self.p, err)
