# SPDX-License-Identifier: Apache-2.0


@cython.final
cdef class CompCntr(Handle):
    """A completion counter: it counts operations of queue pairs that have completed, without a completion for each.

    It has two 64-bit values: one for operations that succeeded (work requests, or their bytes), one for those that
    failed. QP.attach_comp_cntr() chooses the operations; they are counted until the queue pair is closed, signaled or
    not. (rdma-core 64: ibv_create_comp_cntr(3).) Context.create_comp_cntr() makes it.
    """

    cdef rnic_comp_cntr *p

    def __cinit__(self, Context context not None, init):
        cdef rnic_comp_cntr_init_attr attr = init.as_struct()
        cdef rnic_err err
        context.need_verb("create_comp_cntr", context.ops.create_comp_cntr is not NULL)
        err.text[0] = 0
        check(context.ops.create_comp_cntr(context.p, &attr, &self.p, &err), "create_comp_cntr", &err)
        self.attach(context, (context,), "destroy_comp_cntr")

    cdef int destroy(self, rnic_err *err):
        return self.ops.destroy_comp_cntr(self.p, err)

    cdef int change(self, bint increment, bint failed, uint64_t value) except -1:
        cdef rnic_err err
        verb = f"{'inc' if increment else 'set'}{'_err' if failed else ''}_comp_cntr"
        self.need(verb)
        err.text[0] = 0
        if increment:
            check(self.ops.inc_comp_cntr(self.p, failed, value, &err), verb, &err)
        else:
            check(self.ops.set_comp_cntr(self.p, failed, value, &err), verb, &err)
        return 0

    cdef uint64_t value(self, bint failed) except? 0:
        cdef uint64_t found = 0
        cdef rnic_err err
        verb = "read_err_comp_cntr" if failed else "read_comp_cntr"
        self.need(verb)
        err.text[0] = 0
        check(self.ops.read_comp_cntr(self.p, failed, &found, &err), verb, &err)
        return found

    def read(self):
        """The number of operations, or bytes, that have succeeded (ibv_read_comp_cntr(3))."""
        return self.value(False)

    def read_err(self):
        """The number of operations that have failed (ibv_read_err_comp_cntr(3))."""
        return self.value(True)

    def set(self, uint64_t value):
        """Set the count of successes (ibv_set_comp_cntr(3)); an operation that completes at the same moment may be
        lost.
        """
        self.change(False, False, value)

    def set_err(self, uint64_t value):
        """Set the count of failures (ibv_set_err_comp_cntr(3)), as set() does."""
        self.change(False, True, value)

    def inc(self, uint64_t amount=1):
        """Add to the count of successes (ibv_inc_comp_cntr(3))."""
        self.change(True, False, amount)

    def inc_err(self, uint64_t amount=1):
        """Add to the count of failures (ibv_inc_err_comp_cntr(3))."""
        self.change(True, True, amount)


@cython.final
cdef class FlowCounters(Handle):
    """Counters of flows (ibv_create_counters(3)); Context.create_counters() makes it.

    libibverbs calls it ibv_counters; the class Counters holds the counters of a device. A rule counts with these
    counters if its SpecActionCount names them; several rules may. close() raises EBUSY while one does.
    """

    cdef rnic_flow_counters *p

    def __cinit__(self, Context context not None):
        cdef rnic_err err
        context.need_verb("create_counters", context.ops.create_counters is not NULL)
        err.text[0] = 0
        check(context.ops.create_counters(context.p, &self.p, &err), "create_counters", &err)
        self.attach(context, (context,), "destroy_counters")

    cdef int destroy(self, rnic_err *err):
        return self.ops.destroy_counters(self.p, err)

    @property
    def pointer(self):
        """The address of the provider's object, for a specification of a rule."""
        self.need("create_flow")
        return <uintptr_t>self.p

    def attach_counters_point_flow(self, attr):
        """Make read() return the number of frames, or bytes, at attr.index (ibv_attach_counters_point_flow(3)).

        The call names no flow: rules name their counters. Raises VerbsError: EINVAL for an index that is in use, or
        beyond 15.
        """
        cdef rnic_counter_attach_attr c = attr.as_struct()
        cdef rnic_err err
        verb = "attach_counters_point_flow"
        self.need(verb)
        err.text[0] = 0
        check(self.ops.attach_counters_point_flow(self.p, &c, NULL, &err), verb, &err)

    def read(self, uint32_t ncounters, flags=0):
        """The first `ncounters` values by index, 0 where nothing is attached (ibv_read_counters(3)).

        `flags` are ReadCountersFlags. Raises VerbsError: EINVAL for more than 16.
        """
        cdef uint64_t *values = NULL
        cdef rnic_err err
        self.need("read_counters")
        values = <uint64_t *>PyMem_Malloc((ncounters + 1) * sizeof(uint64_t))
        if values is NULL:
            raise MemoryError
        try:
            err.text[0] = 0
            check(self.ops.read_counters(self.p, values, ncounters, flags, &err), "read_counters", &err)
            return [values[i] for i in range(ncounters)]
        finally:
            PyMem_Free(values)
