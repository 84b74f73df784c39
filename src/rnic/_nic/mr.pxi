# SPDX-License-Identifier: Apache-2.0


@cython.final
@cython.no_gc_clear
cdef class MR(Handle):
    """A memory region: bytes that the device may use, as the access flags allow (IBA 10.6; ibv_reg_mr(3)).

    PD.reg_mr() and PD.alloc_mr() make it, and so do other methods of PD. close() returns when the device no longer
    touches the bytes; later work that names the region completes with an error status.
    """

    cdef rnic_mr *p
    cdef Py_buffer view         # of the registered object
    cdef bint exported          # view is held
    cdef bint readonly
    cdef bint own               # the device's memory: gone after close()
    cdef bint from_null         # it is this process' memory from address 0 on
    cdef int views              # memoryviews of this MR
    cdef int held               # Holds on it, which `calls` counts, too
    cdef bint forsaken          # and which no longer count
    cdef bint moving            # rereg() is at it, and its memory may be another one when that returns
    cdef object last_buf        # weak reference to the memoryview that .buf gave out
    cdef int64_t rights         # as granted; negative: another process knows
    cdef readonly PD pd         #: The protection domain.
    cdef readonly uint64_t addr    #: Where this process has the first byte; 0: nowhere, or not for its own use.
    cdef readonly uint64_t iova    #: The first byte as work requests name it, here and at peers: addr, 0 with ZERO_BASED.
    cdef readonly uint64_t length  #: Number of bytes.
    cdef readonly uint32_t lkey    #: The key for SGEs of this side.
    cdef readonly uint32_t rkey    #: The key to give to peers.
    cdef readonly uint32_t handle  #: What PD.import_mr() takes, in this process or, of memory files, in another one.
    cdef readonly bint imported    #: Another object's region, or another process': close() leaves it to its owner.

    def __init__(self):
        raise TypeError("use PD.reg_mr() or PD.alloc_mr()")

    cdef int export(self, buffer, uint32_t access, str verb) except -1:
        cdef int flags = PyBUF_ANY_CONTIGUOUS
        if access & (RNIC_ACCESS_LOCAL_WRITE | RNIC_ACCESS_REMOTE_WRITE | RNIC_ACCESS_REMOTE_ATOMIC):
            flags |= PyBUF_WRITABLE
        try:
            take_buffer(buffer, &self.view, flags, verb)
        except BufferError as error:
            why = f"{error}: the memory must be in one piece"
            if flags & PyBUF_WRITABLE and memoryview(buffer).readonly:
                why = (f"the buffer, of type {type(buffer).__name__}, is read-only: give memory that can be written, such as a bytearray, "
                       "or leave LOCAL_WRITE, REMOTE_WRITE and REMOTE_ATOMIC out")
            raise VerbsError(EINVAL, why, verb) from None
        self.exported = True
        self.readonly = self.view.readonly
        if self.view.len == 0:
            raise VerbsError(EINVAL, "the buffer is empty: give one of the size that is wanted, such as bytearray(4096), "
                                     "or, for a region without bytes, addr and length=0", verb)
        return 0

    cdef int register(self, PD pd, void *addr, uint64_t length, uint32_t access) except -1:
        cdef rnic_err err
        err.text[0] = 0
        check(pd.ops.reg_mr(pd.p, addr, length, access, &self.p, &err), "reg_mr", &err)
        self.from_null = addr == NULL
        self.start(pd, access)
        return 0

    cdef int allocate(self, PD pd, uint64_t nbytes, uint32_t access) except -1:
        cdef rnic_err err
        err.text[0] = 0
        check(pd.ctx.memory.alloc_mr(pd.p, nbytes, access, &self.p, &err), "alloc_mr", &err)
        self.own = True
        self.start(pd, access)
        return 0

    cdef int register_ex(self, PD pd, rnic_mr_init_attr *attr, str verb) except -1:
        cdef rnic_err err
        cdef int rc
        err.text[0] = 0
        pd.calls += 1
        with nogil:
            rc = pd.ops.reg_mr_ex(pd.p, attr, &self.p, &err)
        pd.calls -= 1
        check(rc, verb, &err)
        self.own = bool(attr.comp_mask & RNIC_MR_INIT_ALLOC)
        self.start(pd, attr.access)
        return 0

    cdef int allocate_null(self, PD pd) except -1:
        cdef rnic_err err
        err.text[0] = 0
        check(pd.ops.alloc_null_mr(pd.p, &self.p, &err), "alloc_null_mr", &err)
        self.start(pd, RNIC_ACCESS_LOCAL_WRITE)
        return 0

    cdef int adopt(self, PD pd, uint32_t handle) except -1:
        cdef rnic_err err
        cdef MR original = original_of(pd.ctx, MR, handle)
        err.text[0] = 0
        check(pd.ops.import_mr(pd.p, handle, &self.p, &err), "import_mr", &err)
        self.own = self.imported = True
        self.readonly = original is not None and original.readonly
        self.start(pd, -1 if original is None else original.rights)
        self.hold(original)
        self.closer = "unimport_mr"
        return 0

    cdef void start(self, PD pd, int64_t rights):
        self.pd, self.rights = pd, rights
        self.describe()
        self.attach(pd.ctx, (pd, pd.ctx), "dereg_mr")

    cdef void describe(self):
        self.addr, self.iova, self.length = <uintptr_t>self.p.addr, self.p.iova, self.p.length
        self.lkey, self.rkey, self.handle = self.p.lkey, self.p.rkey, self.p.handle

    def __dealloc__(self):
        if self.exported:
            PyBuffer_Release(&self.view)

    cdef bint looked_into(self):
        self.release_buf()
        return self.own and self.views > 0

    cdef int may_go(self, rnic_err *err):
        if self.looked_into():
            say(err, "its .buf is still used: release the memoryviews, arrays and slices made of it")
            return -EBUSY
        return 0

    cdef int destroy(self, rnic_err *err):
        cdef int rc
        with nogil:
            rc = self.ops.unimport_mr(self.p, err) if self.imported else self.ops.dereg_mr(self.p, err)
        return rc

    cdef void gone(self):
        self.release_export()

    def unimport(self):
        """End the import of PD.import_mr() (ibv_unimport_mr(3)), as close() does.

        Raises VerbsError: EINVAL if the region was not imported.
        """
        need_imported(self, self.imported, "unimport_mr")
        self.close()

    def rereg(self, uint32_t flags, PD pd=None, buffer=None, uint32_t access=0, *, addr=None, length=None):
        """Change the region in place (ibv_rereg_mr(3)); `flags` (ReregMRFlags) say what changes.

        CHANGE_PD moves it to the protection domain `pd`. CHANGE_TRANSLATION moves it to the memory of a buffer, or to
        `length` bytes at `addr`; the old buffer is released. CHANGE_ACCESS changes the rights to `access`. The keys
        stay. SGEs that were made before a change of translation name the old addresses. Work that is under way uses
        the region as it is at that moment, and fails if it does not fit. Until the call returns, .buf and other calls
        that change or copy the region raise EBUSY.

        Raises VerbsError; then nothing has changed (libibverbs' IBV_REREG_MR_ERR_INPUT; its other codes do not
        occur). EINVAL for impossible values (no flag, an access that reg_mr() would refuse, memory without an
        address); EOPNOTSUPP for a locked region that would move; EFAULT for memory that is not mapped; EBUSY while
        the region is imported, its .buf is used, or another thread's call uses it.
        """
        cdef bint moves = flags & RNIC_REREG_MR_CHANGE_TRANSLATION
        busy = (self,) if pd is None else (self, pd)
        if moves != (buffer is not None or (addr is not None and length is not None)):
            raise TypeError("rereg takes a buffer, or addr and length, with CHANGE_TRANSLATION and only with it")
        whole("rereg_mr", "addr", addr or 0, 64)
        limited("rereg_mr", "length", length or 0, self.ctx, "max_mr_size", least=1, bits=64)
        self.need_verb("rereg_mr", self.ops.rereg_mr is not NULL)
        if pd is not None:
            pd.need("rereg_mr")
        if self.calls:
            raise VerbsError(EBUSY, f"{self.caller()} uses {self.label()}", "rereg_mr")
        for one in busy:
            (<Handle>one).calls += 1
        self.moving = moves
        try:
            self.change(flags, pd, buffer, access, addr or 0, length or 0)
        finally:
            self.moving = False
            for one in busy:
                (<Handle>one).calls -= 1

    cdef int change(self, uint32_t flags, PD pd, buffer, uint32_t access, uintptr_t at, uint64_t nbytes) except -1:
        cdef MR fresh = MR.__new__(MR)  # holds the new buffer until the old one is let go
        cdef rnic_pd *domain = NULL if pd is None else pd.p
        cdef rnic_err err
        cdef int rc
        self.release_buf()
        if self.moving and self.views:
            raise VerbsError(EBUSY, "its .buf is still used: release the memoryviews, arrays and slices made of it",
                             "rereg_mr")
        if buffer is not None:
            # Without CHANGE_ACCESS the region has the rights that it had: memory to be written if that was.
            fresh.export(buffer, access if flags & RNIC_REREG_MR_CHANGE_ACCESS else
                         0 if self.readonly else RNIC_ACCESS_LOCAL_WRITE, "rereg_mr")
            at, nbytes = <uintptr_t>fresh.view.buf, fresh.view.len
        elif not self.moving and self.exported and self.readonly and access & RNIC_ACCESS_LOCAL_WRITE:
            raise VerbsError(EINVAL, "the memory is read-only: LOCAL_WRITE cannot be granted", "rereg_mr")
        err.text[0] = 0
        with nogil:
            rc = self.ops.rereg_mr(self.p, flags, domain, <void *>at, nbytes, access, &err)
        check(rc, "rereg_mr", &err)
        if self.moving:
            self.from_null = at == 0
            self.view, fresh.view = fresh.view, self.view
            self.exported, fresh.exported = fresh.exported, self.exported
            self.readonly = fresh.readonly
        if flags & RNIC_REREG_MR_CHANGE_PD:
            self.swap_owner(self.pd, pd)
            self.pd = pd
        if flags & RNIC_REREG_MR_CHANGE_ACCESS:
            self.rights = access
        self.describe()
        return 0

    cdef void forsake(self):
        """Holds that are collected with it come too late to give it back: its owners are collected, too."""
        self.calls -= self.held
        self.held, self.forsaken = 0, True

    cdef str caller(self):
        return "an operation that has not ended" if self.held else Handle.caller(self)

    cdef int need_still(self, str verb) except -1:
        """Raises EBUSY while the region's memory changes."""
        if self.moving:
            raise VerbsError(EBUSY, f"another thread re-registers {self.label()}", verb)
        return 0

    cdef uint64_t locate(self, rnic_sge *sge, str verb) except? 0:
        """The address in this process of the bytes of an SGE of this region."""
        self.need(verb)
        self.need_still(verb)
        if self.p.addr == NULL and not self.from_null:
            raise VerbsError(EINVAL, f"INLINE copies bytes that this process can reach, and {self.label()} has none", verb)
        if sge.addr < self.iova or sge.addr - self.iova > self.length or sge.length > self.length - (sge.addr - self.iova):
            raise VerbsError(EINVAL, f"the SGE names bytes that {self.label()} has no more: make it anew after rereg()", verb)
        return <uint64_t><uintptr_t>self.p.addr + (sge.addr - self.iova)

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

    @property
    def access(self):
        """The access flags (AccessFlags), as registered or changed by rereg(); None if only another process knows."""
        return None if self.rights < 0 else AccessFlags(self.rights)

    cdef bint can_be_filled(self):
        """Whether a READ or a message may be stored in it, as far as this process knows."""
        return self.rights < 0 or self.rights & RNIC_ACCESS_LOCAL_WRITE

    cdef str label(self):
        return f"MR 0x{self.addr:x}+{self.length} lkey 0x{self.lkey:08x}"

    @property
    def buf(self):
        """A memoryview of the registered bytes, read-only if they are.

        close() releases it. For memory of alloc_mr(), close() raises EBUSY while slices or arrays of it exist; other
        memory stays exported until the last of them is gone. Raises VerbsError: EBUSY while another thread
        re-registers the region.
        """
        self.need("buf")
        self.need_still("buf")
        view = None if self.last_buf is None else self.last_buf()
        if view is None or not is_valid(view):
            view = memoryview(self)
            self.last_buf = weakref.ref(view)
        return view

    @property
    def awaited(self):
        """Why it is not given back yet: it is the device's memory and .buf is used, or an operation uses it."""
        return self.live and (self.held > 0 or (self.own and self.views > 0))

    def __getbuffer__(self, Py_buffer *view, int flags):
        if not self.live:
            raise BufferError(f"{self.label()} is closed")
        if self.moving:
            raise BufferError(f"another thread re-registers {self.label()}")
        if self.p.addr == NULL or self.p.length >> 63:
            raise BufferError(f"{self.label()} is not this process' memory to look into")
        PyBuffer_FillInfo(view, self, self.p.addr, self.p.length, self.readonly, flags)
        self.views += 1

    def __releasebuffer__(self, Py_buffer *view):
        self.views -= 1
        if self.closing:
            self.go()
        if not self.live:
            self.release_export()

    def __len__(self):
        if self.length >> 63:
            raise OverflowError(f"{self.label()} is longer than len() can tell: take its .length")
        return self.length


cdef object original_of(Context ctx, kind, uint32_t handle):
    """The object of this process that a handle in the device of ctx names, or None."""
    for one in list(contexts):
        if not (<Context>one).live or (<Context>one).p != ctx.p:
            continue
        for ref in list((<Context>one).users.values()):
            thing = ref()
            if not isinstance(thing, kind) or not (<Handle>thing).live or thing.handle != handle or thing.imported:
                continue
            if kind is PD and thing.pd is not None:  # a parent domain: the one that it stands for has the handle
                continue
            return thing
    return None


cdef int need_imported(Handle self, bint imported, str verb) except -1:
    self.need(verb)
    if not imported:
        raise VerbsError(EINVAL, f"{self.label()} was not imported: close() gives it back", verb)
    return 0


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
