# SPDX-License-Identifier: Apache-2.0


cdef struct place:
    uint64_t start          # address of the first byte
    uint64_t top            # behind the last byte of this place and of all before it


@cython.final
@cython.no_gc_clear
cdef class Hold:
    """Keeps a region from being given back while an operation uses it."""

    cdef MR mr

    def __cinit__(self, MR mr not None):
        self.mr = mr
        mr.held += 1
        mr.calls += 1

    def __dealloc__(self):
        if self.mr is None or self.mr.forsaken:
            return
        self.mr.held -= 1
        self.mr.calls -= 1
        if self.mr.closing:
            self.mr.go()


@cython.final
cdef class Places:
    """Registered memory that is found by address.

    The table holds weak references: a region that is added can be closed or dropped at any time.
    """

    cdef list refs          # to the regions, in the order of their addresses
    cdef place *table       # likewise
    cdef Py_ssize_t room
    cdef Py_ssize_t alive   # how many were, when that was last looked at

    def __cinit__(self):
        self.refs = []

    def __dealloc__(self):
        PyMem_Free(self.table)

    def add(self, MR mr not None):
        """Add a region, so that memory in it is found."""
        if len(self.refs) > 2 * self.alive + 8:
            self.forget_closed()
        at = self.behind(mr.addr)
        if len(self.refs) == self.room:
            self.grow()
        mr.quiet = True
        self.refs.insert(at, weakref.ref(mr))
        memmove(&self.table[at + 1], &self.table[at], (len(self.refs) - 1 - at) * sizeof(place))
        self.table[at].start = mr.addr
        self.tabulate(at)

    def regions(self):
        """Return the regions that are open."""
        found = [ref() for ref in self.refs]
        return [mr for mr in found if is_live(mr)]

    cpdef MR at(self, uint64_t addr, uint64_t length, bint written):
        """Return an open region that contains the bytes at an address, or None.  `written`: it must be writable."""
        cdef Py_ssize_t i
        cdef MR mr
        if not self.refs:
            return None
        i = self.behind(addr) - 1    # look back from the last one that begins at `addr` or before
        while i >= 0 and self.table[i].top >= addr + length:
            mr = (<object>self.refs[i])()
            if (is_live(mr) and not mr.moving and mr.addr <= addr and addr + length <= mr.addr + mr.length
                    and (not written or mr.can_be_filled())):
                return mr
            i -= 1
        return None

    cdef Py_ssize_t behind(self, uint64_t addr):
        """Return the number of regions that begin at this address or before."""
        cdef Py_ssize_t low = 0, high = len(self.refs), middle
        while low < high:
            middle = (low + high) // 2
            if self.table[middle].start <= addr:
                low = middle + 1
            else:
                high = middle
        return low

    cdef void forget_closed(self):
        cdef Py_ssize_t i, kept = 0
        for i in range(len(self.refs)):
            if is_live(self.refs[i]()):
                self.refs[kept], self.table[kept] = self.refs[i], self.table[i]
                kept += 1
        del self.refs[kept:]
        self.alive = kept
        self.tabulate(0)

    cdef int grow(self) except -1:
        cdef Py_ssize_t room = 2 * self.room + 8
        cdef place *table = <place *>PyMem_Malloc(room * sizeof(place))
        if table == NULL:
            raise MemoryError
        memcpy(table, self.table, self.room * sizeof(place))
        PyMem_Free(self.table)
        self.table, self.room = table, room
        return 0

    cdef void tabulate(self, Py_ssize_t first):
        """Compute `top` for the places from `first` on."""
        cdef Py_ssize_t i
        cdef uint64_t top
        cdef MR mr
        for i in range(first, len(self.refs)):
            mr = self.refs[i]()
            top = self.table[i - 1].top if i else 0
            self.table[i].top = top if mr is None else max(top, mr.addr + mr.length)


cdef bint is_live(MR mr):
    return mr is not None and mr.live
