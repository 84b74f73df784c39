# SPDX-License-Identifier: Apache-2.0

cdef rnic_srq_attr srq_attr_of(fields, Context ctx, str verb) except *:
    """The C struct of its fields."""
    for name, limit in (("max_wr", "max_srq_wr"), ("max_sge", "max_srq_sge"), ("srq_limit", "max_srq_wr")):
        limited(verb, name, fields[name], ctx, limit)
    return fields


cdef class SRQ(Poster):
    """A shared receive queue: receives for the messages of many queue pairs (IBA 10.2.9; ibv_create_srq(3))."""

    cdef rnic_srq *p
    cdef readonly PD pd              #: The protection domain of the receives' memory.
    cdef readonly object srq_context #: The caller's own.
    cdef readonly XRCD xrcd          #: Of an XRC one: the domain whose queue pairs take from it, else None.
    cdef readonly CQ cq              #: Of an XRC one: where its receives complete, else None.

    def __cinit__(self, PD pd, init):
        cdef rnic_srq_attr attr
        cdef rnic_err err
        if pd is None:
            self.create_ex(init)
            return
        attr = srq_attr_of(init.attr.as_struct(), pd.ctx, "create_srq")
        pd.need_verb("create_srq", pd.ops.create_srq is not NULL)
        err.text[0] = 0
        check(pd.ops.create_srq(pd.p, <void *>self, &attr, &self.p, &err), "create_srq", &err)
        self.pd, self.srq_context = pd, init.srq_context
        self.attach(pd.ctx, (pd, pd.ctx), "destroy_srq")

    cdef int create_ex(self, init) except -1:
        """ibv_create_srq_ex, with the fields of struct rnic_srq_init_attr_ex."""
        cdef PD pd = init.pd
        cdef XRCD xrcd = init.xrcd
        cdef CQ cq = init.cq
        cdef rnic_srq_init_attr_ex attr
        cdef rnic_err err
        cdef Context ctx
        if pd is None:
            raise VerbsError(EINVAL, "a shared receive queue needs a pd", "create_srq_ex")
        owners = tuple(one for one in (cq, xrcd, pd) if one is not None)
        ctx = pd.ctx
        memset(&attr, 0, sizeof(attr))
        attr.srq_context, attr.attr, attr.srq_type = <void *>self, srq_attr_of(init.attr.as_struct(), ctx, "create_srq_ex"), init.srq_type
        tags = init.tm_cap.as_struct()
        for name, value in tags.items():
            limited("create_srq_ex", f"tm_cap.{name}", value, ctx, f"tm_caps.{name}")
        attr.tm_cap = tags
        for needed in owners:
            (<Handle>needed).need("create_srq_ex")
        pd.need_verb("create_srq_ex", pd.ops.create_srq_ex is not NULL)
        attr.pd = pd.p
        attr.xrcd = NULL if xrcd is None else xrcd.p
        attr.cq = NULL if cq is None else cq.p
        err.text[0] = 0
        check(ctx.ops.create_srq_ex(ctx.p, &attr, &self.p, &err), "create_srq_ex", &err)
        self.pd, self.xrcd, self.cq, self.srq_context = pd, xrcd, cq, init.srq_context
        self.attach(ctx, (*owners, ctx), "destroy_srq")
        return 0

    @property
    def srq_num(self):
        """The number of an XRC shared receive queue, which senders name; None for other types (ibv_get_srq_num(3) is
        get_srq_num()).
        """
        self.need("get_srq_num")
        return self.p.srq_num or None

    cdef int destroy(self, rnic_err *err):
        cdef int rc
        with nogil:
            rc = self.ops.destroy_srq(self.p, err)
        return rc

    cdef void gone(self):
        self.kept = set()

    def raw_modify(self, attr, uint32_t mask):
        """ibv_modify_srq with all fields of struct rnic_srq_attr."""
        cdef rnic_srq_attr c
        cdef rnic_err err
        self.need_verb("modify_srq", self.ops.modify_srq is not NULL)
        c = srq_attr_of(attr, self.ctx, "modify_srq")
        err.text[0] = 0
        check(self.ops.modify_srq(self.p, &c, mask, &err), "modify_srq", &err)

    def raw_query(self):
        """The fields of struct rnic_srq_attr."""
        cdef rnic_srq_attr attr
        cdef rnic_err err
        self.need_verb("query_srq", self.ops.query_srq is not NULL)
        err.text[0] = 0
        check(self.ops.query_srq(self.p, &attr, &err), "query_srq", &err)
        return attr

    def post_recv(self, wrs):
        """Post a RecvWR, or a sequence of them as one chain (ibv_post_srq_recv(3)).

        Messages of all its queue pairs take receives in the order of posting. A receive completes at the recv_cq of
        the queue pair that took it; a receive of an XRC queue, at the `cq` of the shared receive queue. Raises
        PostError as QP.post_recv() does.
        """
        self.post(wrs, RecvWR, "post_srq_recv")

    def post_ops(self, wrs):
        """Change the matching list of a tag matching SRQ by an OpsWR, or a sequence of them (ibv_post_srq_ops(3)).

        All operations are done when the call returns. Raises PostError: EINVAL for an SRQ of another type; ENOMEM if
        the list is full, or for more operations in a call than tm_cap.max_ops. The operations before `index` are
        done.
        """
        self.need_verb("post_srq_ops", self.ops.post_srq_ops is not NULL)
        self.post(wrs, OpsWR, "post_srq_ops")

    cdef int submit(self, int work, void *head, const void **bad, rnic_err *err) noexcept nogil:
        if work == OPERATIONS:
            return self.ops.post_srq_ops(self.p, <rnic_ops_wr *>head, <rnic_ops_wr **>bad, err)
        return self.ops.post_srq_recv(self.p, <rnic_recv_wr *>head, <const rnic_recv_wr **>bad, err)
