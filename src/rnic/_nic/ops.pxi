# SPDX-License-Identifier: Apache-2.0


class TMInfo(NamedTuple):
    """The header of a matched message (ibv_wc_read_tm_info)."""

    tag: int
    """The tag that has matched."""
    priv: int
    """The app_ctx of the header: a number of the sender."""


@cython.final
cdef class OpsWR(WorkRequest):
    """An operation on the matching list of a tag matching SRQ (ibv_post_srq_ops(3)), for SRQ.post_ops().

    TAG_ADD adds a receive: `sg_list` is for a message whose tag & `mask` equals `tag`. Its completions carry
    `recv_wr_id`, and the call sets `handle`, its name in the list. TAG_DEL removes the receive with this handle; it
    completes with TM_ERR if a message has taken the receive. TAG_SYNC, or TM_SYNC among the flags, reports
    `unexpected_cnt`: how many unmatched messages the program has handled. SIGNALED makes a completion with `wr_id` at
    the SRQ's cq.
    """

    cdef rnic_ops_wr c
    cdef public uint64_t wr_id           #: The caller's own number, of the operation's completion.
    cdef public uint64_t recv_wr_id      #: The caller's own number, of the completions of what is received.
    cdef public uint64_t tag             #: TAG_ADD: what the message's has to be.
    cdef public uint64_t mask            #: TAG_ADD: the bits of it that count.
    cdef public uint32_t unexpected_cnt  #: With TM_SYNC: messages that were looked at so far.

    def __cinit__(self, uint64_t wr_id=0, opcode=OpsWROpcode.TAG_ADD, flags=0, sg_list=(), uint64_t tag=0,
                  uint64_t mask=0xFFFFFFFFFFFFFFFF, uint64_t recv_wr_id=0, uint32_t unexpected_cnt=0,
                  uint32_t handle=0):
        self.wr_id, self.recv_wr_id, self.tag, self.mask = wr_id, recv_wr_id, tag, mask
        self.unexpected_cnt = unexpected_cnt
        self.c.opcode, self.c.flags, self.c.tm.handle = opcode, flags, handle
        self.struct_at = &self.c
        self.set_sg(sg_list)

    @property
    def opcode(self):
        """The operation: TAG_ADD, TAG_DEL or TAG_SYNC."""
        return as_member(OpsWROpcode, self.c.opcode)

    @opcode.setter
    def opcode(self, int value):
        self.need_unposted()
        self.c.opcode = value

    @property
    def flags(self):
        """SIGNALED, TM_SYNC."""
        return OpsFlags(self.c.flags)

    @flags.setter
    def flags(self, int value):
        self.need_unposted()
        self.c.flags = value

    @property
    def handle(self):
        """The receive in the list; TAG_ADD sets it, TAG_DEL needs it."""
        return self.c.tm.handle

    @handle.setter
    def handle(self, uint32_t value):
        self.need_unposted()
        self.c.tm.handle = value

    cdef void *fill(self, void *next) noexcept:
        self.c.wr_id, self.c.next = self.wr_id, <rnic_ops_wr *>next
        self.c.tm.unexpected_cnt = self.unexpected_cnt
        self.c.tm.add.recv_wr_id, self.c.tm.add.tag, self.c.tm.add.mask = self.recv_wr_id, self.tag, self.mask
        self.c.tm.add.sg_list, self.c.tm.add.num_sge = self.sges, <int>len(self.sg)
        return &self.c

    def __repr__(self):
        return f"OpsWR({self.wr_id}, {self.opcode!r}, handle={self.handle})"
