# SPDX-License-Identifier: Apache-2.0
# Work requests hold the C structs that are posted, so that posting one again costs nothing.


@cython.final
cdef class SGE:
    """A piece of registered memory (ibv_post_send(3)): SGE(mr, offset=0, length=None) or SGE(addr=, length=, lkey=).

    Without a length the piece reaches to the end of the region. With an MR, the piece must be inside it (ValueError),
    and posted work keeps the MR alive. The other form goes to the device unchecked.
    """

    cdef rnic_sge c
    cdef readonly MR mr     #: The memory region, or None.
    cdef bytes copy         # of inline(): the bytes themselves

    def __cinit__(self, MR mr=None, offset=0, length=None, *, addr=None, lkey=None):
        if mr is not None:
            if addr is not None or lkey is not None:
                raise TypeError("SGE takes an MR, or addr, length and lkey")
            self.take(mr, offset, length)
        else:
            if addr is None or length is None or lkey is None or offset:
                raise TypeError("SGE without an MR takes addr, length and lkey")
            if not 0 <= length <= 0xFFFFFFFF:
                raise ValueError(f"{length} bytes: an SGE has 0 or more, and is shorter than 4 GiB")
            self.c.addr, self.c.length, self.c.lkey = addr, length, lkey

    @staticmethod
    def inline(data):
        """An SGE with a copy of these bytes, for INLINE requests only."""
        cdef Py_buffer view
        take_buffer(data, &view, PyBUF_STRIDES, "SGE.inline")
        PyBuffer_Release(&view)
        cdef bytes copy = bytes(memoryview(data))
        cdef SGE sge = SGE.__new__(SGE, addr=<uintptr_t><const char *>copy, length=len(copy), lkey=0)
        sge.copy = copy
        return sge

    cdef int take(self, MR mr, offset, length) except -1:
        mr.need("SGE")
        if length is None:
            length = mr.length - offset
        if not 0 <= offset <= offset + length <= mr.length:
            raise ValueError(f"{length} bytes at offset {offset} are not all in {mr!r}")
        if length > 0xFFFFFFFF:
            raise ValueError(f"{length} bytes: an SGE is shorter than 4 GiB")
        self.mr = mr
        self.c.addr, self.c.length, self.c.lkey = mr.iova + <uint64_t>offset, length, mr.lkey
        return 0

    @property
    def addr(self):
        """The address of the first byte, as the key names it."""
        return self.c.addr

    @property
    def length(self):
        """Number of bytes."""
        return self.c.length

    @property
    def lkey(self):
        """The memory region's local key."""
        return self.c.lkey

    def __repr__(self):
        return f"SGE(addr=0x{self.c.addr:x}, length={self.c.length}, lkey=0x{self.c.lkey:x})"


cdef class WorkRequest:
    """The base of SendWR, RecvWR and OpsWR: a list of memory, which cannot change while the request is being posted."""

    cdef rnic_sge *sges
    cdef tuple sg           # the SGEs, which hold their MRs
    cdef uint64_t kept_by   # the token of the queue pair that holds these MRs already
    cdef bint in_chain      # it is being posted now
    cdef void *struct_at    # the C struct, a rnic_send_wr or a rnic_recv_wr

    def __cinit__(self):
        self.sg = ()

    cdef void *fill(self, void *next) noexcept:
        """Completes the C struct, with `next` behind it in the chain; returns it."""
        return NULL

    def __dealloc__(self):
        PyMem_Free(self.sges)

    def __setattr__(self, name, value):
        self.need_unposted()
        PyObject_GenericSetAttr(self, name, value)

    cdef int need_unposted(self) except -1:
        if self.in_chain:
            raise ValueError(f"{self!r} is being posted by another thread: change it when post has returned")
        return 0

    cdef int set_sg(self, value) except -1:
        cdef tuple sg = tuple(value)
        cdef Py_ssize_t i, n = len(sg)
        cdef rnic_sge *sges = NULL
        self.need_unposted()  # by a thread that ran while the tuple was made
        for sge in sg:
            if type(sge) is not SGE:
                raise TypeError(f"sg_list holds SGEs, not {type(sge).__name__}")
        if n:
            sges = <rnic_sge *>PyMem_Malloc(n * sizeof(rnic_sge))
            if sges is NULL:
                raise MemoryError
        for i in range(n):
            sges[i] = (<SGE>sg[i]).c
        PyMem_Free(self.sges)
        self.sges, self.sg, self.kept_by = sges, sg, 0
        return 0

    @property
    def sg_list(self):
        """The pieces of memory, in order: a send gathers from them; a receive or READ scatters into them."""
        return self.sg

    @sg_list.setter
    def sg_list(self, value):
        self.set_sg(value)

    cdef int enter_chain(self, Py_ssize_t index) except -1:
        if self.in_chain:
            raise ValueError(f"work request {index} stands twice in the chain, or another thread posts it")
        self.in_chain = True
        return 0

    cdef void leave_chain(self):
        self.in_chain = False


@cython.final
cdef class SendWR(WorkRequest):
    """A request to send, write, read or do an atomic operation (ibv_post_send(3)). It can be posted again.

        rnic.SendWR(opcode=WROpcode.RDMA_WRITE, sg_list=[SGE(mr)], remote_addr=addr, rkey=rkey)

    For RDMA and atomic operations, `remote_addr` and `rkey` name the peer's memory. `compare_add` is the number that
    FETCH_AND_ADD adds, or that CMP_AND_SWP compares with before it stores `swap`. `imm_data` is the 32-bit number of
    the WITH_IMM operations, in host byte order. `invalidate_rkey` is the key for SEND_WITH_INV and LOCAL_INV. BIND_MW
    binds `mw` as `bind_info` says (MWBindInfo), and gives it the key `rkey`, for example inc_rkey(mw.rkey): its lower
    8 bits are yours to choose.

    A datagram goes along the address handle `ah` to queue pair `remote_qpn`, with the Q_Key `remote_qkey`. If the
    high bit of `remote_qkey` is set, the Q_Key of the sending queue pair is used instead (IBA 10.2.5).

    `remote_srqn` names the peer's shared receive queue. Every request of an XRC_SEND queue pair needs it, also READs,
    WRITEs and atomics, whose memory must belong to the protection domain of that shared receive queue.

    A FLUSH has no sg_list. It names the peer's memory by remote_addr, rkey and `flush_length`, or the whole region
    (`flush_level` MR); `flush_type` says whether the bytes become visible or persistent.
    """

    cdef rnic_send_wr c
    cdef public uint64_t wr_id            #: The caller's own number; its completion carries it.
    cdef public uint64_t remote_addr      #: Address in the peer's memory region.
    cdef public uint64_t compare_add      #: Atomics: what to compare with, or to add.
    cdef public uint64_t swap             #: CMP_AND_SWP: what to store.
    cdef public uint32_t rkey             #: The peer's memory key; of BIND_MW the window's new one.
    cdef public uint32_t imm_data         #: What the receiver finds in WC.imm_data.
    cdef public uint32_t invalidate_rkey  #: The key that stops to be valid.
    cdef public AH ah                     #: Datagrams: the way to the peer, or None.
    cdef AH posted                        # the one that is being posted now
    cdef bint copied                      # sges are addresses to copy from, not names of bytes
    cdef bint holds                       # it is being posted, and nobody closes the regions that it copies from
    cdef public uint32_t remote_qpn       #: Datagrams: the peer's queue pair, 0xFFFFFF of a multicast group.
    cdef public uint32_t remote_qkey      #: Datagrams: its Q_Key.
    cdef public uint32_t remote_srqn      #: XRC: the peer's shared receive queue.
    cdef public MW mw                     #: BIND_MW: the window, or None.
    cdef public object bind_info          #: BIND_MW: what it is bound to (MWBindInfo), or None.
    cdef MW binding                       # the window that is being posted now,
    cdef MR shown                         # and its region
    cdef public uint32_t flush_length     #: FLUSH: bytes.
    cdef public uint8_t flush_type        #: FLUSH: PlacementType, GLOBAL, PERSISTENT or both.
    cdef public uint8_t flush_level       #: FLUSH: SelectivityLevel, RANGE or MR.

    def __cinit__(self, uint64_t wr_id=0, opcode=WROpcode.SEND, send_flags=0, sg_list=(), uint64_t remote_addr=0,
                  uint32_t rkey=0, uint32_t imm_data=0, uint64_t compare_add=0, uint64_t swap=0,
                  uint32_t invalidate_rkey=0, *, AH ah=None, uint32_t remote_qpn=0, uint32_t remote_qkey=0,
                  uint32_t remote_srqn=0, MW mw=None, bind_info=None,
                  uint32_t flush_length=0, uint8_t flush_type=0, uint8_t flush_level=0):
        self.wr_id = wr_id
        self.c.opcode, self.c.send_flags = opcode, send_flags
        self.remote_addr, self.rkey = remote_addr, rkey
        self.compare_add, self.swap = compare_add, swap
        self.imm_data, self.invalidate_rkey = imm_data, invalidate_rkey
        self.ah, self.remote_qpn, self.remote_qkey = ah, remote_qpn, remote_qkey
        self.remote_srqn = remote_srqn
        self.mw, self.bind_info = mw, bind_info
        self.flush_length, self.flush_type, self.flush_level = flush_length, flush_type, flush_level
        self.struct_at = &self.c
        self.set_sg(sg_list)

    @property
    def opcode(self):
        """The operation."""
        return as_member(WROpcode, self.c.opcode)

    @opcode.setter
    def opcode(self, int value):
        self.need_unposted()
        self.c.opcode = value

    @property
    def send_flags(self):
        """Flags of the request: SIGNALED, FENCE, SOLICITED, INLINE."""
        return SendFlags(self.c.send_flags)

    @send_flags.setter
    def send_flags(self, uint32_t value):
        self.need_unposted()
        self.c.send_flags = value

    cdef int hold(self, str verb) except -1:
        """Keeps the objects that the work names from being closed while it is posted."""
        cdef SGE sge
        if self.c.opcode == RNIC_WR_BIND_MW:
            self.hold_window(verb)
        if self.c.send_flags & RNIC_SEND_INLINE:
            self.locate(verb)
            self.holds = True
            for sge in self.sg:
                if sge.mr is not None:
                    sge.mr.calls += 1
        if self.ah is not None:
            self.ah.need(verb)
            self.posted = self.ah
            self.posted.calls += 1
        return 0

    cdef int hold_window(self, str verb) except -1:
        if self.mw is None or self.bind_info is None:
            raise VerbsError(EINVAL, "BIND_MW needs mw, made with alloc_mw(), and bind_info", verb)
        self.mw.need(verb)
        self.shown = bind_info_of(self.bind_info, &self.c.bind_mw.bind_info, verb)
        self.binding = self.mw
        self.binding.begin_bind(self.shown)
        return 0

    cdef int locate(self, str verb) except -1:
        """Finds the address of INLINE bytes in this process, since they are copied while the request is posted."""
        cdef Py_ssize_t i
        cdef SGE sge
        for i in range(len(self.sg)):
            sge = <SGE>self.sg[i]
            if sge.mr is not None and sge.c.length:
                self.sges[i].addr = sge.mr.locate(&sge.c, verb)
                self.copied = True
        return 0

    cdef void leave_chain(self):
        cdef SGE sge
        self.in_chain = False
        if self.holds:
            self.holds = False
            for sge in self.sg:
                if sge.mr is not None:
                    sge.mr.calls -= 1
        if self.posted is not None:
            self.posted.calls -= 1
            self.posted = None
        if self.binding is not None:
            self.binding.end_bind(self.shown)
            self.binding = self.shown = None

    cdef void *fill(self, void *next) noexcept:
        # Of the unions only the opcode's member: they share bytes.
        cdef int opcode = self.c.opcode
        cdef Py_ssize_t i
        if self.copied and not self.c.send_flags & RNIC_SEND_INLINE:
            self.copied = False
            for i in range(len(self.sg)):
                self.sges[i].addr = (<SGE>self.sg[i]).c.addr
        self.c.wr_id, self.c.next = self.wr_id, <rnic_send_wr *>next
        self.c.sg_list, self.c.num_sge = self.sges, <int>len(self.sg)
        if opcode == RNIC_WR_SEND_WITH_INV or opcode == RNIC_WR_LOCAL_INV:
            self.c.invalidate_rkey = self.invalidate_rkey
        else:
            self.c.imm_data = htonl(self.imm_data)
        if opcode == RNIC_WR_ATOMIC_CMP_AND_SWP or opcode == RNIC_WR_ATOMIC_FETCH_AND_ADD:
            self.c.wr.atomic.remote_addr, self.c.wr.atomic.rkey = self.remote_addr, self.rkey
            self.c.wr.atomic.compare_add, self.c.wr.atomic.swap = self.compare_add, self.swap
        elif opcode == RNIC_WR_SEND or opcode == RNIC_WR_SEND_WITH_IMM:
            self.c.wr.ud.ah = NULL if self.posted is None else self.posted.p
            self.c.wr.ud.remote_qpn, self.c.wr.ud.remote_qkey = self.remote_qpn, self.remote_qkey
        elif opcode == RNIC_WR_BIND_MW:
            self.c.bind_mw.mw, self.c.bind_mw.rkey = self.binding.p, self.rkey
        elif opcode == RNIC_WR_FLUSH:
            self.c.wr.flush.remote_addr, self.c.wr.flush.rkey = self.remote_addr, self.rkey
            self.c.wr.flush.length = self.flush_length
            self.c.wr.flush.type, self.c.wr.flush.level = self.flush_type, self.flush_level
        else:
            self.c.wr.rdma.remote_addr, self.c.wr.rdma.rkey = self.remote_addr, self.rkey
        self.c.qp_type.xrc.remote_srqn = self.remote_srqn
        return &self.c

    def __repr__(self):
        return f"<SendWR {self.wr_id} {name_of(self.opcode)} {nbytes(self.sg)} bytes>"


@cython.final
cdef class RecvWR(WorkRequest):
    """A request to receive one message into sg_list (ibv_post_recv(3)). It can be posted again."""

    cdef rnic_recv_wr c
    cdef public uint64_t wr_id      #: The caller's own number; its completion carries it.

    def __cinit__(self, uint64_t wr_id=0, sg_list=()):
        self.wr_id = wr_id
        self.struct_at = &self.c
        self.set_sg(sg_list)

    cdef void *fill(self, void *next) noexcept:
        self.c.wr_id, self.c.next = self.wr_id, <rnic_recv_wr *>next
        self.c.sg_list, self.c.num_sge = self.sges, <int>len(self.sg)
        return &self.c

    def __repr__(self):
        return f"<RecvWR {self.wr_id} {nbytes(self.sg)} bytes>"


cdef object nbytes(tuple sg):
    return sum([sge.length for sge in sg])


cdef object as_member(enum, value):
    """The member of the enumeration with this value, or the number if there is none."""
    return enum._value2member_map_.get(value, value)


cdef object name_of(value):
    return getattr(value, "name", value)
