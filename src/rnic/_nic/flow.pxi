# SPDX-License-Identifier: Apache-2.0


cdef class FlowCounters(Handle):
    """Counters that flow rules add to (ibv_create_counters(3))."""

    cdef rnic_flow_counters *p

    def __cinit__(self, Context context not None):
        cdef rnic_err err
        context.need("create_flow_counters")
        err.text[0] = 0
        check(context.ops.create_flow_counters(context.p, &self.p, &err), "create_flow_counters", &err)
        self.attach(context, (context,), "destroy_flow_counters")

    cdef int destroy(self, rnic_err *err):
        return self.ops.destroy_flow_counters(self.p, err)

    @property
    def pointer(self):
        """The address of the provider's object, which a specification of a rule holds."""
        self.need("create_flow")
        return <uintptr_t>self.p

    def raw_attach(self, int desc, uint32_t index):
        """ibv_attach_counters_point_flow."""
        cdef rnic_err err
        self.need("attach_flow_counter")
        err.text[0] = 0
        check(self.ops.attach_flow_counter(self.p, desc, index, &err), "attach_flow_counter", &err)

    def raw_read(self, uint32_t n):
        """ibv_read_counters: the first n values."""
        cdef uint64_t values[64]
        cdef rnic_err err
        cdef uint32_t i
        self.need("read_flow_counters")
        if n > 64:
            raise VerbsError(EINVAL, f"{n} values: no provider has so many", "read_flow_counters")
        err.text[0] = 0
        check(self.ops.read_flow_counters(self.p, values, n, &err), "read_flow_counters", &err)
        return [values[i] for i in range(n)]


cdef class Flow(Handle):
    """A rule that steers frames to a queue pair (ibv_create_flow(3))."""

    cdef rnic_flow *p
    cdef readonly QP qp     #: The queue pair that gets the frames.

    def __cinit__(self, QP qp not None, bytes attr not None, counters=()):
        cdef rnic_err err
        cdef const char *raw = attr
        qp.need("create_flow")
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
