# SPDX-License-Identifier: Apache-2.0


cdef class SRQ(Poster):
    """A shared receive queue: receives for the messages of many queue pairs (IBA 10.2.9; ibv_create_srq(3))."""

    cdef rnic_srq *p
    cdef readonly PD pd              #: The protection domain of the receives' memory.
    cdef readonly object srq_context #: The caller's own.

    def __cinit__(self, PD pd not None, init):
        cdef rnic_srq_attr attr = init.attr.as_struct()
        cdef rnic_err err
        pd.need("create_srq")
        err.text[0] = 0
        check(pd.ops.create_srq(pd.p, <void *>self, &attr, &self.p, &err), "create_srq", &err)
        self.pd, self.srq_context = pd, init.srq_context
        self.attach(pd.ctx, (pd, pd.ctx), "destroy_srq")

    cdef int destroy(self, rnic_err *err):
        cdef int rc
        with nogil:
            rc = self.ops.destroy_srq(self.p, err)
        if rc >= 0:
            self.kept = set()
        return rc

    def raw_modify(self, attr, uint32_t mask):
        """ibv_modify_srq with all fields of struct rnic_srq_attr."""
        cdef rnic_srq_attr c = attr
        cdef rnic_err err
        self.need("modify_srq")
        err.text[0] = 0
        check(self.ops.modify_srq(self.p, &c, mask, &err), "modify_srq", &err)

    def raw_query(self):
        """The fields of struct rnic_srq_attr."""
        cdef rnic_srq_attr attr
        cdef rnic_err err
        self.need("query_srq")
        err.text[0] = 0
        check(self.ops.query_srq(self.p, &attr, &err), "query_srq", &err)
        return attr

    def post_recv(self, wrs):
        """Hand over a RecvWR, or a sequence of them as one chain (ibv_post_srq_recv(3)).

        The messages of all its queue pairs take them in the order of posting; each completes at the recv_cq of the
        queue pair that took it.  Raises PostError as QP.post_recv() does.
        """
        self.post(wrs, RecvWR, "post_srq_recv")

    cdef int submit(self, int how, void *head, const void **bad, rnic_err *err) noexcept nogil:
        return self.ops.post_srq_recv(self.p, <rnic_recv_wr *>head, <const rnic_recv_wr **>bad, err)
