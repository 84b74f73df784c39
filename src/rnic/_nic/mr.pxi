# SPDX-License-Identifier: Apache-2.0


@cython.final
cdef class MR(Handle):
    """A memory region: bytes that the device may use, as the access flags allow (IBA 10.6; ibv_reg_mr(3)).

    PD.reg_mr() and PD.alloc_mr() make it.  close() returns when the device no longer touches the bytes; work that
    still names the region then completes with an error status.
    """

    cdef rnic_mr *p
    cdef Py_buffer view         # of the registered object
    cdef bint exported          # view is held
    cdef bint readonly
    cdef bint own               # the device's memory: gone after close()
    cdef int views              # memoryviews of this MR
    cdef object last_buf        # weak reference to the memoryview that .buf gave out
    cdef readonly PD pd         #: The protection domain.
    cdef readonly uint64_t addr    #: Address of the first byte.
    cdef readonly uint64_t iova    #: The same as work requests name it, here and at peers: 0 with ZERO_BASED.
    cdef readonly uint64_t length  #: Number of bytes.
    cdef readonly uint32_t lkey    #: The key for SGEs of this side.
    cdef readonly uint32_t rkey    #: The key to give to peers.

    def __init__(self):
        raise TypeError("use PD.reg_mr() or PD.alloc_mr()")

    cdef int export(self, buffer, uint32_t access) except -1:
        cdef int flags = PyBUF_ANY_CONTIGUOUS
        if access & (RNIC_ACCESS_LOCAL_WRITE | RNIC_ACCESS_REMOTE_WRITE | RNIC_ACCESS_REMOTE_ATOMIC):
            flags |= PyBUF_WRITABLE
        try:
            PyObject_GetBuffer(buffer, &self.view, flags)
        except BufferError as error:
            raise VerbsError(EINVAL, f"{error}: the memory must be in one piece and, with LOCAL_WRITE, REMOTE_WRITE or "
                                     "REMOTE_ATOMIC, writable", "reg_mr") from None
        self.exported = True
        self.readonly = self.view.readonly
        return 0

    cdef int register(self, PD pd, void *addr, uint64_t length, uint32_t access) except -1:
        cdef rnic_err err
        err.text[0] = 0
        check(pd.ops.reg_mr(pd.p, addr, length, access, &self.p, &err), "reg_mr", &err)
        self.start(pd)
        return 0

    cdef int allocate(self, PD pd, uint64_t nbytes, uint32_t access) except -1:
        cdef rnic_err err
        err.text[0] = 0
        check(pd.ops.alloc_mr(pd.p, nbytes, access, &self.p, &err), "alloc_mr", &err)
        self.own = True
        self.start(pd)
        return 0

    cdef void start(self, PD pd):
        self.pd = pd
        self.addr, self.length = <uintptr_t>self.p.addr, self.p.length
        self.iova = self.p.iova
        self.lkey, self.rkey = self.p.lkey, self.p.rkey
        self.attach(pd.ctx, (pd, pd.ctx), "dereg_mr")

    def __dealloc__(self):
        if self.exported:
            PyBuffer_Release(&self.view)

    cdef int destroy(self, rnic_err *err):
        cdef int rc
        self.release_buf()
        if self.own and self.views:
            say(err, "its .buf is still used: release the memoryviews, arrays and slices made of it")
            return -EBUSY
        with nogil:
            rc = self.ops.dereg_mr(self.p, err)
        if rc >= 0:
            self.release_export()
        return rc

    cdef void prune(self):
        for ref in list(self.users.values()):
            window = ref()
            if isinstance(window, MW):
                (<MW>window).let_go(self)

    cdef void release_export(self):
        if self.exported and not self.views:
            self.exported = False
            PyBuffer_Release(&self.view)

    cdef void release_buf(self):
        view = None if self.last_buf is None else self.last_buf()
        if view is not None:
            try:
                view.release()
            except BufferError:
                pass

    cdef str label(self):
        return f"MR 0x{self.addr:x}+{self.length} lkey 0x{self.lkey:08x}"

    @property
    def buf(self):
        """A memoryview of the registered bytes, read-only if they are.

        close() releases it.  Of memory of alloc_mr() no slice or array may then be left (EBUSY); other memory just
        stays exported until the last has gone.
        """
        self.need("buf")
        view = None if self.last_buf is None else self.last_buf()
        if view is None or not is_valid(view):
            view = memoryview(self)
            self.last_buf = weakref.ref(view)
        return view

    def __getbuffer__(self, Py_buffer *view, int flags):
        if not self.live:
            raise BufferError(f"{self.label()} is closed")
        PyBuffer_FillInfo(view, self, self.p.addr, self.p.length, self.readonly, flags)
        self.views += 1

    def __releasebuffer__(self, Py_buffer *view):
        self.views -= 1
        if not self.live:
            self.release_export()

    def __len__(self):
        return self.length


cdef bint is_valid(view):
    try:
        view.nbytes
    except ValueError:
        return False
    return True


cdef void say(rnic_err *err, const char *text):
    cdef int i = 0
    while text[i] and i < 255:
        err.text[i] = text[i]
        i += 1
    err.text[i] = 0
