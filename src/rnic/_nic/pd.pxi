# SPDX-License-Identifier: Apache-2.0


cdef class PD(Handle):
    """A protection domain: only its own queue pairs reach its memory regions (IBA 10.2.3; ibv_alloc_pd(3))."""

    cdef rnic_pd *p
    cdef readonly bint imported    #: Another object's domain, or another process': close() leaves it to its owner.
    cdef readonly PD pd            #: Of a parent domain: the protection domain that it stands for, else None.
    cdef readonly TD td            #: Of a parent domain: its thread domain, or None.

    def __cinit__(self, Context context not None, PD pd=None, TD td=None, handle=None):
        cdef rnic_err err
        cdef PD original = None
        context.need("alloc_pd")
        err.text[0] = 0
        if handle is not None:
            context.need_verb("import_pd", context.ops.import_pd is not NULL)
            original = original_of(context, PD, handle)
            check(context.ops.import_pd(context.p, handle, &self.p, &err), "import_pd", &err)
            self.imported = True
            self.attach(context, (context,), "unimport_pd")
            self.hold(original)
        elif pd is not None:
            pd.need_verb("alloc_parent_domain", pd.ops.alloc_parent_domain is not NULL)
            if td is not None:
                td.need("alloc_parent_domain")
            check(context.ops.alloc_parent_domain(pd.p, NULL if td is None else td.p, &self.p, &err),
                  "alloc_parent_domain", &err)
            self.pd, self.td = pd, td
            self.attach(context, (pd, context) if td is None else (pd, td, context), "dealloc_pd")
        else:
            check(context.ops.alloc_pd(context.p, &self.p, &err), "alloc_pd", &err)
            self.attach(context, (context,), "dealloc_pd")

    cdef int destroy(self, rnic_err *err):
        return self.ops.unimport_pd(self.p, err) if self.imported else self.ops.dealloc_pd(self.p, err)

    @property
    def handle(self):
        """The number for Context.import_pd(), in this process or in another one."""
        self.need("handle")
        return self.p.handle

    def unimport(self):
        """End the import of Context.import_pd() (ibv_unimport_pd(3)), as close() does.

        Raises VerbsError: EINVAL if the domain was not imported.
        """
        need_imported(self, self.imported, "unimport_pd")
        self.close()

    def raw_reg_mr_ex(self, str verb, uint32_t comp_mask, uint32_t access, addr, length, iova, int fd, offset, DM dm,
                      buffer):
        """Register memory as struct rnic_mr_init_attr says; a buffer stays exported until the MR is closed."""
        cdef rnic_mr_init_attr attr
        cdef MR mr = MR.__new__(MR)
        self.need_verb(verb, self.ops.reg_mr_ex is not NULL)
        limited(verb, "nbytes" if verb == "alloc_mr" else "length", length, self.ctx, "max_mr_size", least=1, bits=64)
        for name, value in (("addr", addr), ("iova", iova), ("offset", offset)):
            whole(verb, name, value, 64)
        memset(&attr, 0, sizeof(attr))
        attr.comp_mask, attr.access, attr.iova, attr.fd, attr.fd_offset = comp_mask, access, iova, fd, offset
        attr.addr, attr.length = <void *><uintptr_t>addr, length
        if buffer is not None:
            mr.export(buffer, access, verb)
            attr.addr, attr.length = mr.view.buf, mr.view.len
        self.need(verb)  # once more: a buffer may be Python, too
        if dm is not None:
            dm.need(verb)
            attr.dm = dm.p
        if dm is not None:
            dm.calls += 1
        try:
            mr.register_ex(self, &attr, verb)
        finally:
            if dm is not None:
                dm.calls -= 1
        mr.hold(dm)
        return mr

    def raw_alloc_null_mr(self):
        """ibv_alloc_null_mr."""
        cdef MR mr = MR.__new__(MR)
        self.need_verb("alloc_null_mr", self.ops.alloc_null_mr is not NULL)
        mr.allocate_null(self)
        return mr

    def raw_import_mr(self, uint32_t handle):
        """ibv_import_mr."""
        cdef MR mr = MR.__new__(MR)
        self.need_verb("import_mr", self.ops.import_mr is not NULL)
        mr.adopt(self, handle)
        return mr

    def raw_advise_mr(self, int advice, uint32_t flags, list sges):
        """ibv_advise_mr."""
        cdef rnic_err err
        cdef int i, rc, n = len(sges)
        cdef rnic_sge *list_ = <rnic_sge *>PyMem_Malloc(max(n, 1) * sizeof(rnic_sge))
        if list_ == NULL:
            raise MemoryError
        err.text[0] = 0
        try:
            self.need_verb("advise_mr", self.ops.advise_mr is not NULL)
            for i in range(n):
                list_[i] = (<SGE?>sges[i]).c
            self.calls += 1
            with nogil:
                rc = self.ops.advise_mr(self.p, advice, flags, list_, n, &err)
            self.calls -= 1
            check(rc, "advise_mr", &err)
        finally:
            PyMem_Free(list_)

    def reg_buffer(self, buffer, uint32_t access):
        """Register the bytes of an object that exports them; they stay exported until the MR is closed."""
        cdef MR mr = MR.__new__(MR)
        self.need("reg_mr")
        mr.export(buffer, access, "reg_mr")
        self.need("reg_mr")  # once more: a buffer may be Python, too
        mr.register(self, mr.view.buf, mr.view.len, access)
        return mr

    def reg_addr(self, addr, length, uint32_t access):
        """Register bytes at an address; the caller must keep them mapped."""
        cdef MR mr = MR.__new__(MR)
        limited("reg_mr", "length", length, self.ctx, "max_mr_size", least=1, bits=64)
        whole("reg_mr", "addr", addr, 64)
        self.need("reg_mr")
        mr.register(self, <void *><uintptr_t>addr, length, access)
        return mr

    def alloc_mr(self, nbytes, uint32_t access):
        """Allocate memory and register it; `mr.buf` is the memory, close() frees it."""
        cdef MR mr = MR.__new__(MR)
        limited("alloc_mr", "nbytes", nbytes, self.ctx, "max_mr_size", least=1, bits=64)
        self.need_verb("alloc_mr", self.ctx.memory is not NULL)
        mr.allocate(self, nbytes, access)
        return mr
