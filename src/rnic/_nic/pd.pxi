# SPDX-License-Identifier: Apache-2.0


cdef class PD(Handle):
    """A protection domain: only its own queue pairs reach its memory regions (IBA 10.2.3; ibv_alloc_pd(3))."""

    cdef rnic_pd *p

    def __cinit__(self, Context context not None):
        cdef rnic_err err
        context.need("alloc_pd")
        err.text[0] = 0
        check(context.ops.alloc_pd(context.p, &self.p, &err), "alloc_pd", &err)
        self.attach(context, (context,), "dealloc_pd")

    cdef int destroy(self, rnic_err *err):
        return self.ops.dealloc_pd(self.p, err)

    def reg_buffer(self, buffer, uint32_t access):
        """Register the bytes of an object that exports them; they stay exported until the MR is closed."""
        cdef MR mr = MR.__new__(MR)
        self.need("reg_mr")
        mr.export(buffer, access)
        mr.register(self, mr.view.buf, mr.view.len, access)
        return mr

    def reg_addr(self, uintptr_t addr, uint64_t length, uint32_t access):
        """Register bytes at an address: that they stay there is the caller's word."""
        cdef MR mr = MR.__new__(MR)
        self.need("reg_mr")
        mr.register(self, <void *>addr, length, access)
        return mr

    def alloc_mr(self, uint64_t nbytes, uint32_t access):
        """Memory of the device's own making, registered; `mr.buf` is the way to it, close() frees it."""
        cdef MR mr = MR.__new__(MR)
        self.need("alloc_mr")
        mr.allocate(self, nbytes, access)
        return mr
