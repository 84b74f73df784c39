# SPDX-License-Identifier: Apache-2.0


cdef class Flow(Handle):
    """A rule that steers frames to a queue pair (ibv_create_flow(3))."""

    cdef rnic_flow *p
    cdef readonly QP qp     #: The queue pair that gets the frames.

    def __cinit__(self, QP qp not None, bytes attr not None, counters=()):
        cdef rnic_err err
        cdef const char *raw = attr
        qp.need_verb("create_flow", qp.ops.create_flow is not NULL)
        if len(attr) < sizeof(rnic_flow_attr) or len(attr) < (<const rnic_flow_attr *>raw).size:
            raise VerbsError(EINVAL, f"the rule has {len(attr)} bytes, fewer than its size says", "create_flow")
        for one in counters:
            (<FlowCounters?>one).need("create_flow")
        err.text[0] = 0
        check(qp.ops.create_flow(qp.p, <const rnic_flow_attr *>raw, &self.p, &err), "create_flow", &err)
        self.qp = qp
        self.attach(qp.ctx, (qp, *counters, qp.ctx), "destroy_flow")

    cdef int destroy(self, rnic_err *err):
        return self.ops.destroy_flow(self.p, err)
