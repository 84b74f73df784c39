# SPDX-License-Identifier: Apache-2.0


cdef class AH(Handle):
    """An address handle: the path to a peer, named by every datagram to it (IBA 11.2.2; ibv_create_ah(3))."""

    cdef rnic_ah *p
    cdef readonly PD pd     #: The protection domain.

    def __cinit__(self, PD pd not None, attr):
        cdef rnic_ah_attr c = attr.as_struct()
        cdef rnic_err err
        pd.need_verb("create_ah", pd.ops.create_ah is not NULL)
        err.text[0] = 0
        check(pd.ops.create_ah(pd.p, &c, &self.p, &err), "create_ah", &err)
        self.pd = pd
        self.attach(pd.ctx, (pd, pd.ctx), "destroy_ah")

    cdef int destroy(self, rnic_err *err):
        return self.ops.destroy_ah(self.p, err)

    def raw_query(self):
        """The fields of struct rnic_ah_attr."""
        cdef rnic_ah_attr attr
        cdef rnic_err err
        self.need_verb("query_ah", self.ctx.query is not NULL)
        memset(&attr, 0, sizeof(attr))
        err.text[0] = 0
        check(self.ctx.query.ah(self.p, &attr, &err), "query_ah", &err)
        return attr


cdef rnic_gid gid_of(raw) except *:
    """A GID out of its 16 bytes."""
    cdef rnic_gid gid
    cdef int i
    if len(raw) != 16:
        raise ValueError(f"a GID has 16 bytes, not {len(raw)}")
    for i in range(16):
        gid.raw[i] = raw[i]
    return gid
