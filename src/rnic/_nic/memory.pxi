# SPDX-License-Identifier: Apache-2.0


@cython.final
cdef class DM(Handle):
    """Memory of the device (ibv_alloc_dm(3)): copy bytes in and out, and register it with PD.reg_dm_mr().

    Context.alloc_dm() makes it. The software RNIC keeps it in its memory file. close() raises EBUSY while it has
    regions.
    """

    cdef rnic_dm *p
    cdef readonly uint64_t length  #: Bytes.
    cdef readonly bint imported    #: Another object's memory, or another process': close() leaves it to its owner.

    def __cinit__(self, Context context not None, length=0, log_align_req=0, handle=None):
        cdef rnic_err err
        cdef DM original = None
        err.text[0] = 0
        if handle is None:
            limited("alloc_dm", "length", length, context, "max_dm_size", least=4, bits=64)
            whole("alloc_dm", "log_align_req", log_align_req)
            context.need_verb("alloc_dm", context.ops.alloc_dm is not NULL)
            check(context.ops.alloc_dm(context.p, length, log_align_req, &self.p, &err), "alloc_dm", &err)
        else:
            context.need_verb("import_dm", context.ops.import_dm is not NULL)
            original = original_of(context, DM, handle)
            check(context.ops.import_dm(context.p, handle, &self.p, &err), "import_dm", &err)
            self.imported = True
        self.length = self.p.length
        self.attach(context, (context,), "unimport_dm" if self.imported else "free_dm")
        self.hold(original)

    cdef int destroy(self, rnic_err *err):
        return self.ops.unimport_dm(self.p, err) if self.imported else self.ops.free_dm(self.p, err)

    @property
    def handle(self):
        """The number for Context.import_dm(), in this process or in another one."""
        self.need("handle")
        return self.p.handle

    def copy_to(self, dm_offset, data):
        """Copy the bytes of a buffer to `dm_offset` (ibv_memcpy_to_dm(3)).

        Raises VerbsError: EINVAL unless offset and length are multiples of 4 and inside the memory. Raises
        BufferError for an array that is not contiguous in C order.
        """
        cdef Py_buffer view
        cdef rnic_err err
        cdef int rc
        cdef uint64_t offset = whole("memcpy_to_dm", "dm_offset", dm_offset, 64)
        self.need("memcpy_to_dm")
        err.text[0] = 0
        take_buffer(data, &view, PyBUF_C_CONTIGUOUS, "memcpy_to_dm")
        self.calls += 1
        try:
            with nogil:
                rc = self.ops.memcpy_to_dm(self.p, offset, view.buf, view.len, &err)
            check(rc, "memcpy_to_dm", &err)
        finally:
            self.calls -= 1
            PyBuffer_Release(&view)

    def copy_from(self, dm_offset, length):
        """Return `length` bytes from `dm_offset` on (ibv_memcpy_from_dm(3)).

        Raises VerbsError: EINVAL unless offset and length are multiples of 4 and inside the memory.
        """
        cdef rnic_err err
        cdef int rc
        cdef uint64_t n = whole("memcpy_from_dm", "length", length, 64)
        cdef uint64_t offset = whole("memcpy_from_dm", "dm_offset", dm_offset, 64)
        cdef uint8_t *at
        self.need("memcpy_from_dm")
        err.text[0] = 0
        data = bytearray(n if n <= self.length else 0)  # what is longer the provider refuses
        at = data
        self.calls += 1
        try:
            with nogil:
                rc = self.ops.memcpy_from_dm(at, self.p, offset, n, &err)
        finally:
            self.calls -= 1
        check(rc, "memcpy_from_dm", &err)
        return bytes(data)

    def unimport(self):
        """End the import of Context.import_dm() (ibv_unimport_dm(3)), as close() does.

        Raises VerbsError: EINVAL if the memory was not imported.
        """
        need_imported(self, self.imported, "unimport_dm")
        self.close()

    def __len__(self):
        return self.length


@cython.final
cdef class TD(Handle):
    """A thread domain (ibv_alloc_td(3)): a hint that one thread at a time uses the objects made in it.

    Context.alloc_td() makes it, Context.alloc_parent_domain() uses it. This device keeps its locks, so a wrong hint
    does no harm. close() raises EBUSY while parent domains use it.
    """

    cdef rnic_td *p

    def __cinit__(self, Context context not None):
        cdef rnic_err err
        context.need_verb("alloc_td", context.ops.alloc_td is not NULL)
        err.text[0] = 0
        check(context.ops.alloc_td(context.p, &self.p, &err), "alloc_td", &err)
        self.attach(context, (context,), "dealloc_td")

    cdef int destroy(self, rnic_err *err):
        return self.ops.dealloc_td(self.p, err)
